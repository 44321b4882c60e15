"""Gangs: pods that are placed together, or not at all."""
