"""etcd is restored from an earlier state under a running Concerto: operator and agent begin afresh, and all goes on."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.processes import agent_process, operator_process
from e2e.testbed.system import install
from e2e.testbed.waiting import eventually
from e2e.testbed.watcher_client import WatcherClient

NODE = "restored"


def with_storage_stopped(plane: LocalControlPlane, old: Path, new: Path) -> None:
    """Put a copy of one folder in the place of another while nothing runs that reads it."""
    plane.stop_apiserver()
    plane.stop_etcd()
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(old, new)
    plane.start_etcd()
    plane.start_apiserver()


def test_after_a_restore_operator_and_agent_see_what_is_written_at_earlier_versions(own_plane, tmp_path):
    storage, snapshot = own_plane.work_dir / "etcd", tmp_path / "snapshot"
    install(own_plane)
    own_plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    agent = agent_process(own_plane, tmp_path, NODE)
    agent.restarts = True  # as its kubelet does
    operator = operator_process(own_plane, tmp_path, restarts=True)
    watcher = WatcherClient(f"http://{operator.health}")

    def reported_since(when: float) -> bool:
        try:
            found = watcher.host(NODE)
        except OSError:
            return False  # it is being started
        return found is not None and found.end > when

    def reports(when: float) -> None:
        eventually(
            lambda: f"the operator has the agent's status: {operator.log.read_text()}", lambda: reported_since(when)
        )

    try:
        agent.start()
        look = ("get", "ncap", NODE, "-o", "json")
        eventually("the agent publishes", lambda: "observedAt" in own_plane.kubectl(*look, check=False))
        with_storage_stopped(own_plane, storage, snapshot)
        operator.start()
        metadata = [{"name": f"c{n}", "namespace": "default"} for n in range(300)]
        own_plane.apply(*({"apiVersion": "v1", "kind": "ConfigMap", "metadata": each} for each in metadata))
        reports(time.time())
        # What the agent does by a spec shows that it has seen a version after all those
        spec = '{"spec": {"heartbeat": "20s"}}'
        own_plane.kubectl("patch", "ncap", NODE, "--type=merge", "-p", spec)

        def follows() -> bool:
            found = json.loads(own_plane.kubectl(*look))
            return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

        eventually("the agent has seen the new spec", follows)

        with_storage_stopped(own_plane, snapshot, storage)
        restored_at = time.time()
        eventually("the agent sees it", lambda: "StorageWentBack" in agent.log.read_text())
        reports(restored_at)
    finally:
        for process in (operator, agent):
            process.stop()
