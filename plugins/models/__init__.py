"""Built-in components: models."""
