"""Built-in components: parallel."""
