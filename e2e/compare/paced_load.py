"""Sends requests to the ready pods of a service at a changing rate.

Run as ``python -m e2e.compare.paced_load FILE PORT PHASES``. FILE holds the pods' addresses, a line each, and is read
again when it changes. PHASES is SECONDS:FROM:TO,... in requests per second. As in http_load, a request is sent when it
is due, and its time counts from then. The program runs until SIGTERM, from the last phase on at its last rate. At its
end it prints a line for each request: when it was due, and its milliseconds, or ``-``.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from e2e.compare.http_load import Load, before_all_others, until_stopped

_MIN_RATE = 0.1


@dataclass(frozen=True)
class Phase:
    """A stretch of time in which the rate changes evenly.

    Attributes:
        seconds: how long it lasts.
        first: requests per second at its begin.
        last: the same at its end.
    """

    seconds: float
    first: float
    last: float

    def __str__(self) -> str:
        return f"{self.seconds:g}:{self.first:g}:{self.last:g}"


def parse_phases(text: str) -> list[Phase]:
    """Phases from SECONDS:FROM:TO,...

    Raises:
        ArgumentTypeError: it is written otherwise.
    """
    try:
        return [Phase(*map(float, part.split(":"))) for part in text.split(",")]
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECONDS:FROM:TO,...: write for example 10:1:16") from error


def rate_at(phases: list[Phase], seconds: float) -> float:
    """Requests per second at that time after the beginning; at least `_MIN_RATE`."""
    for phase in phases:
        if seconds < phase.seconds:
            return max(phase.first + (phase.last - phase.first) * seconds / phase.seconds, _MIN_RATE)
        seconds -= phase.seconds
    return max(phases[-1].last, _MIN_RATE)


class Addresses:
    """The addresses in a file, one of them at random each time, as a Service chooses."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = 0.0
        self._known: list[str] = []

    def __call__(self) -> str | None:
        """An address; None without any."""
        changed = self._path.stat().st_mtime
        if changed != self._changed:
            self._changed, self._known = changed, self._path.read_text().split()
        return random.choice(self._known) if self._known else None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m e2e.compare.paced_load", description=(__doc__ or ""))
    parser.add_argument("file", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("phases", type=parse_phases)
    parser.add_argument("--path", default="/")
    chosen = parser.parse_args()
    before_all_others()
    load = Load(Addresses(chosen.file), chosen.port, lambda seconds: rate_at(chosen.phases, seconds), chosen.path)
    asyncio.run(until_stopped(load))
    lines = [(at, f"{milliseconds:.1f}") for at, milliseconds in load.answered] + [(at, "-") for at in load.failed]
    for at, took in sorted(lines):
        print(f"{at:.3f} {took}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
