"""Built-in components: scheduler."""
