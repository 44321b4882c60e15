import pytest

from concerto.scheduling.plugins.node_ports.filter import NodePorts
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons
from support.step_counts import steps_of


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
    "one of two addresses": (((90, "10.0.0.2"), (90, "10.0.0.1")), ["b"]),
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


def test_a_port_of_which_other_pods_have_many_addresses_costs_what_it_asks_for():
    def steps(addresses):
        many = ports(*((80, f"10.0.{i // 250}.{i % 250}") for i in range(addresses)))
        there = [pod(f"p{i}", nodeName=f"n{i}", **many) for i in range(3)]
        asked = query(cluster_state([node(f"n{i}") for i in range(4)], there), pod("p", **many))
        assert passes(NodePorts(), asked) == ["n3"]
        return steps_of(lambda: passes(NodePorts(), asked))

    assert steps(400) < 6 * steps(100), "16 times where each is compared with each"


@pytest.mark.parametrize("nodes", [3, 40], ids=["few rows", "many rows"])
def test_a_pod_with_many_ports_is_compared_with_those_of_each_node(nodes):
    many = ports(*((number,) for number in range(1, 300)))
    there = [pod(f"p{i}", nodeName=f"n{i}", **many) for i in range(nodes)]
    there += [pod("other", nodeName="free", **ports((1000,), (299, "10.0.0.1", "UDP")))]
    asked = query(cluster_state([*(node(f"n{i}") for i in range(nodes)), node("free")], there), pod("p", **many))
    assert passes(NodePorts(), asked) == ["free"]
