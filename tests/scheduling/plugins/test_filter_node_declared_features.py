import pytest

from concerto.api.node import NodeView, trim_node
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.scheduling.plugins.node_declared_features.filter import NodeDeclaredFeatures
from support.scheduling_builders import cluster_state, passes, query, raw_pod, reasons

RESTART, NETWORK = "RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"


def view(name, *features):
    raw = {"metadata": {"name": name}, "status": {"declaredFeatures": list(features)}}
    return NodeView.from_raw(trim_node(raw))


CLUSTER = cluster_state([view("old"), view("new", RESTART), view("newest", RESTART, NETWORK)])


def container(action="RestartAllContainers"):
    return {"name": "c", "restartPolicyRules": [{"action": action, "exitCodes": {"operator": "In", "values": [1]}}]}


CASES = {
    "a plain pod": ({}, ["old", "new", "newest"]),
    "a container that restarts all": ({"containers": [container()]}, ["new", "newest"]),
    "an init container that restarts all": ({"initContainers": [container()]}, ["new", "newest"]),
    "a container that restarts alone": ({"containers": [container("Restart")]}, ["old", "new", "newest"]),
    "host network with users of its own": ({"hostNetwork": True, "hostUsers": False}, ["newest"]),
    "host network with the host's users": ({"hostNetwork": True}, ["old", "new", "newest"]),
    "both": ({"hostNetwork": True, "hostUsers": False, "containers": [container()]}, ["newest"]),
}


@pytest.mark.parametrize(("spec", "names"), CASES.values(), ids=CASES)
def test_nodes_whose_kubelets_have_the_features(spec, names):
    pod = PodView.from_raw(trim_pod(raw_pod(**spec)))
    assert passes(NodeDeclaredFeatures(), query(CLUSTER, pod)) == names


def test_the_reason_is_kube_schedulers():
    pod = PodView.from_raw(raw_pod(containers=[container()]))
    assert reasons(NodeDeclaredFeatures(), query(CLUSTER, pod)) == {"node(s) didn't match Pod's required features": 1}
