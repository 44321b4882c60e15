"""`concerto classify`: which workload type a program is, from times that were measured in three configurations."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path

from concerto.pinning.classification import LABEL, THRESHOLD, WORKLOAD_TYPES, Class, Slowdowns, classify

_CONFIGURATIONS = ("vanilla", "packed", "spread")
_SHOWN = Decimal("0.01")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto classify`."""
    parser.add_argument(
        "csv",
        help="file (- for standard input) with the columns workload, vanilla, packed and spread: times, in any one "
        "unit; lines of the same workload are its repetitions",
    )
    parser.add_argument(
        "--threshold", type=_decimal, default=THRESHOLD, help="slowdowns this near are the same (default: %(default)s)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="leave out the first N repetitions (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Print one line a workload."""
    try:
        if args.csv == "-":
            times = read_times(sys.stdin)
        else:
            with Path(args.csv).open(newline="") as file:
                times = read_times(file)
        found = {name: slowdowns(each[args.warm_up :], name) for name, each in times.items()}
    except (OSError, ValueError) as error:
        print(f"concerto classify: {error}", file=sys.stderr)
        return 2
    width = max((len(name) for name in found), default=0)
    for name, each in found.items():
        print(line(name.ljust(width), each, classify(each, args.threshold)))
    return 0


def read_times(lines: Iterable[str]) -> dict[str, list[tuple[Decimal, ...]]]:
    """Times (vanilla, packed, spread) of each workload, one for each repetition, in the order of the file.

    Raises:
        ValueError: a column is missing, or a time is no positive number; the message names the line.
    """
    reader = csv.DictReader(lines)
    missing = {"workload", *_CONFIGURATIONS} - set(reader.fieldnames or ())
    if missing:
        raise ValueError(f"no column {', '.join(sorted(missing))}; there must be workload, vanilla, packed and spread")
    times: dict[str, list[tuple[Decimal, ...]]] = {}
    for row in reader:
        try:
            each = tuple(_decimal(row[c] or "") for c in _CONFIGURATIONS)
        except ValueError as error:
            raise ValueError(f"line {reader.line_num}: {error}") from error
        times.setdefault(row["workload"], []).append(each)
    return times


def slowdowns(times: list[tuple[Decimal, ...]], workload: str) -> Slowdowns:
    """Mean times over the vanilla one's.

    Raises:
        ValueError: no repetition is left.
    """
    if not times:
        raise ValueError(f"{workload}: no repetition is left after the warm-up")
    vanilla, packed, spread = (sum(each, Decimal(0)) for each in zip(*times))
    return Slowdowns(packed / vanilla, spread / vanilla)


def line(name: str, found: Slowdowns, kind: Class) -> str:
    """What is told of one workload: slowdowns, class, and the label to put on its pods."""
    label = f"{LABEL}={WORKLOAD_TYPES[kind]}" if kind in WORKLOAD_TYPES else "no label"
    if kind == "IsolationFriendly":
        label += ", exclusiveness Core"
    shown = f"packed {found.packed.quantize(_SHOWN)}  spread {found.spread.quantize(_SHOWN)}"
    return f"{name}  {shown}  {kind:<17}  {label}"


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no number") from error
    if not (value.is_finite() and value > 0):
        raise ValueError(f"{text!r} is not a positive number")
    return value
