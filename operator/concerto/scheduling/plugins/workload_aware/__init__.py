"""CPUs of their own for pods with a workload type."""
