import pytest

from concerto.scheduling.plugins.pod_topology_spread.filter import PodTopologySpread
from concerto.scheduling.state import labels as labels_module
from support.scheduling_builders import NOW, cluster_state, node, passes, pod, query, reasons
from support.step_counts import steps_of

ZONES = {"a1": "a", "a2": "a", "b": "b", "c": "c"}
NODES = [*(node(name, labels={"zone": zone}) for name, zone in ZONES.items()), node("bare")]
TAINTED = [*NODES[:3], node("c", labels={"zone": "c"}, taints=[("gone", "", "NoSchedule")])]
X = {"labels": {"app": "x"}}


def spread(key="zone", skew=1, app="x", **over):
    return {
        "topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}}, **over,
    }  # fmt: skip


def by(*constraints, **over):
    return {"topologySpreadConstraints": list(constraints), **X, **over}


def running(**counts):
    """So many pods with the label on each node."""
    return [pod(f"{on}-{i}", nodeName=on, **X) for on, count in counts.items() for i in range(count)]


CASES = {
    "empty: any zone, but no node without one": (NODES, [], by(spread()), ["a1", "a2", "b", "c"]),
    "one in a: the others first": (NODES, running(a1=1), by(spread()), ["b", "c"]),
    "two more are allowed": (NODES, running(a1=1), by(spread(skew=2)), ["a1", "a2", "b", "c"]),
    "one in each: any": (NODES, running(a1=1, b=1, c=1), by(spread()), ["a1", "a2", "b", "c"]),
    "pods on a node without the label do not count": (NODES, running(bare=5), by(spread()), ["a1", "a2", "b", "c"]),
    "a pod that does not select itself adds nothing": (
        NODES, running(a1=1), by(spread(), labels={}), ["a1", "a2", "b", "c"],
    ),
    "two constraints": (
        NODES, running(a1=1, b=1, c=1), by(spread(), spread("kubernetes.io/hostname")), ["a2"],
    ),
    "fewer domains than wanted: the fewest count as 0": (
        NODES, running(a1=1, b=1, c=1), by(spread(minDomains=4)), [],
    ),
    "as many as wanted": (NODES, running(a1=1, b=1, c=1), by(spread(minDomains=3)), ["a1", "a2", "b", "c"]),
    "pods of another namespace do not count": (
        NODES, [pod("p", nodeName="a1", namespace="o", **X)], by(spread()), ["a1", "a2", "b", "c"],
    ),
    "nor those that are being deleted": (
        NODES, [pod("p", nodeName="a1", deleting=True, **X)], by(spread()), ["a1", "a2", "b", "c"],
    ),
    "a domain that the pod can't select does not count": (
        NODES, running(a1=1, b=1), by(spread(), nodeSelector={"zone": "a"}), ["a1", "a2", "b", "c"],
    ),
    "unless the policy says so": (
        NODES, running(a1=1, b=1), by(spread(nodeAffinityPolicy="Ignore"), nodeSelector={"zone": "a"}), ["c"],
    ),
    "a tainted domain counts": (TAINTED, running(a1=1, b=1), by(spread()), ["c"]),
    "unless the policy says that taints are honoured": (
        TAINTED, running(a1=1, b=1), by(spread(nodeTaintsPolicy="Honor")), ["a1", "a2", "b", "c"],
    ),
    "only pods with the same value of a label": (
        NODES, [pod("old", nodeName="a1", labels={"app": "x", "hash": "1"})],
        by(spread(matchLabelKeys=["hash"]), labels={"app": "x", "hash": "2"}), ["a1", "a2", "b", "c"],
    ),
    "what should rather be is no constraint": (
        NODES, running(a1=9), by(spread() | {"whenUnsatisfiable": "ScheduleAnyway"}), ["a1", "a2", "b", "c", "bare"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "there", "over", "names"), CASES.values(), ids=CASES)
def test_pods_go_to(nodes, there, over, names):
    assert passes(PodTopologySpread(), query(cluster_state(nodes, there), pod("new", **over))) == names


def test_why_nodes_are_refused_in_kube_scheduler_s_words():
    asked = query(cluster_state(NODES, running(a1=1)), pod("new", **by(spread())))
    assert reasons(PodTopologySpread(), asked) == {
        "node(s) didn't match pod topology spread constraints": 2,
        "node(s) didn't match pod topology spread constraints (missing required label)": 1,
    }


def test_a_pod_that_begins_to_end_counts_no_more():
    cluster = cluster_state(NODES, running(a1=1))
    new = pod("new", **by(spread()))
    assert passes(PodTopologySpread(), query(cluster, new)) == ["b", "c"]
    cluster.set_pod(pod("a1-0", nodeName="a1", deleting=True, **X), NOW)
    assert passes(PodTopologySpread(), query(cluster, new)) == ["a1", "a2", "b", "c"]


def test_when_the_node_of_an_empty_domain_goes_pods_are_looked_at_again():
    plugin, cluster, new = PodTopologySpread(), cluster_state(NODES, running(a1=1, b=1)), pod("new", **by(spread()))
    assert passes(plugin, query(cluster, new)) == ["c"]
    assert cluster.remove_node("c") & plugin.requeue_on
    assert passes(plugin, query(cluster, new)) == ["a1", "a2", "b"]


def test_a_placement_changes_answers_only_where_a_domain_becomes_skewed_or_even():
    plugin = PodTopologySpread()
    cluster = cluster_state(NODES)
    rows = {name: cluster.row_of[name] for name in ("a1", "a2", "b", "c")}
    state = plugin.prepare(query(cluster, pod("new", **by(spread()))))

    def changed(act, name):
        found = act(state, pod(f"on-{name}", **X), rows[name])
        return [name for name, row in rows.items() if row in found]

    assert changed(plugin.add_pod, "a1") == ["a1", "a2"]
    assert changed(plugin.add_pod, "a2") == [], "zone a is skewed already"
    assert changed(plugin.add_pod, "b") == ["b"]
    assert changed(plugin.add_pod, "c") == ["b"], "zones b and c are even; a still has one more"
    assert changed(plugin.remove_pod, "a2") == ["a1", "a2"]
    assert changed(plugin.remove_pod, "c") == ["a1", "a2", "b"]


def test_many_labels_of_one_node_are_looked_at_once_for_all_constraints(monkeypatch):
    monkeypatch.setattr(labels_module, "MAX_LABELS", 10)

    def steps(keys):
        labels = {f"k{i}": "v" for i in range(keys)}
        cluster = cluster_state([node("odd", labels=labels), *(node(f"n{i}") for i in range(30))])
        pods = [pod(name, **by(*(spread(key) for key in labels))) for name in ("p", "q")]
        assert passes(PodTopologySpread(), query(cluster, pods[0])) == ["odd"]
        return steps_of(lambda: passes(PodTopologySpread(), query(cluster, pods[1])))

    assert steps(60) < 3 * steps(30), "4 times where each constraint looks at the labels of all"
