"""End-to-end tests: they need an API server, or nodes, too."""
