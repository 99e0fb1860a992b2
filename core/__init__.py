"""Interlock: composable LLM-serving components; public names live in this package's modules."""
