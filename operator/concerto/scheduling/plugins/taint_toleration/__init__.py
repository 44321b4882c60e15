"""Taints and tolerations."""
