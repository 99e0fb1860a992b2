"""Built-in components: executor."""
