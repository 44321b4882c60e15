"""The node that a pod names itself."""
