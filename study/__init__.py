"""Ablation studies: designs over components, cells that are run fairly, and what they show."""
