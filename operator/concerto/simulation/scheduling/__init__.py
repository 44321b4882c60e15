"""Simulates scheduling: virtual-time cluster, scenarios, policies, evaluation."""
