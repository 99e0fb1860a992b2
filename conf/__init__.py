"""The configuration by Hydra: presets, one group a seam, and how overrides are read."""
