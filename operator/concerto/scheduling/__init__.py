"""Pure scheduling decisions: the state of a cluster and pending pods in, placements out."""
