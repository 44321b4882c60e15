"""Validates PodCPUBindings, and prepares CPUs before a pod is bound."""
