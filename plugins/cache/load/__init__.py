"""Load policies: whether pages come from a store or are computed again."""
