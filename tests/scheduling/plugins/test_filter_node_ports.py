import pytest

from concerto.scheduling.plugins.node_ports.filter import NodePorts
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons


def ports(*items):
    return {"containers": [{"name": "c", "ports": [dict(zip(("hostPort", "hostIP", "protocol"), i)) for i in items]}]}


CASES = {
    "none wanted": ((), ["a", "b"]),
    "a free one": (((81,),), ["a", "b"]),
    "a taken one": (((80,),), ["b"]),
    "taken on all addresses": (((80, "10.0.0.1"),), ["b"]),
    "taken on another address": (((90, "10.0.0.2"),), ["a", "b"]),
    "all addresses, one of which is taken": (((90,),), ["b"]),
    "another protocol": (((80, "0.0.0.0", "UDP"),), ["a", "b"]),
    "one of two": (((81,), (80,)), ["b"]),
}


@pytest.mark.parametrize(("wanted", "names"), CASES.values(), ids=CASES)
def test_host_ports_must_be_free(wanted, names):
    there = pod("there", nodeName="a", **ports((80,), (90, "10.0.0.1")))
    asked = query(cluster_state([node("a"), node("b")], [there]), pod("p", **ports(*wanted)))
    assert passes(NodePorts(), asked) == names


def test_a_port_is_free_again_when_its_pod_ends():
    there = pod("there", nodeName="a", **ports((80,)))
    cluster = cluster_state([node("a")], [there])
    asked = query(cluster, pod("p", **ports((80,))))
    assert reasons(NodePorts(), asked) == {"node(s) didn't have free ports for the requested pod ports": 1}
    cluster.remove_pod(there.uid)
    assert passes(NodePorts(), asked) == ["a"]
