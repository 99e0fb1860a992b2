"""Built-in components: attention."""
