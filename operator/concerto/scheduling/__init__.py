"""Pure scheduling decisions: a snapshot of the cluster and pending pods in, placements out."""
