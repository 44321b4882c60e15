"""The node agent: measures a node and publishes NodeCapacity and SubspaceSnapshot status."""
