"""Simulates autoscaling: traffic, plant, policies, evaluation."""
