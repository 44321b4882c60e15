"""Studies of co-location, of load-aware scores, and of a real cluster's pods."""
