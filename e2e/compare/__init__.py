"""Concerto and the real kube-scheduler on the same real nodes, one after the other: `make compare`."""
