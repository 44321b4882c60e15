"""Scores: which feasible node is best. One file each, listed in `registry.py`."""
