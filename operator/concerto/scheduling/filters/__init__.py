"""Filters: which nodes are feasible for a pod. One file each, listed in `registry.py`."""
