"""The Hydra configuration: one group a seam, presets, and whole experiments."""
