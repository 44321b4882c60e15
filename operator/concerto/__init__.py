"""Concerto: a Kubernetes control plane add-on that schedules onto measured capacity."""
