"""How much memory something takes, as the interpreter counts it."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Traced:
    """Bytes that were allocated within ``traced_memory``; known once it has ended.

    Attributes:
        held: of them, those that are still held.
        peak: the most that were held at a time.
    """

    held: int = 0
    peak: int = 0


@contextmanager
def traced_memory() -> Iterator[Traced]:
    """Count what is allocated in the block, also if it raises."""
    found = Traced()
    tracemalloc.start()
    try:
        yield found
        _, found.peak = tracemalloc.get_traced_memory()
        gc.collect()  # what only waits for the collector is not held
        found.held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
