"""What suites, demo and benchmarks run on: clusters, nodes, hollow nodes, processes, and an independent recorder."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
