"""Kinds of pods: who is alike, what was measured of them, and what a node can take."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.pod_kind import CLUSTER, is_endless, kind_of, kind_of_pod
from concerto.api.pod_trimming import trim_pod
from concerto.capacity.kinds.cluster_kinds import ClusterKinds
from concerto.capacity.kinds.cost import PRIOR_SHARE, UNKNOWN, Cost, costliest, estimate
from concerto.capacity.kinds.node_loads import Held, NodeLoads
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds, from_entries, has_changed, to_entries

GI = 2.0**30
WEB = kind_of("shop", "Deployment", "web", (("main", "web:1"),))
JOB = kind_of("shop", "Job", "pi", (("main", "pi:1"),))


def ended(work, held, stalled=0.0, memory=0.0):
    return PodMeasurement(work, held, held + stalled, memory, True)


def table_of(*pods, kind=JOB, now=0.0):
    node = NodeKinds()
    for pod in pods:
        node.pod_ended(kind, pod, now)
    return node.table((), now)


def merge(tables, cores):
    cluster = ClusterKinds()
    for number, (table, count) in enumerate(zip(tables, cores, strict=True)):
        cluster.set_node(f"n{number}", table, count)
    return cluster.table()


def raw_pod(owner=None, labels=None, name="p", generate=None, image="a:1", namespace="shop", restart=None):
    metadata = {"namespace": namespace, "name": name, "labels": labels or {}}
    if owner:
        metadata["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    if generate:
        metadata["generateName"] = generate
    spec = {"containers": [{"name": "main", "image": image}]}
    if restart:
        spec["restartPolicy"] = restart
    return {"metadata": metadata, "spec": spec}


ALIKE = {
    "pods of one ReplicaSet": (
        raw_pod(("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}, "web-5d4f-a"),
        raw_pod(("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}, "web-5d4f-b"),
    ),
    "a rollout that does not change the images": (
        raw_pod(("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}),
        raw_pod(("ReplicaSet", "web-77aa"), {"pod-template-hash": "77aa"}),
    ),
    "two runs of a CronJob": (raw_pod(("Job", "nightly-28391040")), raw_pod(("Job", "nightly-28392480"))),
    "pods of one generated name": (raw_pod(name="run-x7f", generate="run-"), raw_pod(name="run-9qq", generate="run-")),
    "bare pods that are numbered": (raw_pod(name="exec-1"), raw_pod(name="exec-22")),
}


@pytest.mark.parametrize("sentence", ALIKE)
def test_alike(sentence):
    one, other = ALIKE[sentence]
    assert kind_of_pod(one) == kind_of_pod(other)


RUNS = {
    "runs with a number": (("Job", "run-3-burst"), ("Job", "run-12-burst")),
    "a number at the end": (("Job", "shard-1"), ("Job", "shard-22")),
    "a date": (("Job", "etl-2026-11-30"), ("Job", "etl-2026-12-01t0200")),
    "generated names": (("Job", "train-x7f2k"), ("Job", "train-bcdfg")),
    "a digest": (("Workflow", "build-9f86d08"), ("Workflow", "build-12ab34c")),
    "UUIDs": (
        ("Job", "q-3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
        ("Job", "q-0b2504e0-0f89-41d3-8a0c-9305e82c3300"),
    ),
    "other random text": (("Job", "wf-k3j2h5l9"), ("Job", "wf-9x8y7z6w")),
}


@pytest.mark.parametrize("sentence", RUNS)
def test_runs_whose_names_were_generated_are_each_others_prior(sentence):
    """A pipeline makes a Job of another name for each run: the second one is not unknown."""
    one, other = (kind_of_pod(raw_pod(owner)) for owner in RUNS[sentence])
    assert one.key != other.key
    assert one.keys[1:] == other.keys[1:]
    first_run = table_of(*[ended(2.0, 4.0)] * 20, kind=one)
    others = table_of(*[ended(6.0, 8.0)] * 200, kind=kind_of_pod(raw_pod(("Job", "other"))))
    assert estimate(merge([first_run, others], [1.0, 1.0]), other).work == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    ("one", "other"),
    [("train-resnet50", "train-resnet18"), ("fetch-photos", "fetch-words"), ("step1", "step2"), ("pi", "mi")],
)
def test_names_that_people_chose_are_told_apart(one, other):
    assert kind_of_pod(raw_pod(("Job", one))).keys[1] != kind_of_pod(raw_pod(("Job", other))).keys[1]


def test_a_deployments_name_is_no_runs_name():
    one, other = (raw_pod(("StatefulSet", f"db-{number}")) for number in (1, 2))
    assert kind_of_pod(one).keys[1] != kind_of_pod(other).keys[1]


UNLIKE = {
    "another image": (raw_pod(("Job", "j")), raw_pod(("Job", "j"), image="a:2")),
    "another namespace": (raw_pod(("Job", "j")), raw_pod(("Job", "j"), namespace="lab")),
    "another workload": (raw_pod(("Job", "j")), raw_pod(("Job", "k"))),
    "pods of one owner that complete, and others that run without end": (
        raw_pod(("RayJob", "j"), restart="Never"),
        raw_pod(("RayJob", "j"), restart="Always"),
    ),
    "a Deployment and a Job of one name": (
        raw_pod(("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}),
        raw_pod(("Job", "web")),
    ),
}


@pytest.mark.parametrize("sentence", UNLIKE)
def test_not_alike(sentence):
    one, other = UNLIKE[sentence]
    assert kind_of_pod(one).key != kind_of_pod(other).key
    assert kind_of_pod(one).keys[-1] == kind_of_pod(other).keys[-1] == CLUSTER


@pytest.mark.parametrize(
    ("pod", "endless"),
    [
        (raw_pod(("RayCluster", "r"), restart="Always"), True),
        (raw_pod(restart="Always"), True),
        (raw_pod(("ReplicaSet", "web-5d4f"), {"pod-template-hash": "5d4f"}, restart="Always"), True),
        (raw_pod(("RayCluster", "r"), restart="OnFailure"), False),
        (raw_pod(restart="Never"), False),
        (raw_pod(("Job", "j"), restart="OnFailure"), False),
    ],
    ids=["an operator's", "a bare pod", "a Deployment's", "restarted on failure", "a bare pod, never", "a Job's"],
)
def test_pods_run_without_end_if_kubelet_restarts_them_always_whatever_their_owner(pod, endless):
    kind = kind_of_pod(pod)
    assert kind.endless is endless
    assert is_endless(kind.key) is endless
    assert kind_of_pod(trim_pod(pod)) == kind, "the operator reads a part of the pod"


def test_a_kind_of_one_of_kubernetes_own_long_running_workloads_has_one_key():
    one, other = (raw_pod(("StatefulSet", "db"), restart=restart) for restart in ("Always", None))
    assert kind_of_pod(one) == kind_of_pod(other)


def test_a_key_is_bounded_however_long_names_are():
    owner = ("K" * 5000, "j" * 253)  # the API server takes any text for an owner
    kind = kind_of_pod(raw_pod(owner, namespace="n" * 63, image="i" * 5000, restart="Always"))
    assert max(map(len, kind.keys)) <= 200, "the CRD takes no longer ones"


@given(
    share=st.floats(0.01, 8.0),
    held=st.floats(0.5, 1000.0),
    stalls=st.lists(st.floats(0.0, 10_000.0), min_size=1, max_size=20),
)
def test_the_share_is_the_same_however_long_pods_were_stalled(share, held, stalls):
    table = table_of(*(ended(share * held, held, stalled) for stalled in stalls))
    assert estimate(table, JOB).share == pytest.approx(share, rel=1e-6)


@given(scale=st.floats(0.001, 1000.0))
def test_costs_scale_with_what_was_measured(scale):
    pods = [(1.0, 4.0, 30.0), (2.0, 5.0, 40.0), (0.5, 2.0, 10.0)]
    plain = estimate(table_of(*(ended(w, h, memory=m) for w, h, m in pods)), JOB)
    scaled = estimate(table_of(*(ended(w * scale, h, memory=m * scale) for w, h, m in pods)), JOB)
    assert scaled.share == pytest.approx(scale * plain.share, rel=1e-6)
    assert scaled.work == pytest.approx(scale * plain.work, rel=1e-6)
    assert scaled.memory == pytest.approx(scale * plain.memory, rel=1e-6)


measured = st.builds(ended, st.floats(0.0, 100.0), st.floats(0.1, 100.0), st.floats(0.0, 100.0), st.floats(0.0, 1e10))


@given(nodes=st.lists(st.lists(measured, max_size=5), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_the_order_of_nodes_makes_no_difference(nodes, seed):
    tables = [table_of(*pods) for pods in nodes]
    shuffled = tables[:]
    random.Random(seed).shuffle(shuffled)
    assert merge(tables, [64.0] * len(tables)) == merge(shuffled, [64.0] * len(tables))


@given(steps=st.lists(st.tuples(st.integers(0, 3), st.lists(measured, max_size=3)), max_size=12))
def test_what_is_merged_step_by_step_is_what_is_merged_at_once(steps):
    stepwise, now = ClusterKinds(), {}
    for node, pods in steps:
        now[node] = table_of(ended(1.0, 4.0), *pods)
        stepwise.set_node(f"n{node}", now[node], 64.0)
        assert stepwise.table() == merge(list(now.values()), [64.0] * len(now))


many = st.lists(measured, min_size=6, max_size=8)


@given(steps=st.lists(st.tuples(st.integers(0, 3), many, st.booleans()), max_size=12))
def test_nodes_that_have_gone_make_no_difference_once_others_have_measured_enough(steps):
    stepwise, now = ClusterKinds(), {}
    for node, pods, gone in steps:
        if gone:
            stepwise.remove_node(f"n{node}")
            now.pop(node, None)
        else:
            now[node] = table_of(*pods)
            stepwise.set_node(f"n{node}", now[node], 64.0)
        if now:
            assert stepwise.table() == merge(list(now.values()), [64.0] * len(now))


def test_what_nodes_that_have_gone_measured_counts_until_others_have_measured_enough():
    cluster = ClusterKinds()
    for number in range(3):
        cluster.set_node(f"old{number}", table_of(*[ended(2.0, 4.0)] * 20), 4.0)
    for number in range(3):
        cluster.remove_node(f"old{number}")
    assert estimate(cluster.table(), JOB).share == pytest.approx(0.5)
    running = PodMeasurement(0.2, 1.0, 1.0, 5e7, False, recent=0.2)
    cluster.set_node("new", NodeKinds().table([(JOB, running)], 0.0), 4.0)
    assert estimate(cluster.table(), JOB).basis == "Ended"
    assert estimate(cluster.table(), JOB).share == pytest.approx(0.5)
    cluster.set_node("new", table_of(*[ended(4.0, 4.0)] * 6), 4.0)
    assert estimate(cluster.table(), JOB).share == pytest.approx(1.0)
    cluster.set_node("new", table_of(ended(4.0, 4.0)), 4.0)
    assert estimate(cluster.table(), JOB).share == pytest.approx(1.0), "what has gone does not come back"


def test_kinds_that_no_node_measures_any_more_make_room_for_those_that_some_do():
    cluster = ClusterKinds()
    for day in range(20):
        old = {f"shop/Job/run-{day}-{i}@x": KindSums.of_ended(ended(100.0, 200.0)) for i in range(MAX_ENTRIES // 4)}
        cluster.set_node("n", old, 4.0)
        assert len(cluster.published()) <= MAX_ENTRIES
    cluster.set_node("n", table_of(ended(1.0, 4.0)), 4.0)
    assert JOB.key in cluster.published()
    assert len(cluster.published()) == MAX_ENTRIES


def test_decisions_know_all_kinds_of_a_cluster_with_more_of_them_than_one_object_can_hold():
    workloads = [kind_of("shop", "Deployment", f"web-{i}", (("main", f"web:{i}"),)) for i in range(1000)]
    cluster = ClusterKinds()
    for number in range(100):
        running = [(kind, PodMeasurement(1.0, 4.0, 4.0, 1e6, False, 0.2)) for kind in workloads[number::100]]
        cluster.set_node(f"n{number}", NodeKinds().table(running, 0.0), 8.0)
    table = cluster.table()
    assert {estimate(table, kind).basis for kind in workloads} == {"Running"}
    assert len(cluster.published()) == MAX_ENTRIES
    assert {*cluster.published()} < {*table}


def test_two_nodes_know_together_what_one_would_have_known():
    one, other = ended(1.0, 4.0, memory=10.0), ended(3.0, 5.0, 2.0, memory=20.0)
    together = merge([table_of(one), table_of(other)], [8.0, 8.0])[JOB.key]
    assert together == KindSums.of_ended(one).plus(KindSums.of_ended(other))


@given(share=st.floats(0.0, 1e6), pods=st.integers(1, 500))
def test_a_liar_moves_the_share_by_no_more_than_its_part_of_the_evidence(share, pods):
    honest = [table_of(*[ended(2.0, 4.0)] * 10) for _ in range(9)]
    liar = NodeKinds()
    for _ in range(pods):
        liar.pod_ended(JOB, ended(share * 4.0, 4.0), 0.0)
    found = estimate(merge([*honest, liar.table((), 0.0)], [4.0] * 10), JOB)
    # at most three nodes' worth of evidence, and at most the four cores that it has
    assert found.share <= (9 * 0.5 + 3 * 4.0) / 12 + 1e-6


@pytest.mark.parametrize(
    "pod",
    [
        PodMeasurement(float("nan"), 1.0, 1.0, 0.0, True),
        PodMeasurement(1.0, float("inf"), 1.0, 0.0, True),
        PodMeasurement(-1.0, 1.0, 1.0, 0.0, True),
        PodMeasurement(1.0, 3.0, 1.0, 0.0, True),
    ],
)
def test_what_no_pod_can_have_done_is_left_out(pod):
    assert table_of(pod) == {}


def test_a_cost_that_changes_is_followed_within_some_dozen_pods():
    node = NodeKinds()
    for _ in range(1000):
        node.pod_ended(JOB, ended(1.0, 4.0), 0.0)
    for _ in range(100):
        node.pod_ended(JOB, ended(4.0, 4.0), 0.0)
    assert estimate(node.table((), 0.0), JOB).share > 0.8


def test_a_kind_with_a_new_name_costs_what_its_images_have_cost():
    other = kind_of("shop", "Job", "pi-second", (("main", "pi:1"),))
    assert estimate(table_of(ended(2.0, 4.0)), other).share == pytest.approx(0.5)
    assert estimate(table_of(ended(2.0, 4.0)), WEB) == UNKNOWN
    assert UNKNOWN.share == PRIOR_SHARE


def test_a_release_starts_from_what_the_workload_cost_before_and_soon_goes_by_its_own():
    node = NodeKinds()
    for _ in range(20):
        node.pod_ended(JOB, ended(2.0, 4.0), 0.0)
    release = kind_of("shop", "Job", "pi", (("main", "pi:2"),))
    assert estimate(node.table((), 0.0), release).share == pytest.approx(0.5)
    for _ in range(10):
        node.pod_ended(release, ended(8.0, 4.0), 0.0)
    assert estimate(node.table((), 0.0), release).share == pytest.approx(2.0, rel=0.1)


def test_pods_that_run_without_end_cost_no_work_at_once():
    running = PodMeasurement(30.0, 600.0, 600.0, 5e7, False)
    cost = estimate(NodeKinds().table([(WEB, running)], 0.0), WEB)
    assert cost.work is None
    assert cost.share == pytest.approx(0.05, rel=0.02)


def test_people_read_of_an_operators_own_pods_what_decisions_take_them_to_cost():
    kind = kind_of_pod(raw_pod(("RayCluster", "r"), restart="Always"))
    table = NodeKinds().table([(kind, PodMeasurement(30.0, 600.0, 600.0, 5e7, False))], 0.0)
    (words,) = costliest(table)
    assert words["pods"] == "shop/RayCluster/r"
    assert float(words["cores"]) == pytest.approx(estimate(table, kind).share, rel=0.01)
    assert "cpuSeconds" not in words


@pytest.mark.parametrize(("held", "known"), [(4.9, False), (5.0, True)])
def test_a_pod_that_has_held_its_place_for_five_seconds_has_shown_what_it_uses(held, known):
    waiting = PodMeasurement(0.01, held, held, 1.8 * GI, False)
    cost = estimate(NodeKinds().table([(JOB, waiting)], 0.0), JOB)
    assert cost.known is known
    if known:
        assert (cost.share, cost.memory) == (0.3, 1.8 * GI)


@pytest.mark.parametrize(("age", "share"), [(10.0, 0.3), (60.0, 0.3), (120.0, 0.15), (3600.0, 0.005)])
def test_pods_that_may_end_and_idle_for_long_are_not_taken_to_compute_soon(age, share):
    idle = PodMeasurement(0.002 * age, age, age, 5e7, False, recent=0.002)
    cost = estimate(NodeKinds().table([(JOB, idle)] * 4, 0.0), JOB)
    assert cost.share == pytest.approx(share, rel=0.05)


def test_pods_that_compute_are_not_taken_to_idle_however_long_they_have_waited_before():
    pods = [(JOB, PodMeasurement(9.0, 3600.0, 3600.0, 5e7, False, recent=0.9))]
    assert estimate(NodeKinds().table(pods, 0.0), JOB).share == pytest.approx(0.9)


def test_a_table_is_bounded_and_what_is_left_out_is_known_by_its_group():
    node = NodeKinds()
    for number in range(3000):
        kind = kind_of("shop", "Job", f"job-{number:04d}", (("main", "same:1"),))
        node.pod_ended(kind, ended(1.0, 4.0, memory=1e9), 0.0)
    table = node.table((), 0.0)
    assert len(table) <= MAX_ENTRIES
    entries = [{"key": key, "sums": sums} for key, sums in to_entries(table)]
    assert len(json.dumps(entries)) <= 100 * 1024
    new = kind_of("shop", "Job", "job-9999", (("main", "same:1"),))
    assert estimate(table, new).share == pytest.approx(0.25)


@given(pods=st.lists(measured, min_size=1, max_size=10))
def test_a_published_table_says_the_same_to_four_digits(pods):
    table = table_of(*pods)
    back = from_entries(to_entries(table))
    assert back.keys() == table.keys()
    for key, sums in table.items():
        assert back[key].work == pytest.approx(sums.work, rel=1e-3)
        assert back[key].held == pytest.approx(sums.held, rel=1e-3)


def test_an_entry_that_cannot_be_read_costs_only_itself():
    entries = [("good", [1.0, 2.0, 4.0, 4.0]), ("long", [1.0] * 99), ("negative", [-1.0]), ("word", "x")]
    assert list(from_entries(entries)) == ["good"]


def test_a_table_is_published_again_when_a_decision_may_change_by_it():
    before = table_of(*[ended(2.0, 4.0)] * 10)
    assert not has_changed(before, table_of(*[ended(2.0, 4.0)] * 11))
    assert has_changed(before, table_of(*[ended(2.3, 4.0)] * 10))
    assert has_changed(before, table_of(*[ended(2.0, 4.0)] * 10, kind=WEB))


def test_a_table_is_published_again_when_pods_compute_on_other_cores_than_before():
    """How far nodes are filled depends on it."""
    on_two, on_four = (table_of(*[replace(ended(2.0, 4.0), peak_work=2.0 * peak)] * 10) for peak in (2.0, 4.0))
    assert has_changed(on_two, on_four)
    assert not has_changed(on_two, on_two)


def test_the_costliest_kinds_come_first_in_words():
    node = NodeKinds()
    node.pod_ended(JOB, ended(2.0, 4.0, memory=20 * 2**20), 0.0)
    node.pod_ended(kind_of("shop", "Job", "small", (("main", "s:1"),)), ended(0.1, 4.0), 0.0)
    first, second = costliest(node.table((), 0.0))
    assert first == {"pods": "shop/Job/pi", "cores": "0.5", "evidence": "1", "cpuSeconds": "2", "memory": "20Mi"}
    assert second["pods"] == "shop/Job/small"


ALL = slice(None)


def loads(cores=4.0, memory=8 * GI, nodes=2):
    found = NodeLoads()
    found.grow(nodes)
    for row in range(nodes):
        found.set_node(row, cores, memory)
    return found


def cost(share=0.5, work=None, memory=0.0):
    return Cost(share, work, None if work is None else work / share, memory, 10.0, "Ended")


@given(shares=st.lists(st.floats(0.01, 4.0), max_size=30))
def test_what_was_added_can_be_taken_off_again(shares):
    nodes = loads()
    for share in shares:
        nodes.add_pod(0, cost(share))
    assert nodes.cpu_left(ALL)[0] == pytest.approx(4 * 1.15 - sum(shares), abs=1e-6)
    for share in shares:
        nodes.remove_pod(0, cost(share))
    assert nodes.cpu_left(ALL)[0] == pytest.approx(nodes.cpu_left(ALL)[1], abs=1e-6)


STEPS = st.sampled_from(["add", "remove", "node", "own", "head room", "work", "change", "clear"])


@given(steps=st.lists(st.tuples(STEPS, st.integers(0, 2), st.floats(0.1, 4.0)), max_size=30))
def test_what_nodes_have_left_follows_from_what_is_on_them_whatever_happened_before(steps):
    nodes, now = loads(nodes=3), 0.0
    for step, row, amount in steps:
        now += amount
        if step == "add":
            nodes.add_pod(row, cost(amount, memory=amount * GI))
        elif step == "remove" and nodes.pods[row]:
            nodes.remove_pod(row, cost(0.1))
        elif step == "node":
            nodes.set_node(row, 2.0 * amount, amount * GI)
        elif step == "own":
            nodes.set_own(row, 0.1 * amount, 0.1 * amount * GI)
        elif step == "head room":
            nodes.set_head_room(row, amount)
        elif step == "work":
            nodes.give_work(row, cost(0.5, work=amount), now)
        elif step == "change":
            nodes.change_cost(np.array([row]), cost(0.1), cost(amount, memory=GI), np.ones(1))
        elif step == "clear":
            nodes.clear(row)
    usable = np.maximum(nodes.cores - nodes.own_cpu, 0.0)
    assert nodes.cpu_left(ALL) == pytest.approx(nodes.head_room * usable - nodes.cpu)
    assert nodes.memory_left(ALL) == pytest.approx(0.95 * nodes.memory_bytes - nodes.own_memory - nodes.memory)
    cpu = (nodes.cpu + 0.5) / np.maximum(usable, 1e-6)
    memory = (nodes.own_memory + nodes.memory) / np.maximum(nodes.memory_bytes, 1.0)
    assert nodes.commitment(cost(0.5), ALL) == pytest.approx(np.maximum(cpu, memory))
    may = (nodes.tokens(ALL, now) >= -1e-9) | (nodes.pods == 0.0)
    assert (nodes.paced(cost(0.5, work=1.0), ALL, now + 1e-6) == may).all()


def test_a_node_that_is_over_takes_nothing_until_its_pods_have_ended():
    nodes = loads()
    for _ in range(20):
        nodes.add_pod(0, cost(0.5))
    assert nodes.capacity(cost(0.5), ALL)[0] < -10
    for _ in range(11):
        assert not nodes.fits(cost(0.5), ALL)[0]
        nodes.remove_pod(0, cost(0.5))
    nodes.remove_pod(0, cost(0.5))
    assert nodes.fits(cost(0.5), ALL)[0]


def test_no_setting_lets_a_node_full_of_memory_take_a_pod():
    nodes = loads()
    for row in range(2):
        nodes.set_own(row, 0.0, 0.97 * 8 * GI)
    assert not nodes.fits(cost(0.01, memory=1.0), ALL).any()
    assert (nodes.capacity(cost(0.01, memory=1.0), ALL) < 0).all()


def test_an_empty_node_takes_a_pod_of_any_size_where_no_room_is_held_for_others():
    nodes, huge = loads(), cost(0.5, memory=1e15)
    assert nodes.fits(huge, ALL).all()
    assert not nodes.fits(huge, ALL, Held(0.0, np.ones(2))).any()
    nodes.add_pod(0, cost(0.01, memory=1.0))
    assert nodes.fits(huge, ALL).tolist() == [False, True]


def test_however_much_memory_a_pod_is_said_to_take_what_others_take_is_not_lost_beside_it():
    nodes, other, monster = loads(nodes=1), cost(0.1, memory=100e6), cost(0.1, memory=1e30)
    nodes.add_pod(0, monster)
    nodes.add_pod(0, other)
    nodes.remove_pod(0, monster)
    assert nodes.memory[0] == pytest.approx(100e6)
    nodes.add_pod(0, monster)
    nodes.change_cost(np.array([0]), monster, other, np.ones(1))
    assert nodes.memory[0] == pytest.approx(200e6)


@pytest.mark.parametrize(
    ("own", "kept", "services", "pods"),
    [(0.0, 0.0, 0, 60), (1.0, 0.0, 0, 45), (1.0, 1.0, 0, 30), (0.0, 0.0, 2, 30), (1.0, 1.0, 1, 15), (0.0, 0.0, 4, 8)],
)
def test_work_is_given_no_faster_than_the_node_can_do_it(own, kept, services, pods):
    nodes = loads(nodes=1)
    nodes.set_own(0, own, 0.0)
    nodes.set_kept(0, kept)
    for _ in range(services):
        nodes.add_pod(0, cost(1.0))
    pod = cost(0.2, work=4.0)
    given_at = []
    for tick in range(600):
        now = tick / 10
        if nodes.fits(pod, ALL)[0] and nodes.paced(pod, ALL, now)[0]:
            nodes.add_pod(0, pod)
            nodes.give_work(0, pod, now)
            given_at.append(now)
            if len(given_at) > 2:
                nodes.remove_pod(0, pod)
    # four cores do four core-seconds a second: one pod of four a second, and fewer if some of them are used otherwise.
    # Where all of them are, it is what head room there is that such pods take, slowly
    assert len(given_at) == pytest.approx(pods, abs=3)


def test_what_a_node_does_to_start_and_end_pods_takes_its_time_as_their_own_work_does():
    """If it did not count, more pods would be given than the node can start and do, up to what it is filled to."""
    at = []
    for work, started in ((4.0, 0.0), (3.0, 1.0), (3.0, 0.0)):
        nodes, pod = loads(nodes=1), Cost(0.2, work, 20.0, 0.0, 10.0, "Ended", None, started)
        for _ in range(5):
            nodes.add_pod(0, pod)
            nodes.give_work(0, pod, 0.0)
        at.append(nodes.seconds_until_paced(pod, ALL, 0.0))
    # 4 cores do 12 core-seconds in 15 % of a life of 20 s: those are free
    assert at == [2.0, 2.0, 0.75]


@pytest.mark.parametrize(
    ("share", "work", "life", "pods"), [(0.15, 0.25, 2.0, 10), (0.15, 1.0, 20.0, 13), (0.1, 1.0, 20.0, 25)]
)
def test_a_node_takes_at_once_what_it_does_while_pods_start_or_in_a_part_of_their_lives(share, work, life, pods):
    nodes, pod = loads(nodes=1), Cost(share, work, life, 0.0, 10.0, "Ended")
    given = 0
    while nodes.fits(pod, ALL)[0] and nodes.paced(pod, ALL, 0.0)[0]:
        nodes.add_pod(0, pod)
        nodes.give_work(0, pod, 0.0)
        given += 1
    # four cores do 2.4 core-seconds in 0.6 s, 12 in 15 % of a life of 20 s and 24 in 30 %, which light pods may take.
    # The last pod goes below 0
    assert given == pods


@pytest.mark.parametrize(
    ("waiting", "fits"), [(0.05, False), (0.15, True), (3.2, True), (3.4, False), (math.inf, False)]
)
def test_nodes_are_filled_beyond_their_head_room_if_all_pods_that_wait_find_room_so(waiting, fits):
    nodes, pod = loads(nodes=2), cost(0.5, work=2.0)
    for row in range(2):
        for _ in range(9):
            nodes.add_pod(row, pod)
        nodes.add_pod(row, cost(0.05))
    # 2 x 0.05 cores are left, and 2 x 0.4 x 4 cores beyond
    assert nodes.cpu_left(ALL) == pytest.approx([0.05, 0.05])
    nodes.set_waiting(waiting)
    assert nodes.fits(pod, ALL).tolist() == [fits, fits]
    assert not nodes.fits(cost(0.5), ALL).any(), "pods that run without end would stay there"
    assert not nodes.fits(cost(2.0, work=8.0), ALL).any(), "all of a pod has to fit that is large beside the others"


def test_what_is_filled_beyond_head_room_already_does_not_count_as_room_for_the_pods_that_wait():
    nodes, pod = loads(nodes=1, cores=10.0), cost(1.0, work=10.0)
    for _ in range(12):
        nodes.add_pod(0, pod)
    nodes.set_waiting(3.0)
    assert nodes.beyond == 0.4
    for _ in range(3):
        nodes.add_pod(0, pod)
    # 15 of 15.5 cores are taken
    nodes.set_waiting(3.0)
    assert nodes.beyond == 0.0


@pytest.mark.parametrize(("waiting", "placed"), [(3.0, 3), (4.0, 0)])
def test_pods_that_wait_all_go_beyond_head_room_or_none_of_them(waiting, placed):
    nodes, pod = loads(nodes=1, cores=10.0), cost(1.0, work=10.0)
    for _ in range(12):
        nodes.add_pod(0, pod)
    # 12 of 11.5 cores are taken, and 15.5 with what is beyond
    nodes.set_waiting(waiting)
    taken = 0
    while taken < waiting and nodes.fits(pod, ALL)[0]:
        nodes.add_pod(0, pod)
        taken += 1
    assert taken == placed


def test_all_of_the_last_pods_find_room_though_none_of_the_nodes_has_a_whole_share_left():
    nodes, pod = loads(nodes=3), cost(1.4, work=10.0)
    # Four on each node leave 6.2 - 5.6 cores with what is beyond its head room, which three nodes have together
    nodes.set_waiting(13 * 1.4)
    for placed in range(13):
        rows = np.flatnonzero(nodes.fits(pod, ALL))
        assert rows.size, placed
        nodes.add_pod(int(rows[np.argmin(nodes.cpu[rows])]), pod)


@pytest.mark.parametrize(("head_room", "beyond"), [(1.5, 0.4), (1.8, 0.0), (2.0, 0.0)])
def test_a_node_whose_head_room_is_the_largest_has_no_room_beyond_it(head_room, beyond):
    nodes, pod = loads(nodes=1, cores=10.0), cost(1.0, work=10.0)
    nodes.set_head_room(0, head_room)
    for _ in range(round(head_room * 10)):
        nodes.add_pod(0, pod)
    nodes.set_waiting(3.0)
    assert nodes.beyond == beyond
    assert nodes.fits(pod, ALL)[0] == bool(beyond)


def test_nodes_that_take_no_pods_have_no_room_beyond_their_head_room_either():
    nodes = loads(nodes=2)
    for row in range(2):
        nodes.add_pod(row, cost(4.6))
    nodes.set_waiting(3.0, np.array([0, 1]))
    assert nodes.beyond == 0.4
    nodes.set_waiting(3.0, np.array([0]))
    assert nodes.beyond == 0.0


def test_pods_that_wait_for_each_other_slow_the_pace_until_the_node_has_caught_up():
    nodes = loads(nodes=1)
    nodes.give_work(0, cost(0.5, work=100.0), 0.0)

    def rate(wanting, now):
        nodes.observe(0, 1.0, True, now, wanting)
        before = float(nodes.tokens(ALL, now)[0])
        return float(nodes.tokens(ALL, now + 1.0)[0]) - before

    assert rate(1.0, 1.0) == pytest.approx(4.0), "one pod for each core"
    assert rate(1.6, 2.0) == pytest.approx(4.0 * 0.85)
    assert [rate(3.0, 3.0), rate(1000.0, 4.0)] == pytest.approx([4.0 * 0.75] * 2), "and never slower"
    assert rate(0.0, 5.0) == pytest.approx(4.0)
    assert rate(2.0, 6.0) == pytest.approx(3.0)
    assert rate(None, 7.0) == pytest.approx(4.0), "what is unknown slows nothing"
    before = float(nodes.tokens(ALL, 9.0)[0])
    nodes.observe(0, 1.0, True, 9.0, 2.0)
    assert nodes.tokens(ALL, 9.0)[0] == pytest.approx(before), "what came before came at the pace of before"
    nodes.clear(0)
    nodes.set_node(0, 4.0, 8 * GI)
    nodes.give_work(0, cost(0.5, work=100.0), 10.0)
    assert nodes.tokens(ALL, 11.0)[0] - nodes.tokens(ALL, 10.0)[0] == pytest.approx(4.0), "another node's row"


@pytest.mark.parametrize(
    ("taken", "waiting", "unpaced"),
    [
        (0.0, 4.5, True),
        (0.0, 6.1, True),  # 4.6 cores are left, and 1.6 beyond
        (0.0, 6.3, False),
        (0.0, math.inf, False),
        (3.6, 0.9, True),
        (3.6, 1.9, True),
        (3.6, 2.1, False),  # more than half of them go beyond the 1.0 that is left
    ],
)
def test_pods_are_not_paced_if_all_that_wait_find_room_and_half_of_them_within_the_head_room(taken, waiting, unpaced):
    nodes, pod = loads(nodes=1), cost(0.5, work=40.0)
    nodes.add_pod(0, cost(taken))
    for _ in range(2):
        nodes.give_work(0, pod, 0.0)
    nodes.set_waiting(waiting)
    assert nodes.paced(pod, ALL, 0.0)[0] == unpaced
    assert np.isinf(nodes.seconds_until_paced(pod, ALL, 0.0)) == unpaced
    nodes.forget_waiting()
    assert not nodes.paced(pod, ALL, 0.0)[0]


@pytest.mark.parametrize(("share", "fits"), [(0.01, True), (0.125, True), (0.13, False), (1.6, False)])
def test_light_pods_find_room_beside_a_large_one_that_hangs_over(share, fits):
    nodes = loads(nodes=1)
    for _ in range(3):
        nodes.add_pod(0, cost(1.6))
    # 4.8 of 4.6 cores are taken, and the last of three may hang over by 0.7 x 1.6
    assert nodes.fits(cost(share, work=1.0), ALL)[0] == fits
    assert not nodes.fits(cost(share), ALL)[0], "pods that run without end would stay there"
    assert (nodes.beyond_for(cost(share, work=1.0), 0)[1] == pytest.approx(0.7 * 1.6)) == fits


def test_a_light_pod_waits_for_room_where_others_are_hardly_larger():
    nodes = loads(nodes=1)
    for _ in range(46):
        nodes.add_pod(0, cost(0.1))
    # 4.6 of 4.6 cores are taken
    assert nodes.fits(cost(0.04, work=1.0), ALL)[0]
    assert not nodes.fits(cost(0.06, work=1.0), ALL)[0]


def test_light_pods_fill_a_node_no_further_than_a_large_one_may():
    nodes, small = loads(nodes=1), cost(0.1, work=1.0)
    for _ in range(3):
        nodes.add_pod(0, cost(1.6))
    taken = 0
    while nodes.fits(small, ALL)[0]:
        nodes.add_pod(0, small)
        taken += 1
    assert taken > 0
    assert nodes.cpu[0] <= 4.6 + 0.7 * 1.6
    nodes.set_head_room(0, 2.0)
    nodes.add_pod(0, cost(3.0))
    assert not nodes.fits(small, ALL)[0], "no node is filled beyond the largest head room"


def test_a_pod_that_hardly_computes_does_not_wait_until_the_work_of_heavier_ones_is_done():
    nodes = loads(nodes=1, cores=8.0)
    heavy, light = cost(4.0, work=40.0), cost(0.1, work=0.8)
    for pod in (heavy, light):
        nodes.add_pod(0, pod)
    nodes.give_work(0, heavy, 0.0)
    assert not nodes.paced(cost(0.2, work=0.8), ALL, 0.0)[0], "not a light one"
    assert nodes.seconds_until_paced(light, ALL, 0.0) == np.inf, "no node has to wait"
    given = 0
    while nodes.paced(light, ALL, 0.0)[0]:
        nodes.give_work(0, light, 0.0)
        given += 1
    assert given == 24, "as many as the node does in 30 % of a life of 8 s"
    assert nodes.tokens(ALL, 0.0)[0] == pytest.approx(12.0 - 40.0 - 24 * 0.8), "heavier ones wait for light ones' work"


def test_work_that_was_done_before_a_service_came_stays_done():
    nodes, pod = loads(nodes=1), Cost(1.0, 30.0, 30.0, 0.0, 10.0, "Ended")
    nodes.add_pod(0, pod)
    nodes.give_work(0, pod, 0.0)
    owed = 30.0 - 4.0 * 0.15 * 30.0
    assert nodes.tokens(ALL, 2.0)[0] == pytest.approx(2.0 * 4.0 - owed)
    nodes.add_pod(0, cost(3.0))
    assert not nodes.paced(pod, ALL, 2.0)[0], "one core is left for the other 4 core-seconds"
    assert nodes.seconds_until_paced(cost(0.2, work=1.0), ALL, 2.0) == pytest.approx(4.0)
    nodes.remove_pod(0, cost(3.0))
    assert nodes.tokens(ALL, 3.0)[0] == pytest.approx(-3.0), "and what was not done does not seem done once it has gone"


@pytest.mark.parametrize("life", [60.0, 3600.0])
def test_pods_that_live_for_long_fill_a_node_within_a_minute(life):
    nodes, pod = loads(nodes=1), Cost(1.0, life, life, 0.0, 10.0, "Ended")
    filled_at = None
    for second in range(120):
        while nodes.fits(pod, ALL)[0] and nodes.paced(pod, ALL, float(second))[0]:
            nodes.add_pod(0, pod)
            nodes.give_work(0, pod, float(second))
        if filled_at is None and not nodes.fits(pod, ALL)[0]:
            filled_at = second
    assert filled_at is not None
    assert filled_at < 60


def test_however_much_work_a_pod_is_said_to_have_its_node_goes_on_after_a_while():
    nodes = loads(nodes=1)
    monster = Cost(0.1, 1e30, None, 0.0, 1.0, "Running")
    nodes.add_pod(0, monster)
    nodes.give_work(0, monster, 0.0)
    for share in (0.01, 0.5):
        assert nodes.paced(cost(share, work=1.0), ALL, 61.0)[0]


@given(works=st.lists(st.floats(0.1, 20.0), min_size=1, max_size=10), at=st.floats(0.0, 100.0))
def test_the_time_until_the_next_pod_may_start_is_right(works, at):
    nodes = loads(nodes=1, cores=64.0)
    for work in works:
        nodes.add_pod(0, cost(0.1, work=work))
        nodes.give_work(0, cost(0.1, work=work), at)
    pod = cost(0.1, work=1.0)
    wait = nodes.seconds_until_paced(pod, ALL, at)
    if np.isfinite(wait):
        assert not nodes.paced(pod, ALL, at + wait - 1e-3).all() or wait < 1e-3
        assert nodes.paced(pod, ALL, at + wait + 1e-3).all()
    else:
        assert nodes.paced(pod, ALL, at).all()


def test_the_scarcest_resource_decides_where_a_pod_is_least_in_the_way():
    nodes = loads()
    nodes.add_pod(0, cost(3.0, memory=0.1 * GI))
    nodes.add_pod(1, cost(0.2, memory=6 * GI))
    assert np.argmin(nodes.commitment(cost(1.0, memory=0.1 * GI), ALL)) == 1
    assert np.argmin(nodes.commitment(cost(0.1, memory=1.5 * GI), ALL)) == 0


@pytest.mark.parametrize(("own", "pods"), [(0.0, 9), (2.0, 5), (3.0, 2)])
def test_a_node_is_filled_when_what_it_leaves_to_pods_is_committed(own, pods):
    nodes = loads(nodes=1)
    nodes.set_own(0, own, 0.0)
    for _ in range(pods):
        nodes.add_pod(0, cost(0.5))
    assert not nodes.fits(cost(0.5), ALL)[0]
    for second in range(60):
        nodes.observe(0, 0.6, True, float(second))
    assert nodes.fits(cost(0.5), ALL)[0]


def test_a_node_with_room_for_one_more_pod_like_its_own_is_not_filled():
    nodes = loads(nodes=1)
    for _ in range(8):
        nodes.add_pod(0, cost(0.5))
    for second in range(60):
        nodes.observe(0, 0.6, True, float(second))
    assert nodes.head_room[0] == nodes.settings.head_room


def test_a_filled_node_that_idles_while_pods_wait_is_given_more_head_room_and_a_busy_one_none():
    nodes = loads()
    for row in range(2):
        for _ in range(9):
            nodes.add_pod(row, cost(0.5))
    for second in range(60):
        nodes.observe(0, 0.6, True, float(second))
        nodes.observe(1, 1.0, True, float(second))
    assert nodes.fits(cost(0.5), ALL).tolist() == [True, False]
