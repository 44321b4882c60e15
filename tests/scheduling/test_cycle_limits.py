"""What one cycle may cost, whatever pods, nodes and agents are like."""

import bisect
import marshal
import re
from collections import Counter

import numpy as np
import pytest

from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod_shape import MAX_BYTES
from concerto.api.score_arguments import ScoreSettings
from concerto.api.selectors import LabelSelector
from concerto.scheduling import one_cycle as cycle_module
from concerto.scheduling.cycle import schedule
from concerto.scheduling.explanation import explain
from concerto.scheduling.framework import FilterDefaults
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.pod_counts import MAX_COMPARISONS, MAX_PARTS
from concerto.scheduling.state.pod_selection import PodSelection
from support.daemon_sets import daemon_affinity
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.step_counts import steps_of

NODES = 5000
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REFUSES_ETCD = {
    "podAntiAffinity": {
        REQUIRED: [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "etcd"}}}]
    }
}


def without_room(nodes):
    """Nodes without room, on one of which a pod refuses its like."""
    cluster = ClusterState()
    for i in range(nodes):
        cluster.set_node(node(f"n{i}"))
        cluster.set_capacity(capacity(f"n{i}", 0.0), NOW)
    cluster.set_pod(pod("etcd-0", nodeName="n0", labels={"app": "etcd"}, affinity=REFUSES_ETCD), NOW)
    return cluster


@pytest.fixture(scope="module")
def full():
    """5,000 nodes without room."""
    return without_room(NODES)


@pytest.fixture(scope="module")
def few_nodes():
    """100 nodes without room, to count what a cycle takes."""
    return without_room(100)


def cycle(cluster, heads, made=None, **over):
    made = made or profile()
    return schedule(cluster, heads, {"concerto": made}, now=NOW, generator=np.random.default_rng(0), **over)


def until_decided(cluster, heads):
    """The names of pods that are placed, and why others are not, once that is known of all."""
    placed, failures = [], []
    for _ in range(40):  # what their terms select is counted in parts
        result = cycle(cluster, heads)
        placed += [decision.pod.name for decision in result.decisions]
        failures += result.unschedulable
        heads = [each for each in heads if each.name not in {*placed, *(failure.pod.name for failure in failures)}]
        if not result.has_more:
            return placed, failures
    raise AssertionError(f"nothing is decided on {heads}")


def job(i):
    return pod(f"job-{i}", labels={"batch.kubernetes.io/job-name": f"job-{i}", "spark-exec-id": str(i)})


def test_jobs_that_differ_in_their_names_alone_are_looked_at_once(full, monkeypatch):
    queue = Queue(signatures=full.signatures)
    for i in range(24_000):
        queue.set(job(i))
    looks, evaluation = [], cycle_module.Evaluation
    monkeypatch.setattr(cycle_module, "Evaluation", lambda *args: looks.append(args) or evaluation(*args))
    result = cycle(full, queue.heads(NOW))
    assert len(looks) == 1
    assert len({id(u.diagnosis) for u in result.unschedulable}) == 1


def test_a_cycle_stops_when_its_time_is_over_and_the_next_goes_on(full):
    queue = Queue(signatures=full.signatures)
    for i in range(40):
        queue.set(pod(f"p{i}", requests={"cpu": f"{i + 1}m"}))
    queue.set(pod("quiet", namespace="quiet", requests={"cpu": "1"}))
    looked_at, clock = [], [0.0]

    def spent():
        clock[0] += 0.05
        return clock[0]

    resume = False
    for _ in range(20):
        clock[0] = 0.0
        result = cycle(full, queue.heads(NOW, resume=resume), spent=spent, max_seconds=0.2)
        assert 1 <= len(result.unschedulable) <= 5
        for failure in result.unschedulable:
            looked_at.append(failure.pod.name)
            queue.mark_all([(failure.pod.uid, failure.diagnosis.requeue_on, False)], NOW)
        queue.requeue(Change.CAPACITY)
        resume = result.out_of_time
    assert looked_at.index("quiet") < 5, "its namespace has its turn"
    assert set(looked_at) == {"quiet", *(f"p{i}" for i in range(40))}, "events do not send it back to the first"


def test_one_pod_is_looked_at_even_if_there_is_no_time_at_all(full):
    result = cycle(full, [pod("a"), pod("b")], spent=lambda: 1e9)
    assert [u.pod.name for u in result.unschedulable] == ["a"]
    assert result.out_of_time
    assert result.has_more


HOSTILE = {
    "hostnames by the thousand": lambda i: {"key": "kubernetes.io/hostname", "operator": "In",
                                            "values": [f"n{j}" for j in range(300)]},
    "labels that no node has": lambda i: {"key": f"k{i}", "operator": "Exists"},
    "comparisons with every node's name": lambda i: {"key": "kubernetes.io/hostname", "operator": "Gt",
                                                     "values": [str(i)]},
    "negations": lambda i: {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [f"n{i}"]},
}  # fmt: skip


@pytest.mark.parametrize("expression", HOSTILE.values(), ids=HOSTILE)
def test_the_largest_affinity_that_is_evaluated_compares_each_node_once_with_each_term(few_nodes, expression):
    def terms(count):
        return [{"matchExpressions": [expression(i)]} for i in range(count)]

    def with_terms(count):
        return pod("p", affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms(count)}}})

    count = bisect.bisect(range(2000), 0, key=lambda count: bool(with_terms(count).shape.unsupported)) - 1
    largest = with_terms(count)
    assert len(marshal.dumps(terms(count), 2)) > 0.9 * MAX_BYTES
    steps = steps_of(lambda: cycle(few_nodes, [largest]))
    assert steps < 20 * count * 100 + 400 * count + 200_000


def test_tolerations_and_taints_by_the_thousand_are_not_compared_with_each_other():
    taints = {f"n{i}": [("held-until", str(i), "NoSchedule")] for i in range(200)}
    cluster = cluster_state([node(name, taints=each) for name, each in taints.items()])

    def steps(count):
        tolerations = [{"key": "held-until", "operator": "Equal", "value": f"x{i}"} for i in range(count)]
        heads = [pod("p", tolerations=tolerations)]
        assert len(cycle(cluster, heads).unschedulable) == 1
        return steps_of(lambda: cycle(cluster, heads))

    assert steps(900) - steps(90) < 100 * 900


def test_a_pod_that_asks_for_what_no_node_offers_gets_an_event_in_kube_scheduler_s_words(full):
    (failure,) = cycle(full, [pod("p", requests={"e.vl/r": "1"})]).unschedulable
    assert failure.diagnosis.message == "0/5000 nodes are available: 5000 Insufficient e.vl/r."


def test_resources_by_the_thousand_that_no_node_offers_are_not_looked_for_on_each_node(few_nodes):
    many = pod("p", requests={f"e.vl/r{i}": "1" for i in range(2000)})
    assert steps_of(lambda: cycle(few_nodes, [many])) < 100 * 2000


class Broken(FilterDefaults):
    """A filter with a fault that one pod brings out."""

    name = "Broken"
    requeue_on = Change.NODE

    def check(self, state, rows):
        if state.pod.labels.get("app") == "poison":
            raise ZeroDivisionError
        return np.zeros_like(state.cluster.nodes.exists[rows], dtype=np.int8)


def test_an_error_over_one_pod_is_that_pod_s_failure_and_nobody_else_s():
    made = profile()
    faulty = Profile(made.settings, (Broken(), *made.filters), made.scores)
    cluster = cluster_state([node("a")], (), [capacity("a")])
    heads = [pod("first"), pod("bad", labels={"app": "poison"}, requests={"cpu": "1m"}), pod("last")]
    result = cycle(cluster, heads, faulty)
    assert [d.pod.name for d in result.decisions] == ["first", "last"]
    (failure,) = result.unschedulable
    assert isinstance(failure.error, ZeroDivisionError)
    assert failure.diagnosis.message.startswith("Scheduling failed with an internal error (ZeroDivisionError)")
    assert not cluster.is_placed("uid-bad")


def test_a_node_without_cpus_is_no_trouble_to_others():
    cluster = cluster_state([node("good"), node("empty")], (), [capacity("good"), capacity("empty")])
    one = {"cpus": [0, 1], "sockets": {"0": {"cpus": [0, 1], "cores": {"0": {"cpus": [0]}, "1": {"cpus": [1]}}}},
           "numaNodes": {"0": {"cpus": [0, 1]}}}  # fmt: skip
    for name, topology in (("good", one), ("empty", {"cpus": [], "sockets": {}, "numaNodes": {}})):
        cluster.set_topology(NodeCPUTopology.from_raw({"metadata": {"name": name}, "status": {"topology": topology}}))
    made = profile(scores=(ScoreSettings("WorkloadAware"),))
    for kind in ("cpu-bound", "memory-bound", "io-bound", "best-effort"):
        labelled = pod(f"p-{kind}", labels={"concerto.dev/workload-type": kind}, requests={"cpu": "1"})
        result = cycle(cluster, [labelled], made)
        assert [d.assignment.node for d in result.decisions] == ["good"], kind
        cluster.forget(labelled.uid)


ABSURD = {"many": 1e9, "beyond the CRD": 1e70, "infinite": float("inf"), "no number": float("nan"), "negative": -1e70}


@pytest.mark.parametrize("value", ABSURD.values(), ids=ABSURD)
def test_an_absurd_capacity_draws_no_more_than_its_node_allows_and_keeps_nobody_from_the_others(value):
    honest = [f"n{i:02}" for i in range(20)]
    statuses = [*(capacity(name, 20.0 - i / 4) for i, name in enumerate(honest)), capacity("hostile", value)]
    cluster = cluster_state([*map(node, honest), node("hostile", allocatable={"pods": 30})], (), statuses)
    result = cycle(cluster, [pod(f"p{i}") for i in range(250)])
    on = Counter(d.assignment.node for d in result.decisions)
    assert len(result.decisions) == 250
    assert on["hostile"] <= 30
    written = [d.assignment.to_raw()["available"] for d in result.decisions]
    assert all(re.fullmatch(r"-?[0-9]{1,7}(\.[0-9]+)?", text) and len(text) <= 64 for text in written)
    assert max(on[name] for name in honest) - min(on[name] for name in honest) <= 10, "the others still differ"


def test_an_agent_that_counts_pods_as_it_likes_has_no_more_room_than_its_node_has_places():
    bound = [pod(f"p{i}", nodeName="hostile") for i in range(10)]
    ended = [pod(f"ended{i}", nodeName="hostile", phase="Succeeded") for i in range(200)]
    counted = tuple(each.uid for each in (*bound, *ended))
    cluster = cluster_state([node("hostile", allocatable={"pods": 30})], [*bound, *ended])
    assert cluster.set_capacity(capacity("hostile", 30.0, counted, room=30.0), NOW)
    assert cluster.ledger.nodes.startable("hostile") == 20.0
    assert cluster.ledger.nodes.holdable("hostile") == 20.0


def test_one_outlier_does_not_make_all_others_alike():
    statuses = [capacity("a", 4.0), capacity("b", 1.0), capacity("outlier", 110.0)]
    cluster = cluster_state([node("a"), node("b"), node("outlier")], (), statuses)
    scores = {v.node: v.total for v in explain(cluster, pod("p"), profile(), NOW)}
    assert scores == {"outlier": 100.0, "a": 10.0, "b": 3.0}


def test_a_reservation_holds_no_more_than_the_node_allows():
    cluster = cluster_state([node("n", allocatable={"pods": 3})], (), [capacity("n", 1e9, room=1e9)])
    assert cluster.ledger.nodes.holdable("n") == 3.0


def unmeasured(*nodes):
    """Ten measured nodes without room, and others without a status."""
    full = [f"full{i}" for i in range(10)]
    return cluster_state([*map(node, full), *nodes], (), [capacity(name, 0.0) for name in full])


def test_a_node_that_just_joined_gets_a_ration_until_its_agent_reports():
    cluster = unmeasured(node("new"))
    heads = [pod(f"p{i}") for i in range(250)]
    result = cycle(cluster, heads)
    assert [d.assignment.node for d in result.decisions] == ["new"] * 5
    assert result.unschedulable[-1].diagnosis.message == (
        "0/11 nodes are available: 1 node(s) had their ration of 5 pods until their agent reports, "
        "10 Insufficient measured capacity."
    )
    cluster.set_capacity(capacity("new", 7.0, version=2), NOW)
    assert len(cycle(cluster, heads).decisions) == 2, "five of the seven are in flight"


def test_where_no_node_is_measured_requests_alone_count():
    cluster = cluster_state([node("a"), node("b")])
    assert len(cycle(cluster, [pod(f"p{i}") for i in range(50)]).decisions) == 50


def test_the_last_word_of_an_agent_that_does_not_report_any_more_still_bounds_its_node():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 0.0), capacity("b", 2.0)])
    late = schedule(
        cluster, [pod(f"p{i}") for i in range(9)], {"concerto": profile()}, now=NOW + 1e5,
        generator=np.random.default_rng(0),
    )  # fmt: skip
    assert [(d.assignment.node, d.assignment.basis) for d in late.decisions] == [("b", "Requests")] * 2
    assert late.unschedulable[0].diagnosis.message == "0/2 nodes are available: 2 Insufficient measured capacity."


VIRTUAL = {"labels": {"type": "virtual-kubelet"}, "taints": [("virtual-kubelet.io/provider", "azure", "NoSchedule")]}
ASKS_FOR_WINDOWS = {"nodeSelector": {"kubernetes.io/os": "windows"}}
TOLERATES = {"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]}
AGENTLESS = {
    "Windows is no overflow": ({"labels": {"kubernetes.io/os": "windows"}}, {}, 0),
    "Windows for those that select it": ({"labels": {"kubernetes.io/os": "windows"}}, ASKS_FOR_WINDOWS, 9),
    "a virtual node for those that tolerate it": (VIRTUAL, TOLERATES, 9),
    "Fargate is no overflow": ({"labels": {"eks.amazonaws.com/compute-type": "fargate"}}, {}, 0),
    "Linux that is not measured": ({"labels": {"kubernetes.io/os": "linux"}}, {}, 5),
}


@pytest.mark.parametrize(("other", "over", "placed"), AGENTLESS.values(), ids=AGENTLESS)
def test_where_no_agent_can_run(other, over, placed):
    cluster = unmeasured(node("other", **other))
    assert len(cycle(cluster, [pod(f"p{i}", **over) for i in range(9)]).decisions) == placed


def test_a_virtual_node_comes_last():
    cluster = cluster_state([node("real"), node("virtual", **VIRTUAL)], (), [capacity("real", 1.0)])
    on = [d.assignment.node for d in cycle(cluster, [pod(f"p{i}", **TOLERATES) for i in range(3)]).decisions]
    assert on == ["real", "virtual", "virtual"]


def test_a_daemon_set_s_pod_needs_no_measured_capacity_and_one_that_says_it_is_one_does():
    cluster = cluster_state([node("full")], (), [capacity("full", 0.0)])
    heads = [pod("log-agent", owner="DaemonSet", affinity=daemon_affinity("full")), pod("other")]
    result = cycle(cluster, heads)
    assert [(d.pod.name, d.assignment.node) for d in result.decisions] == [("log-agent", "full")]
    assert cluster.measured.available[0] == 0.0, "it takes nothing"


def absent(count):
    """Requirements that every pod meets, and that are compared with every pod therefore."""
    return [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(count)]


@pytest.fixture(scope="module")
def crowded():
    """5,000 pods in 50 namespaces, on 100 nodes with room."""
    cluster = cluster_state([node(f"n{i}") for i in range(100)], (), [capacity(f"n{i}", 110.0) for i in range(100)])
    for i in range(5000):
        cluster.set_pod(pod(f"b{i}", namespace=f"ns{i % 50}", nodeName=f"n{i % 100}", labels={"app": str(i)}), NOW)
    return cluster


@pytest.mark.parametrize("count", [1000, 20_000])
def test_a_selector_without_end_over_all_namespaces_is_refused_before_it_is_compared(crowded, count):
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {},
        "labelSelector": {"matchExpressions": absent(count)},
    }
    refuses = {"podAntiAffinity": {REQUIRED: [term]}}
    heads = [pod("hostile", affinity=refuses), pod("good")]
    placed, (failure,) = until_decided(crowded, heads)
    assert placed == ["good"]
    assert failure.pod.name == "hostile"
    assert "internal error" not in failure.diagnosis.message
    assert not crowded.pod_counts
    crowded.forget("uid-good")


def terms_over_all_namespaces(count):
    """As many as fit in 64 KiB, each of which is compared with every pod."""
    selector = [{"key": "app", "operator": "Exists"}, {"key": "app", "operator": "NotIn", "values": ["x"]}]
    return [
        {
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [*selector, {"key": f"k{i}", "operator": "Exists"}]},
        }
        for i in range(count)
    ]


MANY_TERMS = {
    "anti-affinity": ("podAntiAffinity", lambda terms: {REQUIRED: terms}),
    "affinity": ("podAffinity", lambda terms: {REQUIRED: terms}),
    "preferences": ("podAntiAffinity", lambda terms: {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": t} for t in terms]}),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "made"), MANY_TERMS.values(), ids=MANY_TERMS)
def test_terms_by_the_hundred_over_all_namespaces_cost_no_more_than_one(crowded, kind, made):
    hostile = pod("hostile", affinity={kind: made(terms_over_all_namespaces(180))})
    for _ in range(2):  # what is counted already changes no answer
        placed, (failure,) = until_decided(crowded, [hostile, pod("good")])
        assert failure.pod.name == "hostile"
        assert "take more than 3000000 comparisons" in failure.diagnosis.message
        assert placed == ["good"]
        crowded.forget("uid-good")
    with pytest.raises(ValueError, match="take more than 3000000 comparisons"):  # concerto explain shows its message
        explain(crowded, hostile, profile(), NOW)
    counted = sum(count.comparisons for count in crowded.pod_counts._counts.values())
    assert counted <= 2 * MAX_COMPARISONS


def test_selectors_that_require_a_label_are_compared_in_full_only_with_pods_that_have_it(crowded):
    selector = {"matchLabels": {"app": "7", "x": "y"}, "matchExpressions": absent(900)}
    term = {"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}, "labelSelector": selector}
    helm = [{**term, "labelSelector": {"matchLabels": {"app": str(i), "release": "r", "tier": "t"}}} for i in range(50)]
    placed, _ = until_decided(crowded, [pod("p", affinity={"podAntiAffinity": {REQUIRED: [term, *helm]}})])
    assert placed == ["p"]
    crowded.forget("uid-p")


def test_what_each_pod_that_comes_is_compared_with_is_bounded(crowded):
    counts = crowded.pod_counts
    for i in range(40):
        counts.by_row(
            [PodSelection(((frozenset({"ns1"}), LabelSelector.from_raw({"matchExpressions": absent(100 + i)})),))]
        )
    assert sum(selection.parts for selection in counts._counts) == counts._parts <= MAX_PARTS
    assert len(counts._counts) >= 8
