"""Nodes without the metrics that a score needs."""
