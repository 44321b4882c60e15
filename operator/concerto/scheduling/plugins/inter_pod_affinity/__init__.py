"""Affinity and anti-affinity between pods."""
