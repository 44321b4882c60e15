"""Built-in scenarios."""
