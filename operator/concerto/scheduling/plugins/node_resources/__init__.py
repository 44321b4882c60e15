"""Requests against allocatable."""
