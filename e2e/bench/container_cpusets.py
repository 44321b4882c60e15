"""`make bench BENCH="--only cpusets"`: programs that begin outside of their CPUs, with NRI and without. Needs root.

A containerd 2 of its own runs containers with the machine's runc, one after the other, in a pod that is bound to one of
two CPUs. The agent's pinner is next to an API server that has this binding. Kubelet's policy is ``static``, so that no
container inherits its set: without NRI the agent writes the container's cgroup after the kernel has reported it. The
node has further pods (cgroups), and two programs keep the CPUs busy. Each container's program reads the CPUs of its own
first process, and ends with 0 if they are the binding's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from concerto_agent.node_files import NodeFiles
from concerto_agent.nri.client import NriSettings
from concerto_agent.pinner import Pinner
from concerto_agent.pinning_settings import PinningSettings
from e2e.bench.__main__ import machine, say
from e2e.bench.cpuset_latency import CHECK_SECONDS, NOISE, PODS_ON_NODE, Tree, own_cgroup, server
from e2e.testbed.clusters.binaries import find_or_build_containerd, find_or_build_cri_client
from e2e.testbed.clusters.process import Child, ends_with_us
from e2e.testbed.images import BUSYBOX_IMAGE, build_base_images
from e2e.testbed.nodes.config import containerd_config
from e2e.testbed.nodes.requirements import cni_binaries
from e2e.testbed.system import REPOSITORY
from e2e.testbed.waiting import eventually, eventually_async
from support.faulty_server import faulty

RESULTS = REPOSITORY / "build" / "container_cpusets.json"
BOUND = f"{0:08x}-0000-0000-0000-000000000000"
PROGRAM = """
while read k v; do [ "$k" = Cpus_allowed_list: ] && { [ "$v" = %d ]; exit; }; done </proc/self/status
exit 9
"""
Row = dict[str, float]


class Containerd:
    """A containerd 2 with a /run of its own, which ends with everything that it started.

    Attributes:
        socket: where it is asked.
        nri: where it takes plugins.
    """

    def __init__(self, folder: Path) -> None:
        programs, state = find_or_build_containerd(say), folder / "state"
        state.mkdir()
        self._log = folder / "containerd.log"
        config = folder / "containerd.toml"
        config.write_text(containerd_config(folder / "cni", state, cni_binaries()))
        enter = 'mount --make-rprivate / && mount -t tmpfs tmpfs /run && PATH=$1:$PATH exec containerd --config "$2"'
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = Child("containerd", [*namespaces, "sh", "-c", enter, "sh", programs, config], self._log)
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        first = eventually("containerd has its namespaces", lambda: children.read_text().split())[0]
        root = Path("/proc", first, "root")
        self.socket = root / "run/containerd/containerd.sock"
        self.nri = state / "nri" / "nri.sock"
        ctr = [programs / "ctr", "--address", self.socket, "--namespace", "k8s.io"]
        eventually(f"containerd answers, see {self._log}", lambda: not self._fails([*ctr, "version"]))
        for image in build_base_images(folder / "images"):
            subprocess.run([*ctr, "images", "import", image], check=True, capture_output=True)

    def _fails(self, command: list[str | Path]) -> bool:
        assert self._process.is_running(), self._process.log_tail()
        return subprocess.run(command, capture_output=True).returncode != 0

    def close(self) -> None:
        """End it."""
        self._process.kill()


@contextmanager
def running_containerd() -> Iterator[Containerd]:
    """A containerd that leaves nothing behind."""
    # overlayfs takes no overlayfs for its upper layer: not below /tmp of a container
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        found = Containerd(Path(folder))
        try:
            yield found
        finally:
            found.close()


def remove_cgroup(name: str) -> None:
    """What a runtime has made of it in the other hierarchies."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        for directory, _, _ in os.walk(hierarchy / name, topdown=False):
            with suppress(OSError):
                Path(directory).rmdir()


async def measure(containerd: Containerd, cpus: list[int], pods_on_node: int, containers: int, nri: bool) -> Row:
    """How containers began that were created in a bound pod, with so many pods on the node."""
    with own_cgroup() as (root, version), tempfile.TemporaryDirectory() as folder:
        listed = ",".join(map(str, cpus))
        tree = Tree(root, version, listed)
        for number in range(1, pods_on_node):
            tree.pod(f"{number:08x}-0000-0000-0000-000000000000")
        bound = tree.empty_pod(BOUND)
        state = Path(folder) / "cpu_manager_state"
        state.write_text(json.dumps({"policyName": "static", "defaultCpuSet": listed, "entries": {}}))
        settings = PinningSettings(
            state, repair_seconds=CHECK_SECONDS, nri=NriSettings(containerd.nri) if nri else None
        )
        where = NodeFiles(scope="Cgroup", cgroup=root.name)
        async with faulty([server(BOUND, cpus[-1])]) as api:
            pinner = Pinner(api.session, "n", where, settings, time.time, dict)
            running = asyncio.create_task(pinner.run())
            try:
                await eventually_async("the pinner holds the CPU", lambda: pinner.counts().cpus.get("allocated"))
                if nri:
                    await eventually_async("the plugin is registered", lambda: pinner.writer == "NRI")
                results = await run_containers(containerd, str(bound.relative_to(root.parent)), cpus, containers)
                created = pinner.counts().created
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
        remove_cgroup(root.name)
    return row(results) | ({"by NRI": created["Bound"]} if nri else {})


async def run_containers(containerd: Containerd, cgroup: str, cpus: list[int], count: int) -> list[dict[str, Any]]:
    """Run containers; what the client prints of each."""
    flags = {
        "socket": containerd.socket, "image": BUSYBOX_IMAGE, "cgroup": f"/{cgroup}", "uid": BOUND, "count": count,
        "cpus": ",".join(map(str, cpus)), "command": PROGRAM % cpus[-1],
    }  # fmt: skip
    client = await asyncio.to_thread(find_or_build_cri_client, say)
    process = await asyncio.create_subprocess_exec(
        client, *(f"-{name}={value}" for name, value in flags.items()), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"cri-client ended with {process.returncode}")
    return [json.loads(line) for line in output.splitlines()]


def row(results: list[dict[str, Any]]) -> Row:
    """How many began outside of their CPUs, and how long the runtime took to create one, milliseconds."""
    took = sorted(1000 * each["created"] for each in results)
    assert all(each["exit"] in (0, 1) for each in results), "a program that could not say where it began"
    return {
        "containers": len(results),
        "outside": sum(each["exit"] for each in results),
        "created p50 ms": round(statistics.median(took), 1),
        "created p99 ms": round(took[int(0.99 * (len(took) - 1))], 1),
    }


def main() -> int:
    """Measure, print, and write build/container_cpusets.json."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.container_cpusets", description=__doc__)
    parser.add_argument("--containers", type=int, default=1000, help="of each number of pods and each writer")
    parser.add_argument("--writer", choices=["NRI", "Files"], help="only one of the two")
    parser.add_argument("--pods", type=int, choices=PODS_ON_NODE, help="only one number of pods on the node")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        print("this takes two CPUs", file=sys.stderr)
        return 2
    rows: dict[str, Row] = {}
    noise = [subprocess.Popen(ends_with_us(*NOISE)) for _ in cpus]
    try:
        with running_containerd() as containerd:
            for writer in [arguments.writer] if arguments.writer else ["NRI", "Files"]:
                for pods in [arguments.pods] if arguments.pods else PODS_ON_NODE:
                    found = asyncio.run(measure(containerd, cpus, pods, arguments.containers, writer == "NRI"))
                    rows[f"{writer}, {pods} pods"] = found
                    say(f"{writer}, {pods} pods: {found}")
    finally:
        for process in noise:
            process.kill()
            process.wait()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
