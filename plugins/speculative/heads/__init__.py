"""Drafters with networks of their own, trained for one target each."""
