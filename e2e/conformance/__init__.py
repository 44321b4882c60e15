"""Kubernetes' own tests of schedulers, run with Concerto as the only scheduler of a cluster with two real nodes."""
