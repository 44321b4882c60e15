"""What a simulated kubelet writes and decides: pure, so that no cluster is needed."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.nodecapacity import AgentInfo
from concerto.api.pod import PodView
from concerto.api.pod_kind import kind_of_pod
from concerto.capacity.kinds.cost import estimate
from concerto.capacity.kinds.table import from_entries
from concerto.capacity.node_status import build_status
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.publish_rule import Published, PublishSettings, should_publish
from concerto.kube import NotFound, Unreachable
from concerto.kube.resources import LEASES
from concerto.simulation.scheduling.node_fleet import NodeFleet
from concerto.simulation.scheduling.node_model import MIB, Change, PodLoad
from e2e.testbed import REPOSITORY
from e2e.testbed.hollow.agents import Known, context_of
from e2e.testbed.hollow.kinds import PodKinds
from e2e.testbed.hollow.objects import (
    FINITE_LOAD,
    SERVICE_LOAD,
    ContainerEnd,
    PodLife,
    build_lease,
    pod_load,
    pod_status,
    refusal,
)
from e2e.testbed.hollow.owned import create_owned
from e2e.testbed.hollow.writes import WriteQueue
from support.faulty_server import faulty, hangs_up, says
from support.waiting import eventually

Object = dict[str, Any]
NOW = 1_800_000_000.0


def a_pod(annotations: dict[str, str] | None = None, policy: str = "Never", **resources: Object) -> Object:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations or {}},
        "spec": {
            "nodeName": "hollow-0000",
            "restartPolicy": policy,
            "containers": [{"name": "c", "image": "i", "resources": resources}],
        },
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]
        },
    }


LOADS = {
    "a pod that is to end does Carico's small workload": (a_pod(), FINITE_LOAD),
    "a service idles most of the time, for ever": (a_pod(policy="Always"), SERVICE_LOAD),
    "annotations say otherwise": (
        a_pod(
            {
                "hollow.concerto.dev/wait-seconds": "0.5",
                "hollow.concerto.dev/core-seconds": "12",
                "hollow.concerto.dev/threads": "3",
                "hollow.concerto.dev/memory": "64Mi",
            }
        ),
        PodLoad(wait_seconds=0.5, core_seconds=12.0, threads=3, memory_bytes=64 * MIB),
    ),
    "a CPU limit throttles": (
        a_pod(limits={"cpu": "500m"}),
        PodLoad(wait_seconds=2.0, core_seconds=4.1, cpu_limit=0.5),
    ),
}


@pytest.mark.parametrize(("pod", "load"), LOADS.values(), ids=LOADS)
def test_a_pods_load(pod: Object, load: PodLoad) -> None:
    assert pod_load(pod) == load


def test_a_wrong_annotation_is_named() -> None:
    with pytest.raises(ValueError, match=r"hollow\.concerto\.dev/threads"):
        pod_load(a_pod({"hollow.concerto.dev/threads": "many"}))


ALLOCATABLE = {"cpu": 4000, "memory": 8 * 2**30, "pods": 3}
REFUSALS: dict[str, tuple[dict[str, Object], dict[str, dict[str, int]], str | None]] = {
    "what fits is taken": ({"requests": {"cpu": "2"}}, {"a": {"cpu": 2000}}, None),
    "more CPU than is left is refused": ({"requests": {"cpu": "2001m"}}, {"a": {"cpu": 2000}}, "OutOfcpu"),
    "more memory than is left is refused": ({"requests": {"memory": "9Gi"}}, {}, "OutOfmemory"),
    "a pod without requests is taken by a node whose CPUs are all requested": ({}, {"a": {"cpu": 4000}}, None),
    "but not by one that has all its pods": ({}, {"a": {}, "b": {}, "c": {}}, "OutOfpods"),
}


@pytest.mark.parametrize(("resources", "present", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_the_kubelets_admission(
    resources: dict[str, Object], present: dict[str, dict[str, int]], reason: str | None
) -> None:
    assert refusal(PodView.from_raw(a_pod(**resources)), present, ALLOCATABLE) == reason


BORN = PodLife("10.80.0.0", "10.128.0.1", admitted=NOW)
STARTED = PodLife("10.80.0.0", "10.128.0.1", admitted=NOW, started=NOW + 2)
LIVES = {
    "before it runs it is Pending": (BORN, "Pending", "False", "waiting"),
    "it runs": (STARTED, "Running", "True", "running"),
    "it has done its work": (
        PodLife("", "", NOW, NOW + 2, ContainerEnd(NOW + 9, 0, "Completed")),
        "Succeeded",
        "False",
        "terminated",
    ),
    "it was killed for its memory": (
        PodLife("", "", NOW, NOW + 2, ContainerEnd(NOW + 9, 137, "OOMKilled")),
        "Failed",
        "False",
        "terminated",
    ),
}


@pytest.mark.parametrize(("life", "phase", "ready", "state"), LIVES.values(), ids=LIVES)
def test_a_pods_status(life: PodLife, phase: str, ready: str, state: str) -> None:
    status = pod_status(a_pod(), life, NOW + 10)
    assert status["phase"] == phase
    conditions = {c["type"]: c for c in status["conditions"]}
    assert conditions["Ready"]["status"] == ready
    assert conditions["PodScheduled"]["lastTransitionTime"] == "2026-01-01T00:00:00Z", "the scheduler's is kept"
    (container,) = status["containerStatuses"]
    assert list(container["state"]) == [state]
    assert container["ready"] is (ready == "True")
    if life.end is not None:
        assert container["state"]["terminated"]["exitCode"] == life.end.exit_code
        assert container["state"]["terminated"]["finishedAt"] == "2027-01-15T08:00:09Z"


# --- writes


async def drained(queue: WriteQueue) -> None:
    running = asyncio.create_task(queue.run())
    while not queue.idle:
        await asyncio.sleep(0)
    running.cancel()


async def test_of_several_writes_to_one_object_only_the_last_is_sent() -> None:
    queue, sent = WriteQueue(4), []

    def write(what: str):
        async def send() -> None:
            sent.append(what)

        return send

    for key, what in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        queue.put(key, write(what))
    await drained(queue)
    assert sorted(sent) == ["a2", "b1"]
    assert queue.sent == 2


async def test_what_comes_while_the_same_object_is_being_written_is_written_afterwards() -> None:
    queue, sent = WriteQueue(4), []

    async def second() -> None:
        sent.append("second")

    async def first() -> None:
        queue.put("a", second)
        await asyncio.sleep(0)
        sent.append("first")

    queue.put("a", first)
    await drained(queue)
    assert sent == ["first", "second"]


async def test_a_failure_that_passes_is_tried_again_and_a_lost_object_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteQueue, "RETRY_SECONDS", 0.0)
    queue, attempts = WriteQueue(2), []

    async def unreachable_once() -> None:
        attempts.append("a")
        if len(attempts) == 1:
            raise Unreachable("no answer")

    async def gone() -> None:
        attempts.append("b")
        raise NotFound(404, "NotFound", "gone")

    queue.put("a", unreachable_once)
    await drained(queue)
    queue.put("b", gone)
    await drained(queue)
    assert attempts == ["a", "a", "b"]


# --- publication


@pytest.mark.parametrize("rules", [PublishSettings(), PublishSettings().by_kind()], ids=["by unit", "by kind"])
@pytest.mark.parametrize("seed", range(2))
def test_looking_only_at_nodes_that_may_have_news_misses_none(seed: int, rules: PublishSettings) -> None:
    """`Known.may_be_news` is True wherever the agent's own rule would publish for anything but a window's mean."""
    rng = np.random.default_rng(seed)
    count = 40
    settings, agent = CapacitySettings(), AgentInfo("v", "i", "Machine", "Inotify")
    pipeline, known = NodePipeline(settings, count), Known(count, 2)
    published: list[Published | None] = [None] * count
    uids: list[tuple[str, ...]] = [()] * count
    reported, level = 0, rng.random((count, 2))
    for tick in range(1, 600):
        now = tick / 10
        level = np.clip(level + rng.normal(0, 0.02, (count, 2)) * (rng.random((count, 1)) < 0.3), 0, 1)
        if tick % 50 == 0:
            node = int(rng.integers(count))
            pipeline.pod_started(node, now)
            known.pods_changed[node] = True
            uids[node] = (*uids[node], f"pod-{tick}")
        if not pipeline.sample(now, level):
            continue
        report = pipeline.fold(now)
        may = known.may_be_news(report, rules, now)
        windows = pipeline.windows(now)
        for node in range(count):
            context = context_of(report, node, agent, uids[node], NOW + now)
            status = build_status(report, node, settings, context, windows)
            reason = should_publish(published[node], status, now, rules, now)
            if reason is None:
                continue
            before = published[node]
            moved = before and {r.name: r.usage for r in before.status.resources}
            by_window = reason == "Usage" and all(abs(moved[r.name] - r.usage) < rules.usage for r in status.resources)
            assert may[node] or by_window, f"{reason} at {now} on node {node}"
            reported += 1
            due = now + rules.steady_interval_seconds + 4.0
            published[node] = Published(status, now, now, due)
            known.published(node, report, now, due)
    assert reported > count


def test_the_agent_of_a_node_publishes_what_its_pods_cost_by_kind():
    kinds, model, kind = PodKinds(1), NodeFleet([4.0], [2.0**33], np.random.default_rng(0)), kind_of_pod(a_pod())
    for uid in ("a", "b", "c"):
        model.start(uid, 0, PodLoad(wait_seconds=1.0, core_seconds=3.0), 0.0)
        kinds.pod_started(0, uid, kind)
    assert kinds.entries(0, {}, 0.0) == ()
    model.delete("c", 0, 1.0)
    for change in model.advance(60.0):
        if change.change is Change.TERMINATED:
            kinds.pod_ended(0, change.pod, change.at, change.measured if change.reason == "Completed" else None)
    cost = estimate(from_entries(kinds.entries(0, {}, 60.0)), kind)
    assert (cost.basis, round(cost.pods)) == ("Ended", 2)
    assert cost.work == pytest.approx(3.0, rel=0.05)
    # It held its place for its start, the wait, its work and its end: less than a core
    assert 0.4 < cost.share < 0.75


def test_what_a_running_pod_has_shown_is_published_before_it_ends():
    kinds, model, kind = PodKinds(1), NodeFleet([4.0], [2.0**33], np.random.default_rng(0)), kind_of_pod(a_pod())
    model.start("a", 0, PodLoad(wait_seconds=0.0, core_seconds=60.0), 0.0)
    kinds.pod_started(0, "a", kind)
    for now in (6.0, 10.0, 14.0):
        model.advance(now)
        entries = kinds.entries(0, model.pod_measurements(0, ["a"], now), now)
    assert estimate(from_entries(entries), kind).basis == "Running"


async def test_an_object_whose_creation_was_not_confirmed_is_looked_up():
    lease = build_lease("hollow-0000", "uid-of-the-node", 60.0, NOW)
    async with faulty([hangs_up, says(200, lease)]) as server:
        assert await create_owned(server.session, LEASES, lease) == lease
        assert [each.split()[0] for each in server.seen] == ["POST", "GET"]


# Starts simulated nodes, prints their process, and waits to be killed
PARENT = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "e2e.testbed.hollow", "--nodes=3", f"--with-parent={os.getpid()}", *sys.argv[1:]]
print(subprocess.Popen(command).pid, flush=True)
time.sleep(600)
"""


def kubeconfig_of(listener: socket.socket) -> str:
    server = f"http://127.0.0.1:{listener.getsockname()[1]}"
    return f"""
clusters: [{{name: c, cluster: {{server: "{server}"}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""


def runs(pid: int) -> bool:
    """Whether the process is there, and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_simulated_nodes_end_with_the_process_that_started_them_however_it_ends(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # an API server that takes requests and does not answer
        listener.setblocking(False)
        (tmp_path / "kubeconfig").write_text(kubeconfig_of(listener))
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT, f"--kubeconfig={tmp_path / 'kubeconfig'}"),
            cwd=REPOSITORY,
            stdout=asyncio.subprocess.PIPE,
        )
        assert parent.stdout is not None
        hollow = int(await parent.stdout.readline())
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        parent.kill()
        await parent.wait()
        try:
            await eventually(lambda: not runs(hollow), within_seconds=30)
        finally:
            connection.close()
            if runs(hollow):
                os.kill(hollow, signal.SIGKILL)
