"""`python -m e2e.bench.cpuset_latency`: time from a container's creation to its cpuset, by the file writer. Needs root.

The agent's pinner follows cgroups in this machine's own hierarchy, next to an API server that has one binding. Another
process creates containers of pods without a binding as a runtime does, while two programs keep the CPUs busy and the
pinner checks all pods twice a second. Kubelet's policy is ``static``, so that every container has to be written. From
the creation of its cgroup to its program's first instruction a container takes some 20 ms in runc: a set that comes
later counts as late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from aiohttp import web

from concerto_agent.cgroups import Hierarchies
from concerto_agent.files import write_file
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinner import Pinner
from concerto_agent.pinning_settings import PinningSettings
from e2e.bench.__main__ import machine
from e2e.testbed.clusters.process import ends_with_us
from e2e.testbed.system import REPOSITORY
from e2e.testbed.waiting import eventually_async
from support.faulty_server import faulty

RESULTS = REPOSITORY / "build" / "cpuset_latency.json"
LATE_SECONDS = 0.02
GIVE_UP_SECONDS = 2.0
CHECK_SECONDS = 0.5
PODS_ON_NODE = (20, 110, 250)
NOISE = (sys.executable, "-c", "while True: pass")
NOW = "2026-01-01T00:00:00Z"


class Tree:
    """Pods and containers in a cgroup of their own, made as kubelet and a runtime make them (v1 or v2)."""

    def __init__(self, root: Path, version: int, cpus: str) -> None:
        self._version = version
        self._cpus = cpus
        self.pods = root / "kubepods" / "burstable"
        for path in (root, root / "kubepods", self.pods):
            self._make(path)

    def pod(self, uid: str) -> Path:
        """A pod with its sandbox and one container."""
        path = self.empty_pod(uid)
        for _ in range(2):
            self.container(path)
        return path

    def empty_pod(self, uid: str) -> Path:
        """A pod before its sandbox."""
        path = self.pods / f"pod{uid}"
        self._make(path)
        return path

    def container(self, pod: Path) -> Path:
        """One more container, with the set that kubelet gives it."""
        path = pod / f"{uuid.uuid4().hex * 2}"
        self._make(path)
        return path

    def _make(self, path: Path) -> None:
        path.mkdir()
        if self._version == 1:
            write_file(path / "cpuset.mems", "0")
            write_file(path / "cpuset.cpus", self._cpus)
        else:
            write_file(path / "cgroup.subtree_control", "+cpuset")

    def effective(self, path: Path) -> str:
        """CPUs that its processes may use."""
        return (path / ("cpuset.cpus" if self._version == 1 else "cpuset.cpus.effective")).read_text().strip()


@contextmanager
def own_cgroup() -> Iterator[tuple[Path, int]]:
    """A cgroup in the machine's cpuset hierarchy; its path and the version."""
    found = Hierarchies.detect(Path("/sys"))
    if found.cpuset is None:
        raise SystemExit("this machine has no cpuset hierarchy")
    root = found.cpuset / f"concerto-bench-{uuid.uuid4().hex[:6]}"
    try:
        yield root, found.version
    finally:
        for directory, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()


def create(tree: Tree, pods: list[Path], wanted: str, count: int, answers: Connection) -> None:
    """Create containers one after the other; send the seconds that each waited for its set, None for ever."""
    took: list[float | None] = []
    for number in range(count):
        pod = pods[number % len(pods)]
        path = tree.container(pod)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < GIVE_UP_SECONDS and tree.effective(path) != wanted:
            time.sleep(0.0002)
        took.append(waited if waited < GIVE_UP_SECONDS else None)
        path.rmdir()
        time.sleep(0.01)
    answers.send(took)


def server(uid: str, cpu: int) -> web.Handler:
    """An API server with one validated binding, exclusive of one CPU."""
    validated = {"type": "Validated", "status": "True", "observedGeneration": 1, "reason": "V", "message": ""}
    metadata = {"name": "b", "namespace": "ns", "uid": "b", "generation": 1, "creationTimestamp": NOW}
    spec = {"podName": "p", "cpuSet": [{"cpuID": cpu}], "exclusivenessLevel": "CPU"}
    status = {"nodeName": "n", "podUID": uid, "cpus": str(cpu), "mems": "0", "conditions": [validated]}
    binding = {"metadata": metadata | {"resourceVersion": "1"}, "spec": spec, "status": status}

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            body = json.loads(await request.read())
            return web.json_response(binding | {"status": status | body["status"]})
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            await asyncio.Event().wait()  # nothing happens; the client ends it
            return response
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [binding]})

    return answer


async def measure(root: Path, version: int, cpus: list[int], pods_on_node: int, containers: int) -> list[float | None]:
    """Seconds from creation to set of each container, with so many pods on the node."""
    tree = Tree(root, version, ",".join(map(str, cpus)))
    bound = f"{0:08x}-0000-0000-0000-000000000000"
    made = [tree.pod(f"{number:08x}-0000-0000-0000-000000000000") for number in range(pods_on_node)]
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "cpu_manager_state"
        default = ",".join(map(str, cpus))
        state.write_text(json.dumps({"policyName": "static", "defaultCpuSet": default, "entries": {}}))
        settings = PinningSettings(state, repair_seconds=CHECK_SECONDS)
        where = NodeFiles(scope="Cgroup", cgroup=root.name)
        async with faulty([server(bound, cpus[-1])]) as api:
            pinner = Pinner(api.session, "n", where, settings, time.time, dict)
            running = asyncio.create_task(pinner.run())
            try:
                await eventually_async("the pinner holds the CPU", lambda: pinner.counts().cpus.get("allocated"))
                ours, theirs = multiprocessing.Pipe()
                wanted = ",".join(map(str, cpus[:-1])) if len(cpus) == 2 else tree.effective(made[1])
                process = multiprocessing.get_context("fork").Process(
                    target=create, args=(tree, made[1:], wanted, containers, theirs)
                )
                process.start()
                took: list[float | None] = await asyncio.get_running_loop().run_in_executor(None, ours.recv)
                process.join()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
    return took


def row(took: list[float | None]) -> dict[str, float]:
    """Percentiles in milliseconds, and how many were late."""
    known = sorted(each if each is not None else GIVE_UP_SECONDS for each in took)
    return {
        "containers": len(took),
        "p50 ms": round(1000 * statistics.median(known), 2),
        "p99 ms": round(1000 * known[int(0.99 * (len(known) - 1))], 2),
        "most ms": round(1000 * known[-1], 2),
        "late": sum(each > LATE_SECONDS for each in known),
    }


def main() -> int:
    """Measure, print, and write build/cpuset_latency.json."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.cpuset_latency", description=__doc__)
    parser.add_argument("--containers", type=int, default=1000, help="of each number of pods")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("this takes two CPUs", file=sys.stderr)
        return 2
    noise = [subprocess.Popen(ends_with_us(*NOISE)) for _ in cpus]
    rows: dict[str, dict[str, float]] = {}
    try:
        for pods_on_node in PODS_ON_NODE:
            with own_cgroup() as (root, version):
                took = asyncio.run(measure(root, version, cpus, pods_on_node, arguments.containers))
            rows[str(pods_on_node)] = found = row(took)
            print(f"{pods_on_node:>4} pods: {found}", flush=True)
    finally:
        for process in noise:
            process.kill()
            process.wait()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "late seconds": LATE_SECONDS, "pods": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
