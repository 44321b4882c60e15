"""Binding of the volumes that pods claim."""
