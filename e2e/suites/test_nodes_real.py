"""Real nodes: Ready in time, they run a Job, they fail on command, and nothing of them is ever left behind."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, LocalControlPlane
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNodes, cleanup_stale
from e2e.testbed.nodes.cgroups import Machine
from e2e.testbed.nodes.cleanup import claim, leftovers
from e2e.testbed.nodes.config import Slot
from e2e.testbed.requirements import require_real_nodes
from e2e.testbed.waiting import eventually

pytestmark = pytest.mark.realnode


@pytest.fixture(scope="module")
def plane(cluster: Cluster) -> Iterator[LocalControlPlane]:
    """The run's control plane, with kube-scheduler."""
    plane = require_real_nodes(cluster)
    plane.start_scheduler()
    yield plane
    plane.stop_scheduler()


@pytest.fixture(scope="module")
def nodes(plane: LocalControlPlane) -> Iterator[RealNodes]:
    with RealNodes(plane, ("real-1", "real-2")) as nodes:
        nodes.wait_ready()
        yield nodes


def burn(name: str, count: int, command: str) -> dict[str, object]:
    container = {
        "name": "burn",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "parallelism": count,
            "completions": count,
            "template": {"spec": {"restartPolicy": "Never", "dnsPolicy": "Default", "containers": [container]}},
        },
    }


def test_each_node_offers_its_own_share_of_the_machine(plane: LocalControlPlane, nodes: RealNodes) -> None:
    for node in nodes:
        allocatable = plane.get("node", node.name)["status"]["allocatable"]
        assert allocatable["cpu"] == str(len(node.cpus))
        assert int(allocatable["memory"].removesuffix("Ki")) * 1024 == pytest.approx(node.spec.memory_bytes, rel=0.01)
        assert node.exec("cat", "/sys/devices/system/cpu/online").strip() == node.spec.cpus


def test_a_job_of_ten_pods_runs_on_both_nodes_and_in_their_cpusets(plane: LocalControlPlane, nodes: RealNodes) -> None:
    plane.apply(burn("ten", 10, "grep Cpus_allowed_list /proc/self/status; sleep 1"))
    plane.wait("--for=condition=complete", "job/ten")
    pods = plane.get("pods", "-l", "job-name=ten")["items"]
    assert {pod["spec"]["nodeName"] for pod in pods} == {node.name for node in nodes}
    for pod in pods:
        said = plane.kubectl("logs", pod["metadata"]["name"]).split()
        assert said[-1] == nodes[pod["spec"]["nodeName"]].spec.cpus
    plane.kubectl("delete", "job", "ten")


def test_a_process_in_the_nodes_cgroup_counts_as_the_nodes(nodes: RealNodes) -> None:
    node = nodes["real-2"]
    process = subprocess.Popen(node.in_cgroup(["sleep", "600"]))
    try:
        eventually("the process is in the cgroup", lambda: process.pid in nodes.machine.processes(node.cgroup))
        eventually("it runs on the node's CPUs", lambda: os.sched_getaffinity(process.pid) == set(node.cpus))
    finally:
        process.kill()
        process.wait()


def test_an_image_can_be_brought_in(nodes: RealNodes, tmp_path: Path) -> None:
    name = "localhost/hello:1"
    nodes["real-1"].import_image(build_image(tmp_path / "hello.tar", name, ["/bin/echo", "hello"]))
    assert name in nodes["real-1"].exec("ctr", "-n", "k8s.io", "images", "ls", "-q").split()


def test_a_node_that_fails_is_reported_by_nobody_and_comes_back_when_started(
    plane: LocalControlPlane, nodes: RealNodes
) -> None:
    node = nodes["real-1"]
    node.kill_init()
    assert not node.is_alive()
    assert not nodes.machine.processes(node.cgroup), "all of its processes are gone"
    eventually("the control plane has noticed", lambda: _ready(plane, node.name) == "Unknown")
    node.start()
    node.wait_ready()


def test_a_stopped_node_leaves_the_others_alone(plane: LocalControlPlane, nodes: RealNodes) -> None:
    node, other = nodes["real-1"], nodes["real-2"]
    node.stop(wipe=True)
    assert other.is_alive()
    assert not [what for what in leftovers(nodes.slot, nodes.machine) if node.name in what]
    eventually("its Node object is gone", lambda: _ready(plane, node.name) is None)
    node.start()
    node.wait_ready()


def _ready(plane: LocalControlPlane, name: str) -> str | None:
    found = plane.kubectl("get", "node", name, "-o", "json", "--ignore-not-found")
    if not found.strip():
        return None
    return next(c["status"] for c in json.loads(found)["status"]["conditions"] if c["type"] == "Ready")


RUNNER = """
import pathlib, sys, time
from types import SimpleNamespace
from e2e.testbed.nodes import RealNodes

class Plane(SimpleNamespace):
    def client_kubeconfig(self, name, cn, org):
        return pathlib.Path(self.made[name])
    def kubectl(self, *arguments):
        import subprocess
        return subprocess.run([self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments],
                              capture_output=True, text=True, check=True).stdout

work = pathlib.Path(sys.argv[1])
plane = Plane(binaries=pathlib.Path(sys.argv[2]), kubectl_path=pathlib.Path(sys.argv[2]) / "kubectl",
              kubeconfig=pathlib.Path(sys.argv[3]), ca_file=pathlib.Path(sys.argv[4]), work_dir=work, logs=work,
              made={"doomed": sys.argv[5]})
nodes = RealNodes(plane, ["doomed"])
nodes.start()
nodes.wait_ready()
print(nodes.slot.number, nodes._supervisor.pid, nodes["doomed"].init, flush=True)
time.sleep(600)
"""


@pytest.fixture
def doomed(plane: LocalControlPlane, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Slot, int, int]]:
    """A run of its own in a process that the test may kill: the process, its slot, supervisor and node."""
    script = tmp_path / "runner.py"
    script.write_text(textwrap.dedent(RUNNER))
    config = plane.client_kubeconfig("doomed", "system:node:doomed", "system:nodes")
    argv = [tmp_path, plane.binaries, plane.kubeconfig, plane.ca_file, config]
    process = subprocess.Popen(
        [sys.executable, script, *argv],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdout is not None
    slot, supervisor, init = map(int, process.stdout.readline().split())
    yield process, Slot(slot), supervisor, init
    process.kill()
    process.wait()
    process.stdout.close()
    plane.kubectl("delete", "node", "doomed", "--ignore-not-found")  # for a while yet it would be taken for Ready


def _exists(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def left_in(slot: Slot, machine: Machine) -> list[str]:
    """What is left in a slot; nothing where another run has it by now, for that has looked before."""
    taken = claim(slot)
    if taken is None:
        return []
    try:
        return leftovers(slot, machine)
    finally:
        taken.release()


def test_a_killed_run_leaves_nothing_behind(
    plane: LocalControlPlane, doomed: tuple[subprocess.Popen[str], Slot, int, int]
) -> None:
    process, slot, supervisor, init = doomed
    machine = Machine()
    members = machine.processes(slot.cgroup_prefix + "doomed")
    assert init in members
    assert leftovers(slot, machine)
    process.send_signal(signal.SIGKILL)
    eventually("the supervisor has done its work and is gone", lambda: not _exists(supervisor))
    assert left_in(slot, machine) == []
    assert not [pid for pid in members if _exists(pid)]
    assert _ready(plane, "doomed") is None, "its Node object is gone, too"


def test_when_the_supervisor_is_killed_as_well_the_next_run_cleans_up(
    doomed: tuple[subprocess.Popen[str], Slot, int, int],
) -> None:
    process, slot, supervisor, _ = doomed
    machine = Machine()
    members = machine.processes(slot.cgroup_prefix + "doomed")
    os.kill(supervisor, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    eventually("no process outlives the two", lambda: not [pid for pid in members if _exists(pid)])
    cleanup_stale()  # if no other run on this machine has been quicker
    assert left_in(slot, machine) == []


def test_cleaning_up_spares_a_run_that_is_alive(nodes: RealNodes) -> None:
    cleanup_stale()
    assert all(node.is_alive() for node in nodes)
    assert leftovers(nodes.slot, nodes.machine)
