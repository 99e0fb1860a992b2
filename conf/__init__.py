"""From what a user writes to an engine: presets, overrides read by Hydra, checks, assembly."""
