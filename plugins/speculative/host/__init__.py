"""Drafters that look at token ids alone."""
