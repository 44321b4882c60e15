"""Nodes that are ready."""
