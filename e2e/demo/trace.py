"""Pods per node while the demo's Job ran, beside the simulator's of the same Job.

`make demo` leaves build/demo-trace.json; `python -m e2e.demo.trace` simulates the Job on as many nodes and draws both.
The machine's other processes take a part of the nodes' CPUs: simulated pods get as much more work as that makes of it.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import yaml

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling.experiments import Task, run_task
from concerto.simulation.scheduling.node_model import PodLoad
from concerto.simulation.scheduling.recorder import Recorder
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import JobSpec
from e2e.demo.job import SAMPLE
from e2e.testbed import REPOSITORY

TRACE = REPOSITORY / "build" / "demo-trace.json"
PICTURE = REPOSITORY / "build" / "demo-pods-per-node.png"


@dataclass
class Trace:
    """What was seen of a Job.

    Attributes:
        seconds: since it was created.
        running: pods by node, as many as ``seconds``.
        pods: of the Job.
        pod_cpu_seconds: CPU time that one of them took, on average.
        cpu_share: part of a CPU that the pods of a node had on average while the Job ran.
    """

    seconds: list[float] = field(default_factory=list)
    running: dict[str, list[int]] = field(default_factory=dict)
    pods: int = 0
    pod_cpu_seconds: float = 0.0
    cpu_share: float = 0.0

    def add(self, seconds: float, running: dict[str, int]) -> None:
        """One look at the nodes."""
        self.seconds.append(seconds)
        for node, pods in running.items():
            self.running.setdefault(node, []).append(pods)


def note(trace: Trace, used_core_seconds: float, pods: int, took_seconds: float) -> None:
    """Write down what the Job's pods have used, and leave the trace where this module finds it."""
    trace.pods, trace.pod_cpu_seconds = pods, used_core_seconds / pods
    trace.cpu_share = used_core_seconds / took_seconds / len(trace.running)
    TRACE.parent.mkdir(exist_ok=True)
    TRACE.write_text(json.dumps(asdict(trace)))


def wait_seconds() -> float:
    """What a pod of the demo's Job sleeps before it computes, as its manifest has it."""
    (container,) = yaml.safe_load(SAMPLE.read_text())["spec"]["template"]["spec"]["containers"]
    found = re.match(r"sleep ([0-9.]+);", container["command"][-1])
    assert found is not None, f"{SAMPLE} does not begin by waiting"
    return float(found[1])


def simulate(trace: Trace, seed: int) -> Recorder:
    """The same Job on as many simulated nodes of one CPU."""
    work = trace.pod_cpu_seconds / max(trace.cpu_share, 0.05)
    job = JobSpec("burn", trace.pods, PodLoad(wait_seconds=wait_seconds(), core_seconds=work, threads=1))
    setup = Setup((NodeSpec(count=len(trace.running), cores=1.0),), (job,))
    return run_task(Task(setup, "concerto", seed, CapacitySettings())).recorder


def steady(seconds: Sequence[float], pods: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of a node's pods in the middle half of the Job."""
    end = max(seconds)
    middle = [n for at, n in zip(seconds, pods) if 0.25 * end <= at <= 0.75 * end]
    return statistics.mean(middle), statistics.pstdev(middle)


def summary(name: str, seconds: Sequence[float], pods: Sequence[int]) -> str:
    """A node's pods in words."""
    mean, deviation = steady(seconds, pods)
    return f"{name}: {mean:.1f} pods at a time in the middle half (deviation {deviation:.1f}), {max(pods)} at most"


def main() -> int:
    """Simulate, draw, and print what the two have in common; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--out", type=Path, default=PICTURE)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not args.trace.exists():
        print(f"there is no {args.trace}: run `make demo` first, on real nodes (as root)")
        return 1
    trace = Trace(**json.loads(args.trace.read_text()))
    recorder = simulate(trace, args.seed)
    at = [float(t) for t in recorder.trace_times if t >= 0]
    simulated = np.array(recorder.trace_pods)[-len(at) :]
    draw(args.out, trace, at, simulated)
    print(f"the Job of {trace.pods} pods took {max(trace.seconds):.0f} s for real, {max(at):.0f} s simulated")
    for name, pods in trace.running.items():
        print(summary(f"real node {name}", trace.seconds, pods))
    for node, column in enumerate(simulated.T):
        print(summary(f"simulated node {node + 1}", at, [int(n) for n in column]))
    print(
        f"a real pod took {trace.pod_cpu_seconds:.1f} CPU seconds, and the pods of a node had {trace.cpu_share:.2f} of "
        "its CPU: other processes had the rest. Simulated pods were given as much more work"
    )
    print(f"picture: {args.out}")
    return 0


def draw(path: Path, trace: Trace, at: list[float], simulated: np.ndarray) -> None:
    """Both, one above the other."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, sharey=True, layout="constrained")
    for name, pods in trace.running.items():
        above.step(trace.seconds, pods, where="post", label=f"node {name}")
    for node, column in enumerate(simulated.T):
        below.step(at, column, where="post", label=f"node {node + 1}")
    above.set_title(
        f"real kubelets: {trace.pods} pods on {len(trace.running)} nodes of one CPU", loc="left", fontsize=10
    )
    below.set_title("the simulator, the same Job and the same control law", loc="left", fontsize=10)
    for panel in (above, below):
        panel.set(ylabel="pods running on a node", ylim=(0, None))
        panel.grid(alpha=0.3)
        panel.legend(loc="upper right")
    below.set_xlabel("seconds since the Job was created")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
