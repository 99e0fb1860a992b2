"""Interlock: composable LLM-serving components. Public names live in the modules of this package."""
