"""Built-in components: frontend."""
