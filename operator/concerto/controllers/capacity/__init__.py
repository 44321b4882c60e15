"""Merges what agents publish, reports orphaned objects, and serves the load-watcher API."""
