"""Load-aware scores against kube-scheduler's, where requests are wrong: a day of pods whose use varies.

Run ``python -m concerto.simulation.studies.load_study``. Pods come and go; what each uses follows a column of a trace
of CPU use (``--trace``: a CSV with one column for each machine, percent, a row for each 5 minutes), or bursts. Each
minute nodes publish their windows and waiting pods are placed by the production cycle, under profiles that differ in
their scores alone. A node is hot while its pods want more than 80 % of its CPU.
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
from concerto.api.node import NodeView
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus, Window
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.score_arguments import LoadVariationRiskBalancingArgs, ScoreSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState

Floats = NDArray[np.float64]

POLICIES: dict[str, tuple[ScoreSettings, ...]] = {
    "kube-scheduler's": (ScoreSettings("NodeResourcesFit"), ScoreSettings("NodeResourcesBalancedAllocation")),
    "random": (),
    "TargetLoadPacking": (ScoreSettings("TargetLoadPacking"),),
    "LoadVariationRiskBalancing (KEP)": (ScoreSettings("LoadVariationRiskBalancing"),),
    "LoadVariationRiskBalancing (Upstream)": (
        ScoreSettings(
            "LoadVariationRiskBalancing", load_variation_risk_balancing=LoadVariationRiskBalancingArgs("Upstream")
        ),
    ),
    "LowRiskOverCommitment": (ScoreSettings("LowRiskOverCommitment"),),
}
_FILTERS = ("NodeResources",)
_GIB = 2**30


@dataclass(frozen=True)
class StudySettings:
    """What is the same for every policy.

    Attributes:
        nodes: of 4 cores each.
        minutes: of the day; figures are taken after the first hour.
        pods: that live at once, about.
        life_minutes: of a pod, on the average.
        mean_cores: that a pod uses, on the average.
        wrong_by: requests are the pod's mean use times something between 1 / this and this, evenly on a logarithm.
        hot: part of a node's CPU above which it is hot.
    """

    nodes: int = 20
    minutes: int = 720
    pods: int = 160
    life_minutes: float = 90.0
    mean_cores: float = 0.25
    wrong_by: float = 4.0
    hot: float = 0.8


@dataclass(frozen=True)
class Figures:
    """What came of one policy.

    Attributes:
        hot_percent: of all minutes of all nodes.
        spread: standard deviation of utilisation over nodes, percent of a node, mean over time.
        peak: 99th percentile of utilisation, percent of a node; above 100 pods want what there is not.
        waiting_percent: of pods that wait for a place.
    """

    hot_percent: float
    spread: float
    peak: float
    waiting_percent: float


def read_trace(path: Path) -> Floats:
    """Columns of a trace as demand by minute, with mean 1 each; shape (machines, minutes)."""
    with path.open() as file:
        rows = [[float(cell) for cell in row[1:]] for row in list(csv.reader(file))[1:]]
    return _scaled(np.repeat(np.array(rows).T, 5, axis=1))


def bursts(generator: np.random.Generator, machines: int = 120, minutes: int = 1440) -> Floats:
    """Machines that idle, and now and then for some minutes use ten times as much; mean 1 each."""
    busy = np.zeros((machines, minutes), dtype=np.bool_)
    state = generator.random(machines) < 0.2
    for minute in range(minutes):
        flips = generator.random(machines) < np.where(state, 1 / 6, 1 / 24)
        state = state ^ flips
        busy[:, minute] = state
    return _scaled(np.where(busy, 10.0, 1.0))


def _scaled(demand: Floats) -> Floats:
    mean = demand.mean(axis=1, keepdims=True)
    scaled: Floats = (demand / np.where(mean > 0, mean, 1.0))[mean[:, 0] > 0]
    return scaled


def run(settings: StudySettings, demand: Floats, scores: tuple[ScoreSettings, ...], seed: int) -> Figures:
    """One day of one policy; the same seed gives every policy the same pods."""
    arrivals, ties = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    profiles = {"study": Profile.build(ProfileSettings("study", filters=_FILTERS, scores=scores))}
    cluster = ClusterState()
    for node in range(settings.nodes):
        allocatable = {"cpu": 4000, "memory": 64 * _GIB, "pods": 250}
        cluster.set_node(NodeView(f"n{node}", f"n{node}", {}, allocatable))
    uses: dict[str, Floats] = {}  # by UID, from the minute on which it starts
    where: dict[str, tuple[int, int]] = {}
    ends: dict[str, int] = {}
    waiting: dict[str, PodView] = {}
    lives: dict[str, int] = {}
    history = np.zeros((settings.minutes, settings.nodes))
    waited = 0
    for minute in range(settings.minutes):
        now = 1000.0 + 60.0 * minute
        for uid in [u for u, end in ends.items() if end <= minute]:
            cluster.remove_pod(uid)
            del ends[uid], where[uid], uses[uid]
        first = settings.pods if minute == 0 else 0
        for index in range(first + arrivals.poisson(settings.pods / settings.life_minutes)):
            uid = f"{minute}-{index}"
            mean = settings.mean_cores * arrivals.lognormal(-0.125, 0.5)
            machine, offset = arrivals.integers(len(demand)), arrivals.integers(demand.shape[1])
            uses[uid] = mean * np.roll(demand[machine], -offset)
            factor = np.exp(arrivals.uniform(-1, 1) * np.log(settings.wrong_by))
            lives[uid] = 1 + int(arrivals.exponential(settings.life_minutes))
            waiting[uid] = _pod(uid, max(5, 5 * round(mean * factor * 200)), now)
        for decision in schedule(cluster, list(waiting.values()), profiles, now=now, generator=ties).decisions:
            uid, row = decision.pod.uid, cluster.row_of[decision.assignment.node]
            del waiting[uid]
            where[uid], ends[uid] = (row, minute), minute + lives.pop(uid)
            cluster.set_pod(replace(decision.pod, node_name=decision.assignment.node, started=now), now)
        waited += len(waiting)
        for uid, (row, since) in where.items():
            history[minute, row] += uses[uid][(minute - since) % len(uses[uid])] / 4.0
        _publish(cluster, history[max(0, minute - 4) : minute + 1], where, now + 60.0, minute)
    counted = history[60:]
    return Figures(
        hot_percent=100.0 * float((counted > settings.hot).mean()),
        spread=100.0 * float(counted.std(axis=1).mean()),
        peak=100.0 * float(np.percentile(counted, 99)),
        waiting_percent=100.0 * waited / max(1, waited + settings.pods * settings.minutes),
    )


def _pod(uid: str, millicores: int, now: float) -> PodView:
    raw: dict[str, Any] = {
        "metadata": {"namespace": "default", "name": uid, "uid": uid},
        "spec": {
            "schedulerName": "study",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": f"{millicores}m", "memory": "64Mi"}}}],
        },
    }
    return replace(PodView.from_raw(raw), created=now)


def _publish(cluster: ClusterState, past: Floats, where: dict[str, tuple[int, int]], now: float, version: int) -> None:
    """Every node says what it measured over the last five minutes, and which pods it has seen."""
    observed: list[list[str]] = [[] for _ in range(past.shape[1])]
    for uid, (row, _) in where.items():
        observed[row].append(uid)
    measured = np.minimum(past, 1.0)
    for node in range(past.shape[1]):
        own = measured[:, node]
        covered = 60 * len(own)
        windows = (
            Window("cpu", "5m", float(own.mean()), float(own.std()), float(own[-1]), covered),
            Window("memory", "5m", 0.0, 0.0, 0.0, covered),
        )
        status = NodeCapacityStatus(
            now, 1, AgentInfo("study", "study", "Machine", "Inotify"), 1e3, "Quiet", 1.0, 1.0, 0.1,
            len(observed[node]), 0, tuple(observed[node]), 1.0, windows=windows,
        )  # fmt: skip
        cluster.set_capacity(NodeCapacity(f"n{node}", "", str(version + 1), 1, CapacitySettings(), status), now)


def study(settings: StudySettings, demand: Floats, seeds: int) -> dict[str, Figures]:
    """Means over seeds, by policy."""
    figures = {}
    for name, scores in POLICIES.items():
        runs = [asdict(run(settings, demand, scores, seed)) for seed in range(seeds)]
        figures[name] = Figures(**{key: float(np.mean([r[key] for r in runs])) for key in runs[0]})
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m concerto.simulation.studies.load_study", description=__doc__)
    parser.add_argument("--trace", type=Path, help="CSV of CPU percent by machine and 5 minutes; default: bursts")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--wrong-by", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument(
        "--minutes", type=int, default=StudySettings.minutes, help="of the day; the first hour is left out"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args(argv)
    demand = read_trace(args.trace) if args.trace else bursts(np.random.default_rng(0))
    document = {}
    for wrong_by in args.wrong_by:
        done = study(StudySettings(minutes=args.minutes, wrong_by=wrong_by), demand, args.seeds)
        document[f"requests wrong by up to x{wrong_by:g}"] = {name: asdict(f) for name, f in done.items()}
        print(f"requests wrong by up to x{wrong_by:g}, {args.seeds} seeds")
        print(f"{'scores':40} {'hot %':>7} {'spread':>7} {'p99':>7} {'waiting %':>10}")
        for name, f in done.items():
            print(f"{name:40} {f.hot_percent:7.2f} {f.spread:7.1f} {f.peak:7.1f} {f.waiting_percent:10.2f}", flush=True)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
