"""Two programs side by side on one node of Stefanakis': unpinned, packed, spread, and as WorkloadAware places them.

Run ``python -m concerto.simulation.studies.colocation``. The machine is node-4 of Stefanakis (2 sockets x 5 cores x 2
threads). The module `interference` models how long programs take. Three numbers of each program are fitted to its six
figures of table 8.1 (alone, packed and spread, with 2, 4 and 8 threads), and to nothing else. How well the model
reproduces Stefanakis' classes is printed first. The production allocator places the programs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from statistics import mean, median

from concerto.pinning.allocator import allocate
from concerto.pinning.classification import WORKLOAD_TYPES, Class, Slowdowns, classify
from concerto.pinning.conflicts import Claim
from concerto.pinning.occupancy import Features, Occupancy, WorkloadType
from concerto.pinning.topology import TopologyIndex, bits
from concerto.simulation.studies.interference import (
    CORES,
    SIZES,
    SOCKETS,
    THREADS,
    Program,
    alone,
    fit,
    packed,
    spread,
    times,
    vanilla,
)
from concerto.simulation.studies.machines import regular

# Stefanakis, table 8.1: slowdown packed and spread with 2, 4 and 8 threads
TABLE: dict[str, tuple[tuple[str, str], tuple[str, str], tuple[str, str]]] = {
    "canneal": (("0.78", "1.59"), ("0.83", "1.04"), ("0.90", "0.96")),
    "ferret": (("0.87", "0.96"), ("0.87", "0.92"), ("1.09", "0.84")),
    "fluidanimate": (("0.80", "0.98"), ("0.98", "1.00"), ("1.15", "0.88")),
    "freqmine": (("0.88", "0.94"), ("0.96", "0.95"), ("1.35", "1.00")),
    "ga": (("0.98", "0.98"), ("1.01", "0.98"), ("1.68", "0.91")),
    "in-mem": (("0.98", "1.02"), ("0.98", "1.01"), ("1.31", "0.96")),
    "stream": (("0.83", "0.94"), ("1.44", "0.94"), ("1.16", "0.97")),
    "streamcluster": (("0.79", "0.98"), ("0.86", "0.98"), ("0.91", "0.85")),
}
Kinds = dict[tuple[str, int], Class]
"""Class of each row of the table, by program and threads."""
CHOICES = (
    "both packed",
    "both spread",
    "WorkloadAware",
    "all labelled cpu-bound",
    "all labelled memory-bound",
    "with PhysicalCores",
)
"""Placements to compare: Stefanakis' static policies, which know no classes; the allocator with the right labels, with
one label for all, and with the feature PhysicalCores."""

# Change of the mean slowdown by WorkloadAware against vanilla, for the figures of Stefanakis, section 8.2
REPORTED: dict[str, str] = {
    "PackedFriendly + PackedFriendly": "-16, -10 %",
    "SpreadFriendly + SpreadFriendly": "-14, -28 %",
    "PackedFriendly + SpreadFriendly": "-11, 0, -5 %",
    "Agnostic + PackedFriendly": "-8, -18 %",
    "Agnostic + SpreadFriendly": "slightly less",
    "Agnostic + Agnostic": "-3 %",
}


@dataclass(frozen=True)
class Pair:
    """Two programs on one node.

    Attributes:
        programs: name and threads of each.
        classes: of the two, in alphabetical order.
        roomy: whether there is a core for each thread.
        unpinned: slowdown (mean of both programs, against each alone and unpinned) when it is unpinned.
        ratios: by choice, the slowdown over the unpinned one; None where the pair does not fit.
        mislabelled: the same for the allocator, with one program's label wrong (mean of the two ways), and both.
    """

    programs: tuple[tuple[str, int], tuple[str, int]]
    classes: str
    roomy: bool
    unpinned: float
    ratios: dict[str, float | None]
    mislabelled: tuple[float, float]

    @property
    def group(self) -> str:
        """Pairs of the same classes that do or do not have a core for each thread."""
        return f"{self.classes}, {'a core for each thread' if self.roomy else 'more threads than cores'}"


@dataclass(frozen=True)
class Found:
    """The result.

    Attributes:
        programs: as fitted.
        classes: rows of table 8.1 whose class the model reproduces.
        directions: rows for which it reproduces whether packed or spread is better.
        error: median distance of a slowdown from the table's.
        pairs: all pairs of rows.
    """

    programs: dict[str, Program]
    classes: int
    directions: int
    error: float
    pairs: tuple[Pair, ...]

    def change(self, choice: str, group: str = "") -> float:
        """Mean change of the slowdown against unpinned, of the pairs of a group (or class pair) that fit."""
        ratios = [p.ratios[choice] for p in self.pairs if p.group.startswith(group)]
        fitting = [ratio for ratio in ratios if ratio is not None]
        return mean(fitting) - 1 if fitting else math.nan

    def cost(self, wrong: int) -> float:
        """Mean change of the slowdown against unpinned with that many wrong labels (1 or 2) in each pair."""
        return mean(pair.mislabelled[wrong - 1] for pair in self.pairs) - 1


def kind_of(slowdowns: tuple[float, float]) -> Class:
    """The class by Stefanakis' algorithm 1, to two decimals as the table has them."""
    return classify(Slowdowns(*(Decimal(f"{value:.2f}") for value in slowdowns)))


def placed(
    index: TopologyIndex, kinds: Sequence[WorkloadType], sizes: Sequence[int], features: Features
) -> list[list[int]] | None:
    """CPUs that the production allocator gives programs one after the other; None if one does not fit."""
    claims: list[Claim] = []
    found = []
    for kind, size in zip(kinds, sizes):
        placement = allocate(Occupancy(index, claims=tuple(claims)), kind, size, features)
        if placement is None:
            return None
        claims.append(Claim(placement.cpus, placement.level))
        found.append(list(bits(placement.cpus)))
    return found


def static(order: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Placements that know no classes: programs take the CPUs of an order one after the other."""
    left = list(order)
    found = []
    for size in sizes:
        found.append(left[:size])
        left = left[size:]
    return found


def label_of(kind: Class) -> WorkloadType:
    """The workload type of a class."""
    return "memory-bound" if WORKLOAD_TYPES[kind] == "memory-bound" else "cpu-bound"


_OTHER: dict[WorkloadType, WorkloadType] = {"cpu-bound": "memory-bound", "memory-bound": "cpu-bound"}


def compare(
    index: TopologyIndex, programs: Mapping[str, Program], pair: tuple[tuple[str, int], tuple[str, int]], kinds: Kinds
) -> Pair:
    """Run a pair under all choices."""
    running = [(programs[name], size) for name, size in pair]
    sizes = [size for _, size in pair]
    alone_seconds = [vanilla([each])[0] for each in running]

    def slowdown(seconds: Iterable[float]) -> float:
        return mean(t / b for t, b in zip(seconds, alone_seconds))

    unpinned_slowdown = slowdown(vanilla(running))

    def ratio(cpus: Sequence[Sequence[int]] | None) -> float | None:
        if cpus is None:
            return None
        return slowdown(times([(program, each) for (program, _), each in zip(running, cpus)])) / unpinned_slowdown

    def labelled(*labels: WorkloadType, physical_cores: bool = False) -> float | None:
        return ratio(placed(index, labels, sizes, Features(physical_cores=physical_cores)))

    own = [label_of(kinds[each]) for each in pair]
    everything = 2 * SOCKETS * CORES
    choices = (
        ratio(static(packed(everything), sizes)),
        ratio(static(spread(everything), sizes)),
        labelled(*own),
        labelled("cpu-bound", "cpu-bound"),
        labelled("memory-bound", "memory-bound"),
        labelled(*own, physical_cores=True),
    )
    wrong = [labelled(_OTHER[own[0]], own[1]), labelled(own[0], _OTHER[own[1]]), labelled(*(_OTHER[o] for o in own))]
    assert None not in wrong, "all pairs fit without PhysicalCores"
    first, second, both = (float(each or 0.0) for each in wrong)
    return Pair(
        pair,
        " + ".join(sorted(kinds[each] for each in pair)),
        sum(sizes) <= SOCKETS * CORES,
        unpinned_slowdown,
        dict(zip(CHOICES, choices, strict=True)),
        ((first + second) / 2, both),
    )


def evaluate() -> Found:
    """Fit, compare the classes, and run all pairs of rows of the table."""
    index = TopologyIndex.build(regular(SOCKETS, CORES, THREADS))
    programs = {name: fit(rows) for name, rows in TABLE.items()}
    kinds: Kinds = {}
    classes, directions, apart = 0, 0, []
    for name, rows in TABLE.items():
        for size, row in zip(SIZES, rows):
            modelled, measured = alone(programs[name], size), (float(row[0]), float(row[1]))
            kinds[name, size] = kind_of(measured)
            classes += kind_of(modelled) == kinds[name, size]
            directions += (modelled[0] <= modelled[1]) == (measured[0] <= measured[1])
            apart += [abs(m - t) for m, t in zip(modelled, measured)]
    pairs = itertools.combinations_with_replacement(kinds, 2)
    compared = tuple(compare(index, programs, pair, kinds) for pair in pairs)
    return Found(programs, classes, directions, median(apart), compared)


def render(found: Found) -> str:
    """The result as tables of Markdown: means by group, means over all pairs, and what wrong labels cost."""
    lines = [
        f"Table 8.1 by the model: the better of packed and spread is the same in {found.directions} of 24 rows, the",
        f"class in {found.classes}; the median error of a slowdown is {found.error:.3f}.",
        "",
        f"| pairs | number | unpinned, against alone | {' | '.join(CHOICES)} | Stefanakis |",
        f"| --- | ---: | ---: | {' | '.join('---:' for _ in CHOICES)} | --- |",
    ]
    for name in sorted({pair.group for pair in found.pairs}):
        lines.append(_row(found, name, [pair for pair in found.pairs if pair.group == name]))
    lines.append(_row(found, "", list(found.pairs)))
    lines += [
        "",
        f"Labels: right {100 * found.change('WorkloadAware'):+.1f} %, one of two wrong {100 * found.cost(1):+.1f} %, "
        f"both wrong {100 * found.cost(2):+.1f} % (mean of all pairs, against unpinned).",
    ]
    return "\n".join(lines)


def render_classes(found: Found) -> str:
    """Means by pair of classes: the better of the policies that know no classes beside the allocator with labels."""
    lines = [
        "| classes | number | unpinned | both packed | both spread | best of the three | WorkloadAware |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for classes in sorted({pair.classes for pair in found.pairs}):
        static = (0.0, found.change("both packed", classes), found.change("both spread", classes))
        own = found.change("WorkloadAware", classes)
        number = sum(pair.classes == classes for pair in found.pairs)
        cells = " | ".join(f"{100 * change:+.1f} %" for change in (*static, min(static), own))
        lines.append(f"| {classes} | {number} | {cells} |")
    return "\n".join(lines)


def _row(found: Found, name: str, pairs: Sequence[Pair]) -> str:
    cells = []
    for choice in CHOICES:
        fitting = sum(pair.ratios[choice] is not None for pair in pairs)
        of = "" if fitting == len(pairs) else f" ({fitting} fit)"
        cells.append(f"{100 * found.change(choice, name):+.1f} %{of}" if fitting else "none fits")
    reported = REPORTED[pairs[0].classes] if name else ""
    unpinned_mean = f"{mean(pair.unpinned for pair in pairs):.2f}"
    return f"| {' | '.join([name or 'all', str(len(pairs)), unpinned_mean, *cells, reported])} |"


def render_pairs(found: Found) -> str:
    """Each pair, as in Stefanakis' figure 8.2.13: changes of the slowdown against unpinned."""
    lines = [f"| pair | classes | {' | '.join(CHOICES)} |", f"| --- | --- | {' | '.join('---:' for _ in CHOICES)} |"]
    for pair in found.pairs:
        name = " + ".join(f"{program}-{threads}" for program, threads in pair.programs)
        cells = ["-" if r is None else f"{100 * (r - 1):+.0f} %" for r in pair.ratios.values()]
        lines.append(f"| {' | '.join([name, pair.classes, *cells])} |")
    return "\n".join(lines)


def main() -> int:
    """Evaluate, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(prog="python -m concerto.simulation.studies.colocation", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--pairs", action="store_true", help="print every pair, as Stefanakis' figure 8.2.13")
    parser.add_argument("--classes", action="store_true", help="print the means by pair of classes")
    arguments = parser.parse_args()
    found = evaluate()
    print(render(found))
    if arguments.classes:
        print(render_classes(found))
    if arguments.pairs:
        print(render_pairs(found))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(asdict(found), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
