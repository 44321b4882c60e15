"""`python docs/figures.py`: draws the pictures of the docs from simulated runs of the production code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.nodecputopology import Core, CPUTopology
from concerto.pinning.conflicts import Claim, shared_pool
from concerto.pinning.topology import TopologyIndex, bits, to_mask
from concerto.simulation.autoscaling.plant import PlantSettings
from concerto.simulation.autoscaling.policies import all_policies
from concerto.simulation.autoscaling.run import Experiment, run
from concerto.simulation.autoscaling.traffic import PHASES, from_phases
from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.raw_pods import kind_of_job
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec
from concerto.simulation.studies import colocation

FIGURES = Path(__file__).resolve().parent / "figures"
BLUE, ORANGE, GREEN, GREY = "#2563a8", "#d97706", "#2f855a", "#9aa5b1"


class Watched(Concerto):
    """Concerto that counts pods as units, and what it knew of its first node ten times a second."""

    def __init__(self) -> None:
        super().__init__(CapacitySettings(), kinds=False)
        self.seen: list[tuple[float, float, float, float, float, float]] = []

    def sample(self, readings: Any, now: float) -> None:
        """See Policy."""
        super().sample(readings, now)
        report, ledger, node = self.agents.report, self.state.ledger.nodes, self.names[0]
        status, available = ledger.status(node), ledger.available(node)
        if report is None or status is None or available is None:
            return
        usage = float(report.usage[0, 0])
        self.seen.append((now, usage, float(status.pod_count), status.capacity, available, ledger.in_flight(node)))


def watched_node(load: PodLoad, count: int, per_second: float, limit_seconds: float) -> np.ndarray:
    """Columns time, CPU, pods counted, capacity reported, available, in flight: of a node of 4 cores."""
    arrivals = Arrivals("Paced", 5.0, per_second) if per_second else Arrivals("Burst", 5.0)
    job = JobSpec("job", count, load, arrivals=arrivals)
    policy = Watched()
    setup = Setup(nodes=(NodeSpec(1),), jobs=(job,), warmup_seconds=10.0, limit_seconds=limit_seconds)
    World(setup, policy, seed=1).run()
    return np.array(policy.seen).T


def capacity() -> Any:
    """What a node reports while pods come faster than it can take them."""
    time, cpu, pods, reported, _, _ = watched_node(PodLoad(2.0, 8.0, 1), 60, 1.0, 140.0)
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    above.plot(time, 100 * cpu, color=GREY, label="CPU and its pressure, % of the node")
    above.set_ylim(0, 105)
    above.set_ylabel("%")
    below.step(time, pods, where="post", color=BLUE, label="pods that the agent counts")
    below.step(time, reported, where="post", color=ORANGE, label="capacity: how many more it can take")
    below.set_ylabel("pods")
    below.set_xlabel("seconds; a pod a second arrives from 15 on, and needs 8 core-seconds; the node has 4 cores")
    return finish(figure, above, below)


def reservation() -> Any:
    """Who holds a node's room while a burst is placed."""
    time, _, pods, reported, available, flying = watched_node(PodLoad(2.0, 4.0, 1), 40, 0.0, 60.0)
    shown = (time > 13) & (time < 33)
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    layers = (pods[shown], flying[shown], np.maximum(available[shown], 0))
    labels = ("counted by the agent", "promised, not counted yet: in the ledger", "free")
    axis.stackplot(time[shown], layers, labels=labels, colors=(BLUE, ORANGE, "#d8e6d3"), step="post")
    total = (pods + reported)[shown]
    axis.step(time[shown], total, where="post", color="black", linewidth=1, label="what the agent reported")
    axis.set_ylabel("pods of one node")
    axis.set_xlabel("seconds; a burst of 40 pods arrives at 15")
    return finish(figure, axis)


class Committed(Concerto):
    """Concerto that places by kind, and what was committed of its first node by each of two jobs."""

    def __init__(self, jobs: Sequence[JobSpec]) -> None:
        super().__init__(CapacitySettings(), known=True)
        self._jobs = [kind_of_job(job).key for job in jobs]
        self.seen: list[tuple[float, ...]] = []

    def sample(self, readings: Any, now: float) -> None:
        """See Policy."""
        super().sample(readings, now)
        loads = self.state.kinds.loads
        cores = [self.state.kinds.committed(key, 0) for key in self._jobs]
        usable = float(loads.cores[0] - loads.own_cpu[0])
        pods = float(loads.pods[0])
        self.seen.append((now, *cores, usable * float(loads.head_room[0]), 8.0 * float(readings.utilisation[0]), pods))


def kinds() -> Any:
    """What two kinds of pods take of one node: few long ones, then many short ones beside them."""
    jobs = (
        JobSpec("batch", 40, PodLoad(4.0, 25.0, 2), arrivals=Arrivals("Paced", 5.0, 0.2)),
        JobSpec("functions", 600, PodLoad(0.5, 0.4, 1), arrivals=Arrivals("Paced", 60.0, 6.0)),
    )
    policy = Committed(jobs)
    World(Setup(nodes=(NodeSpec(1, 8.0),), jobs=jobs, warmup_seconds=10.0, limit_seconds=150.0), policy, seed=1).run()
    time, batch, functions, limit, used, pods = np.array(policy.seen).T
    shown = (time > 12) & (time < 130)
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    labels = ("cores committed to batch pods", "to functions")
    above.stackplot(time[shown], batch[shown], functions[shown], labels=labels, colors=(BLUE, ORANGE), step="post")
    above.plot(time[shown], limit[shown], color="black", linewidth=1, label="filled to")
    above.plot(time[shown], used[shown], color=GREY, linewidth=1, label="cores in use")
    above.set_ylabel("cores of one node")
    below.step(time[shown], pods[shown], where="post", color=BLUE, label="pods on the node")
    below.set_ylabel("pods")
    below.set_xlabel("seconds; a batch pod every 5 s from 15 on, six functions a second from 70 on; 8 cores")
    return finish(figure, above, below)


def pinning() -> Any:
    """A machine's CPUs, who names them and who is kept from them."""
    cores = [Core(s, c, frozenset((s * 4 + c, 8 + s * 4 + c))) for s in range(2) for c in range(4)]
    sockets = {s: frozenset(cpu for core in cores if core.socket == s for cpu in core.cpus) for s in range(2)}
    index = TopologyIndex.build(CPUTopology(tuple(cores), sockets))
    claims = {
        "cpuSet 0, level CPU": (Claim(to_mask({0}), "CPU"), BLUE),
        "cpuSet 2, level Core": (Claim(to_mask({2}), "Core"), ORANGE),
        "cpuSet 4, level Socket": (Claim(to_mask({4}), "Socket"), GREEN),
    }
    pool = set(bits(shared_pool(index, 0, [claim for claim, _ in claims.values()])))
    figure, axis = plt.subplots(figsize=(8, 2.9), layout="constrained")
    for socket in range(2):
        axis.add_patch(FancyBboxPatch((socket * 4.6 - 0.1, -0.15), 4.2, 2.5, boxstyle="round,pad=0.05", fc="white"))
        axis.text(socket * 4.6 + 2, 2.5, f"socket {socket}, memory node {socket}", ha="center")
    for core in cores:
        for thread, cpu in enumerate(sorted(core.cpus)):
            corner = (core.socket * 4.6 + core.number + 0.05, 1.25 - thread)
            names = next((colour for claim, colour in claims.values() if claim.cpus >> cpu & 1), None)
            kept = next((c for claim, c in claims.values() if index.closure(claim.cpus, claim.level) >> cpu & 1), None)
            face = names or ("white" if kept else "#e5e9ee")
            axis.add_patch(
                Rectangle(corner, 0.85, 0.85, fc=face, ec=kept or GREY, lw=2, hatch="" if names else "//" * bool(kept))
            )
            axis.text(
                corner[0] + 0.42,
                corner[1] + 0.42,
                str(cpu),
                ha="center",
                va="center",
                color="white" if names else "black",
            )
    handles = [Rectangle((0, 0), 1, 1, fc=colour, label=label) for label, (_, colour) in claims.items()]
    handles.append(Rectangle((0, 0), 1, 1, fc="white", ec="black", hatch="////", label="kept free by its level"))
    handles.append(Rectangle((0, 0), 1, 1, fc="#e5e9ee", label=f"shared pool: {len(pool)} CPUs for all others"))
    axis.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncol=3, frameon=False, fontsize=9)
    axis.set_xlim(-0.3, 9)
    axis.set_ylim(-0.3, 2.8)
    axis.axis("off")
    return figure


def pairs() -> Any:
    """Each pair of programs on one node, as Stefanakis' figure 8.2.13: slowdown against unpinned, by class pair."""
    found = colocation.evaluate()
    classes = sorted({pair.classes for pair in found.pairs})
    figure, axes = plt.subplots(2, 3, figsize=(10, 6), sharey=True, layout="constrained")
    drawn = (("both packed", GREY), ("both spread", ORANGE), ("WorkloadAware", BLUE))
    for axis, name in zip(axes.flat, classes, strict=True):
        of_class = [pair for pair in found.pairs if pair.classes == name]
        of_class.sort(key=lambda pair: pair.ratios["WorkloadAware"] or 0.0)
        for choice, colour in drawn:
            changes = [100 * ((pair.ratios[choice] or math.nan) - 1) for pair in of_class]
            axis.plot(changes, ".", color=colour, markersize=4, label=choice)
        axis.axhline(0, color="black", linewidth=0.8)
        axis.set_title(f"{name} ({len(of_class)})", fontsize=9)
        axis.set_ylim(-50, 90)
        axis.grid(alpha=0.3)
        axis.set_xticks([])
        axis.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel("mean slowdown against unpinned, %", fontsize=9)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncol=3, frameon=False)
    return figure


def forecast() -> Any:
    """A target that is scaled after its load, and one that is scaled ahead of it."""
    experiment = Experiment(
        (from_phases("increase-decrease", PHASES["increase-decrease"]),), PlantSettings(startup_seconds=120.0)
    )
    policies = {policy.name: policy for policy in all_policies()}
    reactive, ahead = (run(experiment, policies[name]) for name in ("HPA v2", "Auto"))
    minutes = np.arange(reactive.demand.shape[1])
    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
    above.plot(minutes, reactive.demand[0], color="black", label="replicas that the load needs")
    for result, colour, label in ((reactive, GREY, "HorizontalPodAutoscaler"), (ahead, BLUE, "PredictiveHPA")):
        above.step(minutes, result.pods[0], where="mid", color=colour, label=label)
        below.plot(minutes, result.p95[0], color=colour, label=label)
    above.plot(minutes, ahead.forecast[0], color=ORANGE, linestyle=":", label="its forecast asks for")
    above.set_ylabel("pods")
    below.set_ylabel("p95 latency\n(1: unloaded)")
    below.set_yscale("log")
    below.set_xlabel("minutes; pods take two minutes to start")
    return finish(figure, above, below)


def finish(figure: Any, *axes: Any) -> Any:
    """Legends and grids."""
    for axis in axes:
        axis.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncol=4, frameon=False, fontsize=9)
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


DRAWN: tuple[Callable[[], Any], ...] = (capacity, reservation, kinds, pinning, pairs, forecast)


def main() -> None:
    """Draw all of them; the same numbers give the same bytes."""
    FIGURES.mkdir(exist_ok=True)
    for draw in DRAWN:
        figure = draw()
        figure.savefig(FIGURES / f"{draw.__name__}.png", dpi=100, metadata={"Software": None})
        plt.close(figure)


if __name__ == "__main__":
    main()
