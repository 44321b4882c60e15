"""What needs an API server or a node: cluster providers, nodes, scenarios, faults, benchmarks."""
