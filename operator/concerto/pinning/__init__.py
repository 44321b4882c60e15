"""CPU topology, allocation and conflicts of CPU bindings (pure)."""
