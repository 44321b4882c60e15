"""Pods whose terms are about more pods than can be compared in one cycle: no other pod waits for them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from concerto.scheduling import one_cycle
from concerto.scheduling.cycle import schedule
from concerto.scheduling.state import pod_counting, pod_counts
from concerto.scheduling.state.pod_selection import PodSelection
from support.gang_builders import add, group, members
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

A_CYCLE, PODS = 600, 300


@pytest.fixture(autouse=True)
def compared(monkeypatch):
    """Few comparisons a cycle; which pods' labels were compared."""
    monkeypatch.setattr(pod_counts, "MAX_A_TURN", A_CYCLE)
    monkeypatch.setattr(pod_counts, "MAX_AT_ONCE", 100)
    monkeypatch.setattr(pod_counting, "_A_PART", 20)
    found, selects = [], PodSelection.selects
    monkeypatch.setattr(PodSelection, "selects", lambda self, labels: found.append(labels) or selects(self, labels))
    return found


def crowded():
    """10 nodes, each with 30 pods with labels of their own, of which one carries the label ``lead``."""
    cluster = cluster_state([node(f"n{i}") for i in range(10)], (), [capacity(f"n{i}", 50.0) for i in range(10)])
    for i in range(PODS):
        lead = {"lead": "yes"} if i == 0 else {}
        cluster.set_pod(pod(f"b{i}", namespace=f"ns{i % 7}", nodeName=f"n{i % 10}", labels={"of": str(i)} | lead), NOW)
    return cluster


def terms(count, key="lead"):
    """Each is compared with every pod, and selects the one that carries the label."""
    return [
        {
            "topologyKey": "kubernetes.io/hostname",
            "namespaceSelector": {},
            "labelSelector": {"matchExpressions": [{"key": key, "operator": "Exists"}] * (i + 1)},
        }
        for i in range(count)
    ]


def about_all(name, count=3, kind="podAffinity", key="lead", **over):
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms(count, key)}
    return pod(name, affinity={kind: required}, **over)


def cycle(cluster, heads, **more):
    return schedule(cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0), **more)


def names(result):
    return [decision.pod.name for decision in result.decisions]


def until_decided(cluster, heads, max_cycles=40):
    """Results of cycles over these pods, those left out that are decided on."""
    results = []
    while heads and len(results) < max_cycles:
        results.append(result := cycle(cluster, heads))
        over = {*names(result), *(failure.pod.name for failure in result.unschedulable)}
        assert result.has_more == (len(over) < len(heads))
        heads = [each for each in heads if each.name not in over]
    return results


def test_a_pod_may_have_as_many_terms_as_fit_in_what_is_evaluated_of_it():
    """API servers take 1.5 MiB of them, and kube-scheduler places such pods."""
    absent = ({"key": f"k{i}", "operator": "DoesNotExist"} for i in range(400))
    refused = [
        {"topologyKey": "t", "namespaceSelector": {}, "labelSelector": {"matchExpressions": [each]}} for each in absent
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": refused}}
    cluster = cluster_state([node("n0")], [pod("there", nodeName="n0")], [capacity("n0", 50.0)])
    (*_, last) = until_decided(cluster, [pod("many", affinity=affinity)])
    assert names(last) == ["many"], last.unschedulable[0].diagnosis.message


def test_no_cycle_compares_more_than_it_may_and_others_are_placed_meanwhile(compared):
    cluster, heavy = crowded(), about_all("heavy")
    ahead = cycle(cluster, [heavy, pod("light")])
    assert names(ahead) == ["light"]
    assert ahead.has_more and not ahead.unschedulable and not ahead.out_of_time
    for _ in range(20):
        compared.clear()
        if names(result := cycle(cluster, [heavy])):
            break
        assert 0 < len(compared) <= A_CYCLE / 6
    assert names(result) == ["heavy"]
    assert result.decisions[0].assignment.node == "n0", "beside the pod that all terms select"


def test_what_is_counted_in_parts_is_what_is_counted_at_once(monkeypatch):
    def nodes(at_once):
        monkeypatch.setattr(pod_counts, "MAX_AT_ONCE", at_once)
        cluster = crowded()
        pods = [about_all("with", 2), about_all("without", 3, "podAntiAffinity"), about_all("nowhere", 1, key="none")]
        results = until_decided(cluster, pods)
        assert (len(results) == 1) == (at_once > 1_000_000)
        failed = {failure.pod.name for result in results for failure in result.unschedulable}
        assert failed == {"nowhere"}
        return {d.pod.name: d.feasible for result in results for d in result.decisions}

    assert nodes(0) == nodes(10_000_000) == {"with": 1, "without": 9}


def test_pods_that_come_and_go_meanwhile_are_counted_once():
    cluster, heavy = crowded(), about_all("heavy")
    cycle(cluster, [heavy])
    cluster.remove_pod("uid-b0")
    for i in range(1, PODS, 2):
        cluster.remove_pod(f"uid-b{i}")
    cluster.set_pod(pod("new", namespace="late", nodeName="n3", labels={"lead": "yes"}), NOW)
    cycle(cluster, [heavy])
    cluster.set_pod(pod("newer", namespace="late", nodeName="n4", labels={"lead": "yes"}), NOW)
    (*_, last) = until_decided(cluster, [heavy])
    (decision,) = last.decisions
    assert decision.feasible == 2


def test_pods_that_need_counts_have_them_one_after_another():
    cluster = crowded()
    heavy = [about_all(f"heavy{i}", 2, key=f"key{i}", namespace=f"tenant{i}") for i in range(3)]
    results = until_decided(cluster, heavy)
    order = [failure.pod.name for result in results for failure in result.unschedulable]
    assert order == ["heavy0", "heavy1", "heavy2"]
    assert len(results) < 40


def test_a_pod_that_is_gone_keeps_no_other_from_its_turn():
    cluster = crowded()
    cycle(cluster, [about_all("gone", 5, key="other")])
    results = until_decided(cluster, [about_all("heavy")], 60)
    assert names(results[-1]) == ["heavy"]


def in_turn(cluster, pods, max_cycles=200):
    """What becomes of pods of which each fourth cycle looks at one; by name, whether it is placed, or why not."""
    known = {}
    for i in range(max_cycles):
        looks_at = pods[i // 4 % len(pods)] if i % 4 == 0 else None
        result = cycle(cluster, [] if looks_at is None or looks_at.name in known else [looks_at])
        known |= dict.fromkeys(names(result), "placed")
        known |= {failure.pod.name: failure.diagnosis.message for failure in result.unschedulable}
    return known


def test_pods_that_are_seldom_looked_at_have_their_counts_in_the_end(monkeypatch):
    monkeypatch.setattr(pod_counts, "MAX_A_TURN", 300)
    heavy = [about_all(f"heavy{i}", 2, "podAntiAffinity", f"key{i}", namespace=f"tenant{i}") for i in range(3)]
    assert in_turn(crowded(), heavy) == {"heavy0": "placed", "heavy1": "placed", "heavy2": "placed"}


def test_pods_that_are_seldom_looked_at_are_refused_in_the_end_if_their_counts_take_too_long(monkeypatch):
    monkeypatch.setattr(pod_counts, "MAX_A_TURN", 300)
    monkeypatch.setattr(pod_counts, "MAX_COMPARISONS", 4000)
    hostile = about_all("hostile", 30, "podAntiAffinity", "other", namespace="tenant")
    heavy = [about_all(f"heavy{i}", 1, "podAntiAffinity", f"key{i}", namespace=f"tenant{i}") for i in range(2)]
    known = in_turn(crowded(), [hostile, *heavy])
    assert "comparisons with pods" in known.pop("hostile")
    assert known == {"heavy0": "placed", "heavy1": "placed"}


def test_counts_that_nobody_waits_for_are_not_compared_with_pods_that_others_alone_may_count(monkeypatch):
    cluster, matched, matches = crowded(), [], PodSelection.matches
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "namespaceSelector": {},
        "labelSelector": {"matchLabels": {"lead": "yes"}},
    }
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    heavy = pod("heavy", affinity=affinity)
    assert len(until_decided(cluster, [heavy])) > 1, "it was counted in parts"
    for _ in range(5):
        cycle(cluster, [])
    monkeypatch.setattr(PodSelection, "matches", lambda self, of: matched.append(of.name) or matches(self, of))
    cluster.set_pod(pod("new", nodeName="n3", labels={"of": "new"}), NOW)
    assert matched == []
    cluster.set_pod(pod("newer", nodeName="n4", labels={"lead": "yes"}), NOW)
    assert matched == ["newer"]
    (column,) = cluster.pod_counts.by_row([PodSelection(((None, heavy.shape.affinity[0].selector),))])
    assert column.sum() == 2


def test_namespaces_that_change_meanwhile_leave_nothing_to_be_counted_that_is_not_asked_for(compared):
    cluster = crowded()
    for i in range(6):
        cluster.namespaces.set(f"ns{i}", {"team": "a"})
    (term,) = terms(1)
    term["namespaceSelector"] = {"matchLabels": {"team": "a"}}
    heavy = pod("heavy", affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    for _ in range(2):
        cycle(cluster, [heavy])
    assert compared
    compared.clear()
    cluster.namespaces.set("ns6", {"team": "a"})
    (*_, last) = until_decided(cluster, [heavy])
    assert names(last) == ["heavy"]
    assert PODS <= len(compared) <= PODS + A_CYCLE / 6


def test_pods_that_are_alike_are_put_off_together(monkeypatch):
    looks, query_for = [], one_cycle.query_for
    monkeypatch.setattr(one_cycle, "query_for", lambda *args: looks.append(args) or query_for(*args))
    cluster, alike = crowded(), [about_all(f"heavy{i}") for i in range(10)]
    assert names(cycle(cluster, [*alike, pod("light")])) == ["light"]
    assert len(looks) == 2
    assert set(names(until_decided(cluster, alike)[-1])) == {each.name for each in alike}


def test_many_cheap_counts_of_others_do_not_make_it_begin_again(monkeypatch):
    monkeypatch.setattr(pod_counts, "MAX_COUNTS", 4)
    cluster, heavy = crowded(), about_all("heavy")
    for attempt in range(20):
        cheap = [
            pod(
                f"cheap{attempt}-{i}",
                namespace="small",
                affinity={
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"x": f"{attempt}-{i}"}},
                            }
                        ]
                    }
                },
            )
            for i in range(6)
        ]
        result = cycle(cluster, [*cheap, heavy])
        for decision in result.decisions:
            cluster.forget(decision.pod.uid)
        if "heavy" in names(result):
            return
    pytest.fail("its counts were dropped again and again")


def test_terms_that_take_too_many_comparisons_are_refused_in_the_end(monkeypatch):
    monkeypatch.setattr(pod_counts, "MAX_COMPARISONS", 4000)
    cluster = crowded()
    results = until_decided(cluster, [about_all("hostile", 30), about_all("heavy", 1)])
    failures = [failure for result in results for failure in result.unschedulable]
    assert [failure.pod.name for failure in failures] == ["hostile"]
    assert "comparisons with pods" in failures[0].diagnosis.message
    assert any("heavy" in names(result) for result in results)


def test_a_gang_is_placed_as_a_whole_once_its_counts_are_there():
    cluster = crowded()
    required = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms(2)}}
    pods = members(3, affinity=required)
    add(cluster, group("g", 3), *pods)
    results = until_decided(cluster, [*pods, pod("light")])
    assert names(results[0]) == ["light"]
    assert [len(result.decisions) for result in results[1:-1]] == [0] * (len(results) - 2)
    assert {d.assignment.node for d in results[-1].decisions} == {"n0"}
    assert len(results[-1].decisions) == 3


def test_a_gang_is_not_blamed_for_the_time_in_which_pods_are_counted_for_others(compared):
    cluster, heavy = crowded(), about_all("heavy")
    pods = members(4)
    add(cluster, group("g", 4), *pods)
    cycle(cluster, [heavy])
    times = {"spent": lambda: len(compared) / 30, "max_seconds": 1.0}
    compared.clear()
    result = cycle(cluster, [*pods, heavy], **times)
    assert len(compared) > 36, "longer than a gang may take"
    assert (result.postponed, result.look_again_at_gangs, result.unschedulable) == (pods[0], {}, [])
    compared.clear()
    result = cycle(cluster, [*pods, heavy], postponed=pods[0], **times)
    assert (len(compared), len(result.decisions)) == (0, 4)
    (*_, last) = until_decided(cluster, [heavy])
    assert names(last) == ["heavy"]


def test_pods_are_counted_though_each_cycle_begins_with_a_gang_that_was_postponed():
    cluster, heavy, other = crowded(), about_all("heavy"), pod("other")
    for _ in range(40):
        if "heavy" in names(cycle(cluster, [heavy], postponed=other)):
            return
    pytest.fail("nothing is counted")


def test_between_cycles_whoever_asks_has_an_answer_at_once():
    cluster, heavy = crowded(), about_all("heavy")
    cycle(cluster, [heavy])
    selection = PodSelection(((None, heavy.shape.affinity[0].selector),))
    (column,) = cluster.pod_counts.by_row([selection])
    assert column.sum() == 1


def test_counts_go_on_in_order(compared):
    """Each cycle goes on where the one before has stopped: no pod is compared twice with one term."""
    cluster, heavy = crowded(), about_all("heavy", 1)
    parts = []
    for _ in range(20):
        compared.clear()
        done = names(cycle(cluster, [heavy]))
        parts.append([labels["of"] for labels in compared])
        if done:
            break
    assert done and len(parts) > 2
    assert all(not {*before} & {*after} for before, after in pairwise(parts))
    assert sum(map(len, parts)) == PODS
