"""Attention compiled for the machine it runs on."""
