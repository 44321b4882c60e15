"""Where pods go while only some nodes are measured.

Run ``python -m concerto.simulation.studies.outage_study``. Ten nodes are full to between 10 and 80 %, as their pods
request. 400 pods are placed by the production cycle while a metric provider knows k of the nodes, for each k. A partial
outage must not be worse than a total one: the fullest node gets no greater share of the pods than where no node is
measured. With ``--limits 2 --deviation 0.1`` the pods that run may use twice what they request, and their use varies.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from concerto.api.metric_provider import MetricProviderSettings
from concerto.api.node import NodeView
from concerto.api.pod import PodView
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.score_arguments import MissingMetrics, ScoreSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.provided_load import RESOURCES, Series

SCORES = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment")
ORDERS = {"the fullest first": slice(None, None, -1), "the emptiest first": slice(None)}
_NOW = 1000.0
_GIB = 2**30


@dataclass(frozen=True)
class OutageSettings:
    """The cluster and what is placed on it.

    Attributes:
        nodes: how many there are.
        cores: of each node; it has 4 GiB of memory for each.
        emptiest: part of the emptiest node that is in use.
        fullest: part of the fullest node that is in use.
        pods: how many are placed, one after the other.
        millicores: that each requests, and is limited to.
        limits: of the pods that run, in parts of their requests.
        deviation: of the load of each node, in parts of the node.
    """

    nodes: int = 10
    cores: int = 16
    emptiest: float = 0.1
    fullest: float = 0.8
    pods: int = 400
    millicores: int = 20
    limits: float = 1.0
    deviation: float = 0.0

    @property
    def names(self) -> list[str]:
        """Of the nodes, the emptiest first."""
        return [f"n{index}" for index in range(self.nodes)]

    @property
    def loads(self) -> dict[str, float]:
        """By name, in whole millicores: load that exceeds the requests by as little as a rounding is a risk."""
        millicores = 1000 * self.cores
        loads = np.linspace(self.emptiest, self.fullest, self.nodes)
        return dict(zip(self.names, (np.round(millicores * loads) / millicores).tolist()))


def place(
    settings: OutageSettings, score: str, measured: Iterable[str], rule: MissingMetrics = "LeastScore"
) -> Counter[str]:
    """Pods by node after the provider has spoken of the measured nodes."""
    cluster = ClusterState()
    for name, load in settings.loads.items():
        allocatable = {"cpu": 1000 * settings.cores, "memory": 4 * _GIB * settings.cores, "pods": 1000}
        cluster.set_node(NodeView(name, name, {}, allocatable))
        cluster.set_pod(_pod(f"on-{name}", load, settings, node=name), _NOW)
    loads = {name: settings.loads[name] for name in measured}
    answer = [
        Series(
            resource,
            statistic,
            {n: (value if statistic == "average" else settings.deviation, _NOW) for n, value in loads.items()},
            300.0,
        )
        for resource in RESOURCES
        for statistic in ("average", "deviation")
    ]
    cluster.provide("study", answer, _NOW)
    profile = Profile.build(
        ProfileSettings(
            "study",
            scores=(ScoreSettings(score, missing_metrics=rule),),
            load=LoadSettings(provider="study"),
            metric_provider=MetricProviderSettings("Prometheus"),
        )
    )
    part = settings.millicores / (1000 * settings.cores)
    waiting = [_pod(f"p{index}", part, settings) for index in range(settings.pods)]
    generator = np.random.default_rng(0)
    result = schedule(cluster, waiting, {"study": profile}, now=_NOW, generator=generator, limit=settings.pods)
    return Counter(decision.assignment.node for decision in result.decisions)


def share_on_the_fullest(
    settings: OutageSettings, score: str, order: slice, rule: MissingMetrics = "LeastScore"
) -> list[float]:
    """Percent of the pods that the fullest node gets while 0, 1, 2, ... of the nodes in that order are measured."""
    names = settings.names
    counts = (place(settings, score, names[order][:k], rule) for k in range(len(names) + 1))
    return [100.0 * count[names[-1]] / settings.pods for count in counts]


def _pod(name: str, part: float, settings: OutageSettings, node: str = "") -> PodView:
    """A pod that takes that part of a node; one on a node has run for long."""
    requests, limits = (
        {
            "cpu": f"{round(1000 * settings.cores * part * factor)}m",
            "memory": str(round(4 * _GIB * settings.cores * part * factor)),
        }
        for factor in (1.0, settings.limits if node else 1.0)
    )
    spec: dict[str, Any] = {
        "schedulerName": "study",
        "containers": [{"name": "main", "resources": {"requests": requests, "limits": limits}}],
    }
    status: dict[str, Any] = {}
    if node:
        spec["nodeName"] = node
        status = {"startTime": "1970-01-01T00:00:01Z"}
    metadata = {"namespace": "default", "name": name, "uid": name, "creationTimestamp": "1970-01-01T00:00:01Z"}
    return PodView.from_raw({"metadata": metadata, "spec": spec, "status": status})


def plot(shares: dict[tuple[str, str], list[float]], path: Path) -> None:
    """A line for each score and order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    styles = dict(zip(ORDERS, ("-", "--")))
    colours = dict(zip(SCORES, ("#2563a8", "#d97706", "#2e7d32")))
    for (score, order), line in shares.items():
        axis.plot(range(len(line)), line, styles[order], color=colours[score], label=f"{score}, {order}")
    axis.set_xlabel("measured nodes, of 10")
    axis.set_ylabel("% of 400 pods on the fullest node")
    axis.set_ylim(bottom=-1)
    axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m concerto.simulation.studies.outage_study", description=__doc__)
    parser.add_argument("--plot", type=Path, help="draw the shares there")
    parser.add_argument(
        "--limits", type=float, default=OutageSettings.limits, help="of pods that run, in parts of their requests"
    )
    parser.add_argument(
        "--deviation", type=float, default=OutageSettings.deviation, help="of the load of a node, in parts of the node"
    )
    args = parser.parse_args(argv)
    settings = OutageSettings(limits=args.limits, deviation=args.deviation)
    shares = {(s, order): share_on_the_fullest(settings, s, rows) for s in SCORES for order, rows in ORDERS.items()}
    print("% of pods on the fullest node, by the number of measured nodes")
    print(f"{'score, and which nodes are measured':50}" + "".join(f"{k:>5}" for k in range(settings.nodes + 1)))
    for (score, order), line in shares.items():
        print(f"{f'{score}, {order}':50}" + "".join(f"{share:5.0f}" for share in line))
    if args.plot:
        plot(shares, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
