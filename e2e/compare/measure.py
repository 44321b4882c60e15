"""One run on real nodes: create the Jobs, wait for their end, read the pods, remove everything."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from e2e.compare.observation import Run, max_on_node, teardown_seconds, times_of
from e2e.compare.shell_work import steps_per_second
from e2e.compare.workloads import CONCERTO, Workload
from e2e.testbed.pod_cpu import PodCpu, machine_cpu_seconds
from e2e.testbed.recorder import Recorder
from e2e.testbed.system import System
from e2e.testbed.waiting import eventually

Say = Callable[[str], None]
TIMEOUT_SECONDS = 900.0
PROGRESS_SECONDS = 30.0
# Between two runs: the CPU's pressure and the agents' averages are those of idle nodes again
SETTLE_SECONDS = 10.0


@dataclass
class Bench:
    """The system that all runs share: operator, agents and kube-scheduler run all the time.

    Attributes:
        system: real nodes with Concerto on them.
        say: prints a line.
        settle_seconds: between two runs.
        runs: made so far.
        steps_per_second: of this machine: pods get the same CPU time on each.
    """

    system: System
    say: Say
    settle_seconds: float = SETTLE_SECONDS
    runs: int = field(default=0)
    steps_per_second: float = field(default_factory=steps_per_second)

    def run(self, workload: Workload, pods: int, scheduler: str, number: int) -> Run:
        """Measure one scheduler once; afterwards nothing of the run is left."""
        self.runs += 1
        jobs = workload.jobs(f"run-{self.runs}", pods, scheduler, self.steps_per_second)
        names = [job["metadata"]["name"] for job in jobs]
        real = self.system.real
        assert real is not None, "only real nodes are compared"
        cpu = PodCpu(list(real))
        with Recorder(str(self.system.cluster.kubeconfig)) as recorder:
            before, machine_before, began = cpu.seconds(), machine_cpu_seconds(), time.time()
            self.system.cluster.apply(*jobs)
            complete = self._wait(recorder, names, pods)
            took, used = time.time() - began, cpu.seconds() - before
            others = machine_cpu_seconds() - machine_before - used
            times = times_of(recorder.latest("pods"), names)
            teardowns = teardown_seconds(recorder.pod_versions(), names)
        wrong = recorder.verify().violations if scheduler == CONCERTO else []
        self._remove(names)
        return Run(
            workload.name,
            pods,
            scheduler,
            number,
            max(t.ended for t in times) - began if complete else None,
            [t.ended - t.scheduled for t in times],
            max_on_node(times),
            used / pods,
            others / took,
            wrong,
            statistics.fmean(teardowns) if teardowns else None,
        )

    def _wait(self, recorder: Recorder, names: Sequence[str], pods: int) -> bool:
        began = said = time.monotonic()
        while time.monotonic() - began < TIMEOUT_SECONDS:
            ended = len(times_of(recorder.latest("pods"), names))
            if ended >= pods:
                return True
            if time.monotonic() - said >= PROGRESS_SECONDS:
                said = time.monotonic()
                self.say(f"    {ended} of {pods} pods ended after {said - began:.0f} s")
            time.sleep(0.5)
        return False

    def _remove(self, names: Sequence[str]) -> None:
        cluster = self.system.cluster
        cluster.kubectl("delete", "job", *names, "--cascade=foreground")
        eventually("the pods are gone", lambda: not cluster.get("pods", "-n", "default")["items"])
        self.system.wait_no_batches()
        time.sleep(self.settle_seconds)
