"""What the compared Jobs' pods do, and the requests that kube-scheduler is tried with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from e2e.compare.shell_work import loop
from e2e.testbed.system import busybox_job

CONCERTO = "concerto"
# One CPU's worth of 100m to 450m is two to ten pods on a node of one CPU, the range in which the best trade lies
REQUESTS = ("100m", "200m", "300m", "450m")


@dataclass(frozen=True)
class Part:
    """Pods of one kind.

    Attributes:
        name: the value of their label ``app``, the same in every run, as of a Job that recurs.
        wait_seconds: they sleep first.
        core_seconds: of work afterwards, beside what their start takes.
        share: of the workload's pods.
    """

    name: str
    wait_seconds: float
    core_seconds: float
    share: float = 1.0

    def command(self, steps_per_second: float) -> str:
        """What their shell runs, on a machine that does so many steps of a loop in a core-second."""
        sleep = f"sleep {self.wait_seconds:g}; " if self.wait_seconds else ""
        return sleep + loop(max(round(self.core_seconds * steps_per_second), 1))


@dataclass(frozen=True)
class Workload:
    """Jobs that are created together.

    Attributes:
        name: for options and files.
        title: for tables and plots.
        parts: a Job each.
        requests: CPU requests of all its pods that kube-scheduler is tried with.
    """

    name: str
    title: str
    parts: Sequence[Part]
    requests: Sequence[str] = REQUESTS

    def sizes(self, pods: int) -> list[int]:
        """How many of ``pods`` each part has; at least one each."""
        counts = [max(1, int(pods * part.share)) for part in self.parts]
        counts[0] += pods - sum(counts)
        return counts

    def jobs(self, run: str, pods: int, scheduler: str, steps_per_second: float) -> list[dict[str, Any]]:
        """The Jobs of one run.

        Args:
            run: prefix of their names, unique in the namespace.
            pods: of all of them together.
            scheduler: `CONCERTO`, or the CPU request of pods that kube-scheduler places.
            steps_per_second: of the machine (`shell_work`).
        """
        commands = [part.command(steps_per_second) for part in self.parts]
        parts = zip(self.parts, commands, self.sizes(pods))
        return [self._job(run, part, command, count, scheduler) for part, command, count in parts]

    @staticmethod
    def _job(run: str, part: Part, command: str, count: int, scheduler: str) -> dict[str, Any]:
        job = busybox_job(f"{run}-{part.name}", "default", "app", ["sh", "-c", command], pods=count, parallelism=count)
        template = job["spec"]["template"]
        template["metadata"]["labels"] = {"app": part.name}
        if scheduler != CONCERTO:
            template["spec"]["schedulerName"] = "default-scheduler"
            template["spec"]["containers"][0]["resources"] = {"requests": {"cpu": scheduler}}
        return job


_BURN = 1.8
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("waiting", "waiting-heavy: 2 s of waiting, 1.8 core-seconds", [Part("waiting", 2.0, _BURN)]),
        Workload("cpu", "CPU-bound: 1.8 core-seconds", [Part("cpu", 0.0, _BURN)], (*REQUESTS, "900m")),
        Workload("burst", "a burst of very short pods: 0.2 core-seconds", [Part("burst", 0.0, 0.14)]),
        Workload(
            "mixed",
            "mixed sizes: 0.2, 1.8 and 5.4 core-seconds",
            [
                Part("mixed-medium", 2.0, _BURN, 0.4),
                Part("mixed-small", 0.0, 0.14, 0.4),
                Part("mixed-large", 2.0, 3 * _BURN, 0.2),
            ],
        ),
        Workload(
            "complementary",
            "complementary kinds: 1.8 core-seconds; 20 s of waiting",
            [Part("complementary-cpu", 0.0, _BURN, 0.5), Part("complementary-io", 20.0, 0.05, 0.5)],
        ),
    )
}
