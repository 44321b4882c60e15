"""Constraints that are not supported yet."""
