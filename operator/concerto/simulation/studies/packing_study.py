"""What TargetLoadPacking is for: nodes held near a target, machines saved, and no node far beyond.

Run ``python -m concerto.simulation.studies.packing_study --trace PLANETLAB --pods OPENB_PODS --nodes OPENB_NODES``.
Machines have the sizes of openb's nodes. Pods come at an even rate, with the lives and the relative sizes of openb's
pods, scaled to a mean use that leaves a node some hundred of them. What each uses follows a column of PlanetLab's use
of CPU. Each minute a metric provider publishes each node's mean use, and the production cycle places the waiting pods.
Without files, pods burst and have sizes and lives from distributions.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.metric_provider import MetricProviderSettings
from concerto.api.node import NodeView
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.score_arguments import ScoreSettings, TargetLoadPackingArgs
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.provided_load import Series
from concerto.simulation.studies.load_study import bursts, read_trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_GIB = 2**30
_NAME = "study"
_BAND = 0.05
_MOMENT_SECONDS = 1e-3


@dataclass(frozen=True)
class PackingSettings:
    """The cluster, its pods, and what is asked of the scheduler.

    Attributes:
        nodes: machines.
        min_cores: machines with fewer are left out: they hold too few pods for their use to even out.
        load: cpu that all pods use on the average, in parts of all machines.
        mean_cores: that a pod uses, on the average.
        target: X, percent.
        wrong_by: requests are the pod's mean use times something between 1 / this and this, evenly on a logarithm.
        minutes: that are simulated; figures are of those after ``warm_up``.
        warm_up: minutes until lives and placements have settled.
        longest_life: of a pod, minutes.
        window: minutes over which the provider's means are. 0: the pods' present use, which no real provider has.
        begins_full: whether as many pods as there are on the average wait at the beginning. Else the cluster is empty
            then, and its load grows.
    """

    nodes: int = 60
    min_cores: int = 64
    load: float = 0.25
    mean_cores: float = 0.1
    target: int = 40
    wrong_by: float = 1.5
    minutes: int = 200
    warm_up: int = 120
    longest_life: int = 240
    window: int = 5
    begins_full: bool = False


@dataclass(frozen=True)
class Traces:
    """What machines and pods are drawn from.

    Attributes:
        demand: use of cpu by minute, with mean 1 each; shape (machines, minutes).
        cores: of machines.
        sizes: of pods, in parts of their mean.
        lives: of pods, minutes.
    """

    demand: Floats
    cores: Ints
    sizes: Floats
    lives: Ints


@dataclass(frozen=True)
class PackingFigures:
    """What came of one policy. Node minutes are those of nodes with at least one pod, after the warm-up.

    Attributes:
        nodes_used: mean number of nodes with pods.
        cores_used: their part of all cores, percent.
        within_percent: of node minutes, that the use of cpu was within 5 points of the target.
        below_percent: of node minutes, that it was more than 5 points below the target.
        beyond_percent: of node minutes, that it was more than 5 points above the target.
        hottest: 99.9th percentile of a node's use, percent.
        waiting: pods that wait for a place, mean.
    """

    nodes_used: float
    cores_used: float
    within_percent: float
    below_percent: float
    beyond_percent: float
    hottest: float
    waiting: float


def policies(settings: PackingSettings) -> dict[str, tuple[ScoreSettings, ...]]:
    """Scores by name."""
    packing = TargetLoadPackingArgs(settings.target)
    return {
        "TargetLoadPacking": (ScoreSettings("TargetLoadPacking", target_load_packing=packing),),
        "LeastAllocated": (ScoreSettings("NodeResourcesFit"),),
        "Capacity": (ScoreSettings("Capacity"),),
    }


def read_traces(trace: Path | None, pods: Path | None, nodes: Path | None, settings: PackingSettings) -> Traces:
    """Public traces, or distributions in the place of those that are not given."""
    generator = np.random.default_rng(0)
    demand = read_trace(trace) if trace is not None else bursts(generator)
    cores, sizes = np.full(1, 64), generator.lognormal(-0.125, 0.5, 1000)
    lives = generator.exponential(60.0, 1000)
    if nodes is not None:
        cores = np.array([int(row["cpu_milli"]) // 1000 for row in _rows(nodes)], dtype=np.int64)
        cores = cores[cores >= settings.min_cores]
    if pods is not None:
        rows = _rows(pods)
        sizes = np.array([float(row["cpu_milli"]) for row in rows])
        lives = np.array([float(row["deletion_time"]) - float(row["creation_time"]) for row in rows]) / 60.0
    whole = np.clip(np.ceil(lives), 1, settings.longest_life).astype(np.int64)
    return Traces(demand, cores, sizes / sizes.mean(), whole)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


class _Pods:
    """The pods of a run, as columns."""

    def __init__(self, traces: Traces, settings: PackingSettings, generator: np.random.Generator) -> None:
        self._traces = traces
        self._settings = settings
        self._generator = generator
        self.waiting: dict[str, PodView] = {}
        self.row: list[int] = []
        self.since: list[int] = []
        self.mean: list[float] = []
        self.machine: list[int] = []
        self.offset: list[int] = []
        self.life: list[int] = []
        self.end: list[int] = []

    def begin(self, count: int, now: float) -> None:
        """So many pods wait that would have lived for some time by now."""
        lives = self._traces.lives
        chosen = self._generator.choice(lives, count, p=lives / lives.sum())
        self._add(self._generator.integers(1, chosen + 1), now)

    def arrive(self, count: int, now: float) -> None:
        """So many more pods wait."""
        self._add(self._generator.choice(self._traces.lives, count), now)

    def _add(self, lives: Ints, now: float) -> None:
        traces, settings, generator = self._traces, self._settings, self._generator
        for life in lives.tolist():
            index = len(self.row)
            mean = settings.mean_cores * float(generator.choice(traces.sizes))
            self.mean.append(mean)
            self.machine.append(int(generator.integers(len(traces.demand))))
            self.offset.append(int(generator.integers(traces.demand.shape[1])))
            self.life.append(life)
            self.row.append(-1)
            self.since.append(-1)
            self.end.append(-1)
            factor = np.exp(generator.uniform(-1, 1) * np.log(settings.wrong_by))
            # Pods of one size are decided together
            self.waiting[str(index)] = _pod(str(index), max(10, 20 * round(mean * factor * 50)), now)

    def place(self, uid: str, row: int, minute: int) -> PodView:
        """The pod is on that row from now on."""
        index = int(uid)
        self.row[index], self.since[index] = row, minute
        self.end[index] = minute + self.life[index]
        return self.waiting.pop(uid)

    def ended(self, minute: int) -> list[str]:
        """Pods whose life is over."""
        return [str(index) for index in np.flatnonzero(np.array(self.end) == minute)]

    def use(self, minute: int, width: int) -> Floats:
        """Cores that running pods use, by row."""
        since, end = np.array(self.since), np.array(self.end)
        running = np.flatnonzero((since >= 0) & (end > minute))
        age = minute - since[running]
        at = (np.array(self.offset)[running] + age) % self._traces.demand.shape[1]
        used = np.array(self.mean)[running] * self._traces.demand[np.array(self.machine)[running], at]
        return np.bincount(np.array(self.row)[running], used, width).astype(np.float64)

    def running(self, minute: int, width: int) -> list[list[str]]:
        """UIDs by row."""
        since, end = np.array(self.since), np.array(self.end)
        found: list[list[str]] = [[] for _ in range(width)]
        for index in np.flatnonzero((since >= 0) & (end > minute)).tolist():
            found[self.row[index]].append(str(index))
        return found


def run(
    settings: PackingSettings, traces: Traces, scores: tuple[ScoreSettings, ...], seed: int
) -> tuple[PackingFigures, Floats]:
    """One policy; the same seed gives every policy the same machines and pods.

    Returns:
        Its figures, and the use of cpu by minute and node, NaN where a node has no pod.
    """
    generator, ties = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    cores = generator.choice(traces.cores, settings.nodes)
    reads_capacity = any(score.name == "Capacity" for score in scores)
    cluster, profiles = ClusterState(), {_NAME: _profile(settings, scores)}
    for node in range(settings.nodes):
        allocatable = {"cpu": 1000 * int(cores[node]), "memory": 2**50, "pods": 10_000}
        cluster.set_node(NodeView(f"n{node}", f"n{node}", {}, allocatable))
    pods = _Pods(traces, settings, generator)
    population = settings.load * cores.sum() / settings.mean_cores
    arrivals = population / traces.lives.mean()
    history = np.zeros((settings.minutes, settings.nodes))
    occupied = np.zeros((settings.minutes, settings.nodes), dtype=np.bool_)
    waited = np.zeros(settings.minutes)
    if settings.begins_full:
        pods.begin(round(population), 1000.0)
    if not reads_capacity:
        _provide(cluster, np.zeros((1, settings.nodes)), 1000.0)
    for minute in range(settings.minutes):
        now = 1000.0 + 60.0 * minute
        for uid in pods.ended(minute):
            cluster.remove_pod(uid)
        pods.arrive(int(generator.poisson(arrivals)), now)
        if settings.window == 0 and not reads_capacity:
            _provide(cluster, pods.use(minute, settings.nodes)[None] / cores, now + _MOMENT_SECONDS, _MOMENT_SECONDS)
        heads = list(pods.waiting.values())
        result = schedule(cluster, heads, profiles, now=now, generator=ties, limit=len(heads))
        for decision in result.decisions:
            uid, row = decision.pod.uid, cluster.row_of[decision.assignment.node]
            pods.place(uid, row, minute)
            cluster.set_pod(replace(decision.pod, node_name=decision.assignment.node, started=now), now)
        waited[minute] = len(pods.waiting)
        history[minute] = pods.use(minute, settings.nodes) / cores
        running = pods.running(minute, settings.nodes)
        occupied[minute] = [len(uids) > 0 for uids in running]
        measured = np.minimum(history[max(0, minute + 1 - max(1, settings.window)) : minute + 1], 1.0)
        if reads_capacity:
            left = (1.0 - measured[-1]) * cores / settings.mean_cores
            _publish(cluster, left, running, now + 60.0, minute)
        elif settings.window > 0:
            _provide(cluster, measured, now + 60.0)
    use = np.where(occupied, history, np.nan)
    return _figures(settings, use[settings.warm_up :], cores, waited[settings.warm_up :]), use


def _profile(settings: PackingSettings, scores: tuple[ScoreSettings, ...]) -> Profile:
    reads_capacity = any(score.name == "Capacity" for score in scores)
    return Profile.build(
        ProfileSettings(
            _NAME,
            filters=("NodeResources",),
            scores=scores,
            tie_breaking="FirstByName",
            load=LoadSettings(request_multiplier=1.0, provider="" if reads_capacity else _NAME),
            metric_provider=MetricProviderSettings("Agents" if reads_capacity else "Prometheus"),
        )
    )


def _figures(settings: PackingSettings, use: Floats, cores: Ints, waited: Floats) -> PackingFigures:
    there = ~np.isnan(use)
    node_minutes = use[there]
    target = settings.target / 100.0
    return PackingFigures(
        nodes_used=float(there.sum(axis=1).mean()),
        cores_used=100.0 * float((there * cores).sum(axis=1).mean() / cores.sum()),
        within_percent=100.0 * float((np.abs(node_minutes - target) <= _BAND).mean()),
        below_percent=100.0 * float((node_minutes < target - _BAND).mean()),
        beyond_percent=100.0 * float((node_minutes > target + _BAND).mean()),
        hottest=100.0 * float(np.percentile(node_minutes, 99.9)),
        waiting=float(waited.mean()),
    )


def _provide(cluster: ClusterState, use: Floats, now: float, row_seconds: float = 60.0) -> None:
    """A metric provider publishes the mean use of every node over the last rows of ``use``."""
    means = {f"n{node}": (float(value), now) for node, value in enumerate(use.mean(axis=0))}
    cluster.provide(_NAME, [Series("cpu", "average", means, row_seconds * len(use))], now)


def _publish(cluster: ClusterState, left: Floats, running: list[list[str]], now: float, minute: int) -> None:
    """Every agent publishes how many average pods fit into the cpu that is idle."""
    for node, uids in enumerate(running):
        status = NodeCapacityStatus(
            now, 1, AgentInfo(_NAME, _NAME, "Machine", "Inotify"), float(left[node]), "Quiet", 1.0, 1.0, 0.1,
            len(uids), 0, tuple(uids), 1.0,
        )  # fmt: skip
        cluster.set_capacity(NodeCapacity(f"n{node}", "", str(minute + 1), 1, CapacitySettings(), status), now)


def _pod(uid: str, millicores: int, now: float) -> PodView:
    amounts = {"cpu": f"{millicores}m", "memory": "64Mi"}
    raw: dict[str, Any] = {
        "metadata": {"namespace": "default", "name": uid, "uid": uid},
        "spec": {"schedulerName": _NAME, "containers": [{"name": "main", "resources": {"requests": amounts}}]},
    }
    return replace(PodView.from_raw(raw), created=now)


def study(settings: PackingSettings, traces: Traces, seeds: int) -> dict[str, PackingFigures]:
    """Means over seeds, by policy."""
    figures = {}
    for name, scores in policies(settings).items():
        runs = [asdict(run(settings, traces, scores, seed)[0]) for seed in range(seeds)]
        figures[name] = PackingFigures(**{key: float(np.mean([r[key] for r in runs])) for key in runs[0]})
    return figures


def within_percent_of_pods_that_stay(settings: PackingSettings, traces: Traces, seed: int = 0) -> float:
    """Percent of node minutes within the band on machines whose pods stay, and have mean uses that add up to X.

    What is missing to 100 is the pods' own variation, and not the scheduler's.
    """
    generator = np.random.default_rng(seed)
    target = settings.target / 100.0
    minutes = np.arange(settings.minutes)
    within = 0
    for cores in generator.choice(traces.cores, settings.nodes).tolist():
        count = round(target * cores / settings.mean_cores)
        sizes = generator.choice(traces.sizes, count)
        machines, offsets = generator.integers(traces.demand.shape, size=(count, 2)).T
        demand = traces.demand[machines[:, None], (offsets[:, None] + minutes) % traces.demand.shape[1]]
        use = target * (sizes @ demand) / sizes.sum()
        within += int(np.count_nonzero(np.abs(use - target) <= _BAND))
    return 100.0 * within / (settings.nodes * settings.minutes)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m concerto.simulation.studies.packing_study", description=__doc__)
    parser.add_argument("--trace", type=Path, help="CSV of CPU percent by machine and 5 minutes (PlanetLab)")
    parser.add_argument("--pods", type=Path, help="CSV of pods with cpu_milli, creation_time, deletion_time (openb)")
    parser.add_argument("--nodes", type=Path, help="CSV of nodes with cpu_milli (openb)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures there")
    defaults = PackingSettings()
    parser.add_argument("--target", type=int, default=defaults.target, help="X, percent (default: %(default)s)")
    parser.add_argument("--machines", type=int, default=defaults.nodes, help="default: %(default)s")
    parser.add_argument("--minutes", type=int, default=defaults.minutes, help="default: %(default)s")
    parser.add_argument("--warm-up", type=int, default=defaults.warm_up, help="minutes (default: %(default)s)")
    parser.add_argument("--mean-cores", type=float, default=defaults.mean_cores, help="of a pod (default: %(default)s)")
    parser.add_argument("--window", type=int, default=defaults.window, help="of means, minutes; 0: use is known")
    parser.add_argument("--begin-full", action="store_true", help="begin with as many pods as there are on average")
    args = parser.parse_args(argv)
    settings = PackingSettings(
        nodes=args.machines,
        target=args.target,
        minutes=args.minutes,
        warm_up=args.warm_up,
        mean_cores=args.mean_cores,
        window=args.window,
        begins_full=args.begin_full,
    )
    traces = read_traces(args.trace, args.pods, args.nodes, settings)
    done = study(settings, traces, args.seeds)
    print(f"{settings.nodes} machines, load {100 * settings.load:.0f} % of all, target X = {settings.target} %")
    stay = within_percent_of_pods_that_stay(settings, traces)
    print(f"machines whose pods stay and use X % on the average are within X ± 5 % in {stay:.1f} % of all minutes")
    print(f"{'scores':20} {'nodes':>6} {'saved':>6} {'within X ± 5 %':>15} {'below':>6} {'above':>6} {'p99.9':>7}")
    for name, f in done.items():
        saved = settings.nodes - f.nodes_used
        print(
            f"{name:20} {f.nodes_used:6.1f} {saved:6.1f} {f.within_percent:14.1f}% {f.below_percent:5.1f}% "
            f"{f.beyond_percent:5.1f}% {f.hottest:6.1f}%"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps({name: asdict(f) for name, f in done.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
