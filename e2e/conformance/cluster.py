"""The cluster that the tests run on: a control plane, two real nodes in two zones, and one scheduler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.clusters.binaries import Binaries, Say
from e2e.testbed.images import PAUSE_IMAGE
from e2e.testbed.nodes import RealNodes
from e2e.testbed.processes import operator_process
from e2e.testbed.system import System, agent_on, install

NODES = ("n1", "n2")
CONCERTO, KUBE_SCHEDULER = "concerto", "kube-scheduler"
# Tests of gangs want their kinds, which Kubernetes 1.37 has switched off by default
_GATES = "--feature-gates=GenericWorkload=true"
_GANG_KINDS = "--runtime-config=scheduling.k8s.io/v1beta1=true"
_PROFILE = {
    "apiVersion": "concerto.dev/v1alpha1",
    "kind": "SchedulingProfile",
    "metadata": {"name": "default"},
    "spec": {"schedulerName": "default-scheduler"},
}
# Before many a test the suite waits up to a minute for such pods on each node, and goes on without them
_ADD_ONS = "kube-proxy-fluentd-elasticsearch-node-problem-detector"


def add_ons(node: str, image: str) -> dict[str, Any]:
    """A pod that stands for add-ons of a node which the suite looks for by their names, and does nothing."""
    spec = {
        "nodeName": node,
        "priorityClassName": "system-node-critical",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "pause", "image": image}],
    }
    metadata = {"name": f"{_ADD_ONS}-{node}", "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@contextlib.contextmanager
def cluster_with(scheduler: str, binaries: Binaries, images: Sequence[Path], say: Say) -> Iterator[LocalControlPlane]:
    """A cluster whose pods that name no scheduler are placed by one scheduler, and by no other.

    Args:
        scheduler: `CONCERTO`, with its agents and measured capacity, or `KUBE_SCHEDULER`.
        binaries: the control plane's programs.
        images: archives for every node.
        say: called with what is done.

    Raises:
        NodeError: real nodes cannot run here.
    """
    control_plane = LocalControlPlane(
        binaries,
        scheduler=scheduler == KUBE_SCHEDULER,
        apiserver_flags=(_GATES, _GANG_KINDS),
        controller_manager_flags=(_GATES,),
        scheduler_flags=(_GATES,),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(control_plane)
        say(f"nodes {' and '.join(NODES)}: kubelet, containerd and runc, one zone each (15 s)")
        # A test looks for ephemeral storage among what nodes report
        kubelet = {"localStorageCapacityIsolation": True}
        nodes = stack.enter_context(RealNodes(control_plane, NODES, kubelet_config=kubelet))
        nodes.wait_ready()
        for node in nodes:
            control_plane.kubectl("label", "node", node.name, f"topology.kubernetes.io/zone=zone-{node.name}")
            for image in images:
                node.import_image(image)
            control_plane.apply(add_ons(node.name, PAUSE_IMAGE))
        if scheduler == CONCERTO:
            stack.enter_context(_concerto(control_plane, nodes, say))
        yield control_plane


@contextlib.contextmanager
def _concerto(control_plane: LocalControlPlane, nodes: RealNodes, say: Say) -> Iterator[None]:
    install(control_plane)
    control_plane.apply(_PROFILE)
    say("operator and agents, each with its own service account token; kube-scheduler does not run (10 s)")
    operator = operator_process(control_plane, control_plane.logs, restarts=True)
    agents = {node.name: agent_on(control_plane, node, control_plane.logs) for node in nodes}
    with contextlib.ExitStack() as stack:
        for process in (operator, *agents.values()):
            process.start()
            stack.callback(process.stop)
        operator.wait_ready()
        System(control_plane, list(agents), nodes, agents, operator, control_plane.logs).wait_measured()
        yield
