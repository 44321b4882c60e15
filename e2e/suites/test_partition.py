"""The leader is cut off from the API server: nothing that it writes arrives after its successor's first record.

By default one way to be cut off, with a short Lease. ``CONCERTO_PARTITION_SECONDS=17`` (`make chaos`) tries every way,
for so long, with the Lease's own durations.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.network import Network
from e2e.testbed.nodes.config import kubeconfig_for_node
from e2e.testbed.processes import QUICK_LEASE, Process, operator_process
from e2e.testbed.recorder import Recorder
from e2e.testbed.requirements import require_local_plane, require_network
from e2e.testbed.system import System, hollow_nodes
from e2e.testbed.waiting import eventually

SECONDS = float(os.environ.get("CONCERTO_PARTITION_SECONDS", "0"))
LEASE = () if SECONDS else QUICK_LEASE
CUT_SECONDS = SECONDS or 4.0
"""Longer than the Lease lasts."""
BREAKS: dict[str, tuple[Callable[[Network], None], ...]] = {
    "nothing goes out": (Network.drop_outgoing,),
    "nothing comes in": (Network.drop_incoming,),
    "nothing goes either way": (Network.drop_outgoing, Network.drop_incoming),
    "a third is lost before all is": (lambda network: network.lose(0.3), Network.drop_outgoing),
}
TOO_LARGE = "too-large-"
SAMPLE = list(BREAKS) if SECONDS else ["nothing goes out"]


def move_inside(network: Network, plane: LocalControlPlane, operator: Process) -> None:
    """Have an operator run in a network of its own, and reach the API server over its cable."""
    command = list(operator.command)
    position = command.index("--kubeconfig") + 1
    text, _ = kubeconfig_for_node(Path(command[position]).read_text(), network.host)
    own = operator.log.with_suffix(".kubeconfig")
    own.write_text(text)
    command[position] = str(own)
    operator.command = network.wrap(command)


@pytest.fixture
def network() -> Iterator[Network]:
    with require_network() as opened:
        yield opened


@pytest.mark.parametrize("how", SAMPLE)
def test_nothing_that_a_leader_wrote_while_cut_off_arrives_after_its_successors_first_record(
    concerto_cluster, network: Network, namespace: str, tmp_path: Path, say: Callable[[str], None], how: str
) -> None:
    plane = require_local_plane(concerto_cluster)
    first = operator_process(plane, tmp_path, "operator-cut-off", LEASE)
    move_inside(network, plane, first)
    second = operator_process(plane, tmp_path, "operator-successor", LEASE, restarts=True)
    numbers = itertools.count()

    def place_more() -> None:
        """A pod to place and one that finds no node, so that a leader has both records and conditions to write."""
        for name, cpu in ((f"p{next(numbers)}", "0"), (f"{TOO_LARGE}{next(numbers)}", "1000")):
            container = {"name": "c", "image": "none.invalid/none", "resources": {"requests": {"cpu": cpu}}}
            pod = {
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"schedulerName": "concerto", "restartPolicy": "Never", "containers": [container]},
            }
            plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    def holder() -> str:
        leases = plane.get("leases", "-n", "concerto-system")["items"]
        return str(
            next((i["spec"]["holderIdentity"] for i in leases if i["metadata"]["name"] == "concerto-operator"), "")
        )

    with hollow_nodes(plane, 2, "--prefix", "cut"), Recorder(str(plane.kubeconfig)) as recorder:

        def leaders() -> int:
            """How many have written placement records; pods come meanwhile."""
            place_more()
            return len(recorder.writers())

        try:
            first.start()
            eventually(lambda: f"the first places pods: {first.log.read_text()}", lambda: leaders() == 1)
            leader = holder()
            second.start()
            second.wait_ready()
            for cut in BREAKS[how]:
                cut(network)
            cut_at = time.monotonic()
            # It goes on deciding until its right ends: what it sends then must not arrive later
            eventually("another leads", lambda: place_more() or holder() != leader)
            leads_after = time.monotonic() - cut_at
            eventually(lambda: f"it places pods: {second.log.read_text()}", lambda: leaders() == 2)
            eventually("the cut has lasted", lambda: place_more() or time.monotonic() - cut_at > CUT_SECONDS)
            network.mend()
            eventually("the first has ended", lambda: not first.is_running())
            eventually(
                "every pod is bound",
                lambda: all(
                    p["spec"].get("nodeName") or p["metadata"]["name"].startswith(TOO_LARGE)
                    for p in plane.get("pods", "-n", namespace)["items"]
                ),
            )
            left = System(plane, [], None, {}, second, plane.logs).wait_no_batches()
        finally:
            for process in (first, second):
                process.stop()
        recorder.stop()
        verdict = recorder.verify()
    say(
        f"partition, {how}: another led after {leads_after:.1f} s; {verdict.pods_bound} pods bound, "
        f"{len(verdict.late)} late writes, {len(verdict.rebound)} bound twice"
    )
    assert not verdict.late, "\n".join(verdict.late)
    assert not verdict.rebound
    assert not verdict.violations, "\n".join(verdict.violations)
    assert not left
