"""Built-in components: speculative."""
