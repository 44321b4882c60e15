"""What one cycle may cost, whatever pods, nodes and agents are like."""

import time

import numpy as np
import pytest

from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.score_arguments import ScoreSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.framework import FilterDefaults
from concerto.scheduling.profile import Profile
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

NODES = 5000
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
REFUSES_ETCD = {
    "podAntiAffinity": {
        REQUIRED: [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "etcd"}}}]
    }
}


@pytest.fixture(scope="module")
def full():
    """5,000 nodes without room, on one of which a pod refuses its like."""
    cluster = ClusterState()
    for i in range(NODES):
        cluster.set_node(node(f"n{i}"))
        cluster.set_capacity(capacity(f"n{i}", 0.0), NOW)
    cluster.set_pod(pod("etcd-0", nodeName="n0", labels={"app": "etcd"}, affinity=REFUSES_ETCD), NOW)
    return cluster


def cycle(cluster, heads, made=None, **over):
    made = made or profile()
    return schedule(cluster, heads, {"concerto": made}, now=NOW, generator=np.random.default_rng(0), **over)


def job(i):
    return pod(f"job-{i}", labels={"batch.kubernetes.io/job-name": f"job-{i}", "spark-exec-id": str(i)})


def test_jobs_that_differ_in_their_names_alone_are_looked_at_once(full):
    queue = Queue(signatures=full.signatures)
    for i in range(24_000):
        queue.set(job(i))
    began = time.process_time()
    result = cycle(full, queue.heads(NOW))
    assert time.process_time() - began < 0.1, "10 s with an evaluation for each"
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
            queue.mark_unschedulable(failure.pod.uid, failure.diagnosis.requeue_on, NOW)
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
def test_the_largest_affinity_that_is_evaluated_costs_little(full, expression):
    terms, size = [], 0
    while size < 60_000:
        terms.append({"matchExpressions": [expression(len(terms)), {"key": "none", "operator": "Exists"}]})
        size += len(str(terms[-1]))
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    began = time.process_time()
    cycle(full, [pod("p", affinity=affinity)])
    assert time.process_time() - began < 0.25


def test_tolerations_and_taints_by_the_thousand_cost_little():
    taints = {f"n{i}": [("held-until", str(i), "NoSchedule")] for i in range(NODES)}
    cluster = cluster_state([node(name, taints=each) for name, each in taints.items()])
    tolerations = [{"key": "held-until", "operator": "Equal", "value": f"x{i}"} for i in range(900)]
    began = time.process_time()
    result = cycle(cluster, [pod("p", tolerations=tolerations)])
    assert time.process_time() - began < 0.25
    assert len(result.unschedulable) == 1


def test_a_pod_that_asks_for_what_no_node_offers_is_told_so_in_kube_scheduler_s_words(full):
    (failure,) = cycle(full, [pod("p", requests={"e.vl/r": "1"})]).unschedulable
    assert failure.diagnosis.message == "0/5000 nodes are available: 5000 Insufficient e.vl/r."
    began = time.process_time()
    cycle(full, [pod("p", requests={f"e.vl/r{i}": "1" for i in range(2000)})])
    assert time.process_time() - began < 0.25


class Broken(FilterDefaults):
    """A filter with a fault that one pod brings out."""

    name = "Broken"
    requeue_on = Change.NODE

    def feasible(self, query, rows):
        if query.pod.labels.get("app") == "poison":
            raise ZeroDivisionError
        return np.ones_like(query.cluster.nodes.exists[rows])

    def reasons(self, query, rows):
        return {}


def test_an_error_over_one_pod_is_that_pod_s_failure_and_nobody_else_s():
    made = profile()
    faulty = Profile(made.settings, (Broken(), *made.filters), made.scores)
    cluster = cluster_state([node("a")], (), [capacity("a")])
    heads = [pod("first"), pod("bad", labels={"app": "poison"}, requests={"cpu": "1m"}), pod("last")]
    result = cycle(cluster, heads, faulty)
    assert [d.pod.name for d in result.decisions] == ["first", "last"]
    (failure,) = result.unschedulable
    assert isinstance(failure.error, ZeroDivisionError)
    assert failure.diagnosis.message.startswith("Concerto failed to look for a node (ZeroDivisionError)")
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
