"""Filters and scores, one folder for each feature; registry.py lists them."""
