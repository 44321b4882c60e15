"""Pure scheduling decisions: a cluster of the cluster and pending pods in, placements out."""
