"""`concerto classify`: which workload type a program is, from times in three configurations that are given or taken."""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
import tempfile
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

from concerto.api.arguments import decimal, whole_number
from concerto.api.cpulist import format_cpu_list
from concerto.cli.hardware_counters import counted, describe, find_perf, parse_perf
from concerto.cli.timed_runs import Cpuset, CpusetError
from concerto.linux.cpu_topology import read_topology
from concerto.pinning.allocator import allocate
from concerto.pinning.classification import (
    EXCLUSIVENESS_LABEL,
    LABEL,
    THRESHOLD,
    WORKLOAD_TYPES,
    Class,
    Slowdowns,
    classify,
)
from concerto.pinning.occupancy import Features, Occupancy
from concerto.pinning.topology import TopologyIndex, bits

_CONFIGURATIONS = ("vanilla", "packed", "spread")
_SHOWN = Decimal("0.01")
_FEW_REPETITIONS = 3
"""With fewer repetitions, their agreement is not printed."""
_MAX_DIGITS = 12
"""Before or after the point of a time: quotients of such times are exact enough."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto classify`."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "csv",
        nargs="?",
        help="file (- for standard input) with the columns workload, vanilla, packed and spread: times, in any one "
        "unit; lines of the same workload are its repetitions",
    )
    source.add_argument(
        "--run", dest="measured", metavar="COMMAND", help="measure this command on this machine; needs root"
    )
    parser.add_argument(
        "--threads", type=whole_number(1, 4096, "2"), default=2, help="threads of the command (default: %(default)s)"
    )
    parser.add_argument(
        "--repeat", type=whole_number(1, 1000, "5"), default=5, help="measured repetitions of it (default: %(default)s)"
    )
    parser.add_argument(
        "--threshold",
        type=decimal("0.0001", "100", str(THRESHOLD)),
        default=THRESHOLD,
        help="slowdowns this near are the same (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up",
        type=whole_number(0, 1000, "1"),
        default=0,
        metavar="N",
        help="leave out the first N repetitions (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print one line a workload."""
    try:
        if args.measured is not None:
            times = measure(shlex.split(args.measured), args.threads, args.repeat + args.warm_up)
        elif args.csv == "-":
            times = read_times(sys.stdin)
        else:
            with Path(args.csv).open(newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a mark
                times = read_times(file)
        found = {name: slowdowns(each[args.warm_up :], name) for name, each in times.items()}
    except (OSError, ValueError, CpusetError) as error:
        print(f"concerto classify: {error}", file=sys.stderr)
        return 2
    width = max((len(name) for name in found), default=0)
    for name, each in found.items():
        kind, repetitions = classify(each, args.threshold), times[name][args.warm_up :]
        print(line(name.ljust(width), each, kind) + agreement(repetitions, name, kind, args.threshold))
        if (apart := noise(repetitions)) > args.threshold:
            print(f"{' ' * width}  repetitions lie {apart:.0%} apart, more than the threshold: the class may be chance")
    return 0


def measure(command: list[str], threads: int, times: int) -> dict[str, list[tuple[Decimal, ...]]]:
    """Times of a command on all CPUs, on near ones and on spread ones, in turn so that a slow minute hits all three.

    Raises:
        CpusetError: the CPUs can't be had, or the command fails.
        ValueError: there are too few CPUs, or there is no command.
    """
    if not command:
        raise ValueError("--run needs a command")
    with Cpuset() as cpuset:
        index = TopologyIndex.build(read_topology(Path("/sys")).topology.only(cpuset.available()))
        configurations = [index.online]
        for kind in ("cpu-bound", "memory-bound"):
            # Exclusive of nobody: all CPUs may be taken, as nothing else has to run meanwhile
            placement = allocate(Occupancy(index), kind, threads, Features(), level="None")
            if placement is None:
                raise ValueError(f"{threads} threads do not fit on {index.online.bit_count()} CPUs")
            configurations.append(placement.cpus)
        shown = [format_cpu_list(bits(cpus)) for cpus in configurations]
        if len(set(configurations)) == 1:
            raise ValueError(f"all configurations are CPUs {shown[0]} here: nothing to compare; try fewer threads")
        print(f"vanilla on CPUs {shown[0]}, packed on {shown[1]}, spread on {shown[2]}; {times} runs of each")
        print(f"measured on {describe_machine(Path('/proc/cpuinfo'), index)}")
        if configurations[1] == configurations[2]:
            print("packed and spread are the same here: only what pinning as such does can be seen")
        perf, counts = find_perf(), {c: list[dict[str, float]]() for c in dict.fromkeys(configurations)}
        measured = []
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "counters")
            run_by = command if perf is None else counted(perf, command, output)
            for _ in range(times):
                took = {}
                for each in counts:
                    took[each] = cpuset.seconds(run_by, bits(each), index.mems(each))
                    if perf is not None:
                        counts[each].append(parse_perf(output.read_text()))
                measured.append(tuple(Decimal(f"{took[c]:.6f}") for c in configurations))
    print_counters(perf, {n: counts[c] for n, c in zip(_CONFIGURATIONS, configurations, strict=True)})
    return {Path(command[0]).name: measured}


def print_counters(perf: str | None, counts: Mapping[str, list[dict[str, float]]]) -> None:
    """Print what was counted in each configuration, or that nothing can be."""
    if perf is None:
        print("no hardware counters: perf is not installed, or counts no instructions on this machine")
    for name, each in counts.items():
        if perf is not None and (text := describe(each)):
            print(f"{name}: {text}")


def describe_machine(cpuinfo: Path, index: TopologyIndex) -> str:
    """The processor and its shape, to be kept with the result: a class holds for the machine it was measured on."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    shape = (len(index.sockets), len(index.cores), index.online.bit_count(), len(index.numa))
    return "{}: {} sockets, {} cores, {} CPUs, {} memory nodes".format(model, *shape)


def agreement(times: list[tuple[Decimal, ...]], workload: str, kind: Class, threshold: Decimal) -> str:
    """How many single repetitions give the same class, as text; empty with fewer than `_FEW_REPETITIONS`."""
    if len(times) < _FEW_REPETITIONS:
        return ""
    same = sum(classify(slowdowns([each], workload), threshold) == kind for each in times)
    return f"  {same} of {len(times)} repetitions"


def noise(times: list[tuple[Decimal, ...]]) -> Decimal:
    """How far repetitions of one configuration lie apart, at most, as a share of their mean."""
    apart: list[Decimal] = [(max(each) - min(each)) * len(each) / sum(each, Decimal(0)) for each in zip(*times)]
    return max(apart)


def read_times(lines: Iterable[str]) -> dict[str, list[tuple[Decimal, ...]]]:
    """Times (vanilla, packed, spread) of each workload, one for each repetition, in the order of the file.

    Raises:
        ValueError: a column is missing, there are no times, or one is no positive number; the message names the line.
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
    if not times:
        raise ValueError("no times: there must be a line for each repetition below that of the columns' names")
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
    """The result for one workload: slowdowns, class, and the label for its pods."""
    label = f"{LABEL}={WORKLOAD_TYPES[kind]}" if kind in WORKLOAD_TYPES else "no label"
    if kind == "IsolationFriendly":
        label += f", {EXCLUSIVENESS_LABEL}=Core"
    shown = f"packed {found.packed.quantize(_SHOWN)}  spread {found.spread.quantize(_SHOWN)}"
    return f"{name}  {shown}  {kind:<17}  {label}"


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number") from error
    if not (value.is_finite() and value > 0):
        raise ValueError(f"{text!r} is not a positive number")
    if abs(value.adjusted()) > _MAX_DIGITS:
        raise ValueError(f"{text!r} is not a time that a program can take")
    return value
