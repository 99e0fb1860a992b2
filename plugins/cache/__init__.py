"""Built-in components: cache."""
