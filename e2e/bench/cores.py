"""How many cores each process uses: where that is all that the machine has, times say nothing about one of them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from e2e.testbed.clusters.process import Child
from e2e.testbed.processes import cpu_seconds


@contextmanager
def cores_used(children: Mapping[str, Child], **others: int) -> Iterator[dict[str, float]]:
    """Gives a dict that holds, once the context is left, how many cores each process has used on average.

    Args:
        children: processes by name, which live all the time. This one is added as ``load``.
        others: PIDs of others by name.
    """
    pids = {name: child.pid for name, child in children.items()} | others | {"load": os.getpid()}
    before, began = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.monotonic()
    used: dict[str, float] = {}
    yield used
    took = time.monotonic() - began
    used |= {name: (cpu_seconds(pid) - before[name]) / took for name, pid in pids.items()}


def in_words(used: Mapping[str, float]) -> str:
    """Such as ``etcd 0.31, leader 0.12``, those that use most first."""
    return ", ".join(f"{name} {cores:.2f}" for name, cores in sorted(used.items(), key=lambda each: -each[1]))
