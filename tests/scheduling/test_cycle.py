from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from concerto.api.podreservation import Reservation
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.score_arguments import NodeResourcesFitArgs, ScoreSettings
from concerto.api.selectors import LabelSelector
from concerto.scheduling.cycle import schedule
from concerto.scheduling.framework import ScoreDefaults
from concerto.scheduling.plugins.registry import FILTERS
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod, profile


def decide(cluster, heads, *profiles, limit=250, seed=0):
    by_name = {p.settings.scheduler_name: p for p in profiles or (profile(),)}
    return schedule(cluster, heads, by_name, now=NOW, generator=np.random.default_rng(seed), limit=limit)


def placed(result):
    return {d.pod.name: d.assignment.node for d in result.decisions}


def reported(result):
    return {u.pod.name: u.diagnosis.message for u in result.unschedulable}


def measured(**capacities):
    return cluster_state([node(n) for n in capacities], (), [capacity(n, c) for n, c in capacities.items()])


def test_each_pod_sees_what_those_before_it_took():
    cluster = measured(a=3.0, b=2.0)
    result = decide(cluster, [pod(f"p{i}") for i in range(6)])
    assert placed(result) == {"p0": "a", "p1": "a", "p2": "b", "p3": "a", "p4": "b"}
    assert reported(result) == {"p5": "0/2 nodes are available: 2 Insufficient measured capacity."}


def test_a_decision_records_what_it_was_made_on():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 2.5, version=77)])
    first, second, third = decide(cluster, [pod(f"p{i}") for i in range(3)]).decisions
    a = first.assignment
    assert (a.namespace, a.name, a.uid, a.node) == ("default", "p0", "uid-p0", "a")
    assert (a.basis, a.node_capacity_resource_version, a.available) == ("Capacity", "77", 2.5)
    assert (first.score, first.feasible) == (100.0, 2)
    # b is worth the mean of the measured nodes, so it draws level only when it alone is left
    assert (second.assignment.node, second.assignment.available, second.feasible) == ("a", 1.5, 2)
    assert (third.assignment.node, third.assignment.basis, third.assignment.available) == ("b", "Requests", 40.0)
    assert (third.assignment.node_capacity_resource_version, third.feasible) == ("", 1)


def test_no_more_than_the_limit_is_decided():
    heads = [pod(f"p{i}") for i in range(5)]
    result = decide(measured(a=10.0), heads, limit=3)
    assert len(result.decisions) == 3
    assert (result.has_more, result.out_of_time) == (True, False)


def test_who_does_not_wait_is_passed_over():
    cluster = measured(a=10.0)
    there = pod("there", nodeName="a")
    cluster.set_pod(there, NOW)
    ended = pod("ended", nodeName="a", phase="Failed")
    cluster.set_pod(ended, NOW)
    heads = [
        pod("gated", schedulingGates=[{"name": "g"}]),
        pod("leaving", deleting=True),
        pod("foreign", schedulerName="default-scheduler"),
        pod("there"),  # an old view of a pod that is bound by now
        pod("ended"),
        pod("fine"),
    ]
    result = decide(cluster, heads)
    assert placed(result) == {"fine": "a"}
    assert result.unschedulable == []


def test_a_pod_is_not_decided_twice():
    cluster = measured(a=10.0)
    assert len(decide(cluster, [pod("p"), pod("p")]).decisions) == 1
    assert decide(cluster, [pod("p")]).decisions == []


def test_the_message_counts_nodes_by_reason_as_kube_scheduler_does():
    cluster = cluster_state(
        [
            node("a", allocatable={"cpu": 100}),
            node("b", allocatable={"cpu": 100, "memory": 1}),
            node("c", taints=[("gpu", "yes", "NoSchedule")]),
            node("d", unschedulable=True),
            node("e"),
        ],
        (),
        [capacity("e", 0.2)],
    )
    result = decide(cluster, [pod("p", requests={"cpu": "1", "memory": "1Gi"})])
    assert reported(result) == {
        "p": "0/5 nodes are available: 1 Insufficient measured capacity, 1 Insufficient memory, "
        "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient cpu."
    }
    assert result.unschedulable[0].diagnosis.requeue_on == Change.NODE | Change.ENDED | Change.CAPACITY


def test_without_nodes_the_message_is_short():
    assert reported(decide(cluster_state([]), [pod("p")])) == {"p": "no nodes available to schedule pods"}


def test_siblings_share_one_diagnosis():
    result = decide(measured(a=1.0), [pod(f"p{i}", labels={"i": str(i)}) for i in range(4)])
    assert placed(result) == {"p0": "a"}
    assert len({id(u.diagnosis) for u in result.unschedulable}) == 1


def test_profiles_decide_side_by_side_each_by_its_own_rules():
    cluster = cluster_state([node("a"), node("b")], (), [capacity("a", 0.6)])
    careful = profile("careful", metrics_policy="Avoid", admit_fraction=0.5)
    heads = [pod("one", schedulerName="concerto"), *(pod(f"two{i}", schedulerName="careful") for i in range(2))]
    result = decide(cluster, heads, profile(), careful)
    assert placed(result) == {"one": "b", "two0": "a"}
    assert reported(result) == {
        "two1": "0/2 nodes are available: 1 Insufficient measured capacity, 1 node(s) had no measured capacity."
    }


def test_random_ties_use_the_generator_that_is_passed_in():
    def run(seed):
        cluster = measured(**{f"n{i}": 5.0 for i in range(8)})
        return placed(decide(cluster, [pod("p")], profile(tie_breaking="Random"), seed=seed))["p"]

    assert run(1) == run(1)
    assert {run(seed) for seed in range(60)} == {f"n{i}" for i in range(8)}


def test_ties_by_name_are_by_name_and_not_by_age():
    assert placed(decide(measured(c=5.0, a=5.0, b=5.0), [pod("p")])) == {"p": "a"}


class TestStandingReservations:
    def cluster(self, count=1, on="b"):
        cluster = measured(a=9.0, b=1.0)
        selector = LabelSelector.from_raw({"matchLabels": {"app": "x"}})
        cluster.set_reservation(Reservation("default", "res", "r", selector, count))
        cluster.hold(("default", "res"), {on: count})
        return cluster

    def test_a_matching_pod_goes_where_its_unit_is_and_uses_it(self):
        cluster = self.cluster()
        first, second = decide(cluster, [pod("p", labels={"app": "x"}), pod("q", labels={"app": "x"})]).decisions
        assert first.assignment.node == "b"
        assert first.assignment.reservation == ("default", "res")
        assert first.assignment.available == 1.0
        assert second.assignment.node == "a"
        assert second.assignment.reservation is None

    def test_others_do_not_get_it(self):
        cluster = self.cluster()
        heads = [pod(f"p{i}") for i in range(12)]
        assert set(placed(decide(cluster, heads)).values()) == {"a"}
        assert cluster.measured.available[cluster.row_of["b"]] == 0.0

    def test_a_pod_whose_units_node_will_not_do_competes_for_the_others(self):
        result = decide(self.cluster(), [pod("p", labels={"app": "x"}, nodeSelector={"kubernetes.io/hostname": "a"})])
        assert placed(result) == {"p": "a"}
        assert result.decisions[0].assignment.reservation is None

    def test_a_failed_binding_gives_the_unit_back(self):
        cluster = self.cluster()
        heads = [pod("p", labels={"app": "x"})]
        decide(cluster, heads)
        cluster.forget("uid-p")
        assert decide(cluster, heads).decisions[0].assignment.reservation == ("default", "res")


@dataclass(frozen=True)
class Fixed(ScoreDefaults):
    """Scores nodes by a given number; without one it abstains."""

    name: ClassVar[str] = "Fixed"
    given: tuple[tuple[str, float], ...]

    def score(self, query, rows):
        numbers = dict(self.given)
        return np.array([numbers.get(name, np.nan) for name in query.cluster.names])[rows]

    def normalise(self, query, scores):
        raise AssertionError("it says that it needs none")


class OfGreatest(Fixed):
    """The same as a share of the greatest."""

    needs_normalising: ClassVar[bool] = True

    def normalise(self, query, scores):
        return 100.0 * scores / np.nanmax(scores)


class TestScores:
    def choose(self, cluster, *scores):
        plugins = tuple(FILTERS[n]() for n in ("NodeResources", "PodCapacity"))
        made = Profile(ProfileSettings("concerto", tie_breaking="FirstByName"), plugins, scores)
        (decision,) = decide(cluster, [pod("p")], made).decisions
        cluster.forget("uid-p")
        return decision.assignment.node, decision.score

    def test_scores_are_weighed(self):
        nodes = cluster_state([node(n) for n in "abc"])
        one = Fixed((("a", 100.0), ("b", 60.0), ("c", 0.0)))
        two = Fixed((("a", 0.0), ("b", 50.0), ("c", 100.0)))
        assert self.choose(nodes, (one, 1), (two, 1)) == ("b", 55.0)
        assert self.choose(nodes, (one, 3), (two, 1)) == ("a", 75.0)

    def test_an_abstention_counts_neither_for_nor_against(self):
        nodes = cluster_state([node(n) for n in "abc"])
        one = Fixed((("a", 40.0), ("b", 60.0)))
        two = Fixed((("a", 90.0), ("b", 40.0), ("c", 64.0)))
        # a: 65, b: 50, c: 64 by the second alone
        assert self.choose(nodes, (one, 1), (two, 1)) == ("a", 65.0)
        assert self.choose(nodes, (two, 1), (one, 1)) == ("a", 65.0)

    def test_where_all_abstain_a_node_is_neither_best_nor_worst(self):
        nodes = cluster_state([node(n) for n in "abc"])
        assert self.choose(nodes, (Fixed((("a", 49.0), ("c", 51.0))), 1)) == ("c", 51.0)
        assert self.choose(nodes, (Fixed((("a", 49.0),)), 1)) == ("b", 50.0)
        assert self.choose(nodes, (Fixed(()), 1)) == ("a", 50.0)

    def test_normalising_sees_feasible_nodes_only_and_keeps_abstentions(self):
        nodes = cluster_state([node("a"), node("b"), node("c"), node("full", allocatable={"pods": 0})])
        share = OfGreatest((("a", 1.0), ("b", 2.0), ("full", 50.0)))
        assert self.choose(nodes, (share, 1)) == ("b", 100.0)
        assert self.choose(nodes, (share, 1), (Fixed((("c", 100.0), ("b", 90.0))), 1)) == ("c", 100.0)


class TestLoadAwareScores:
    SCORES = (
        ScoreSettings("TargetLoadPacking", 2),
        ScoreSettings("LoadVariationRiskBalancing"),
        ScoreSettings("NodeResourcesFit"),
    )
    LOAD_ONLY = SCORES[:2]

    def cluster(self, *, loads=None, **requests):
        """Nodes a, b, c with room; `requests` are of pods that ran before, `loads` (mean, deviation) of cpu."""
        nodes = [node(n) for n in "abc"]
        there = [
            pod(f"r{n}", requests={"cpu": r}, nodeName=n, created="1970-01-01T00:00:01Z") for n, r in requests.items()
        ]
        statuses = [
            capacity(n, 50.0, observed=(f"uid-r{n}",), windows=load((loads or {})[n]) if n in (loads or {}) else ())
            for n in "abc"
        ]
        return cluster_state(nodes, there, statuses)

    def test_a_burst_does_not_pile_up_on_the_node_that_was_best_before_it(self):
        cluster = self.cluster(loads={"a": (0.05, 0.0), "b": (0.0, 0.0), "c": (0.0, 0.0)})
        waiting = [pod(f"p{i}", requests={"cpu": "400m"}) for i in range(9)]  # 15 % of a node each, as predicted
        result = decide(cluster, waiting, profile(scores=(ScoreSettings("TargetLoadPacking"),)))
        counts = Counter(d.assignment.node for d in result.decisions)
        assert counts == {"a": 3, "b": 3, "c": 3}

    def test_a_node_without_metrics_has_the_least_score(self):
        cluster = self.cluster(loads={"a": (0.9, 0.05), "b": (0.5, 0.05)}, a="3", b="3", c="3")
        (decision,) = decide(cluster, [pod("p", requests={"cpu": "100m"})], profile(scores=self.SCORES)).decisions
        # Left out of its mean, c would have the score of its requests alone, and be the best of a busy cluster
        assert [r.node for r in decision.top] == ["b", "a", "c"]
        assert dict(decision.top[2].by_plugin) == {
            "TargetLoadPacking": 0, "LoadVariationRiskBalancing": 0, "NodeResourcesFit": 58,
        }  # fmt: skip

    def test_a_node_on_which_scores_abstain_gets_the_mean_of_the_others(self):
        scores = tuple(replace(score, missing_metrics="Abstain") for score in self.SCORES)
        cluster = self.cluster(loads={"a": (0.9, 0.05), "b": (0.5, 0.05)}, a="3", b="3", c="3")
        (decision,) = decide(cluster, [pod("p", requests={"cpu": "100m"})], profile(scores=scores)).decisions
        assert [r.node for r in decision.top] == ["b", "c", "a"]
        by_node = {r.node: dict(r.by_plugin) for r in decision.top}
        assert set(by_node["c"]) == {"NodeResourcesFit"}
        assert set(by_node["a"]) == {s.name for s in self.SCORES}
        assert decision.top[1].score == (decision.top[0].score + decision.top[2].score) / 2

    def test_abstentions_are_counted_by_plugin_once_for_each_kind_of_pod(self):
        cluster = self.cluster(loads={"a": (0.1, 0.0)})
        waiting = [pod(f"p{i}", requests={"cpu": r}) for i, r in enumerate(("100m", "100m", "200m"))]
        result = decide(cluster, waiting, profile(scores=self.SCORES))
        assert result.abstentions == {
            ("concerto", "TargetLoadPacking"): 4,
            ("concerto", "LoadVariationRiskBalancing"): 4,
        }

    STRATEGIES: ClassVar = {
        "TargetLoadPacking packs": ("TargetLoadPacking", "ByScore", "a"),
        "LoadVariationRiskBalancing spreads": ("LoadVariationRiskBalancing", "ByScore", "b"),
        "LowRiskOverCommitment spreads": ("LowRiskOverCommitment", "ByScore", "b"),
        "it is set to spread": ("TargetLoadPacking", "LeastAllocated", "b"),
        "it is set to pack": ("LoadVariationRiskBalancing", "MostAllocated", "a"),
    }

    @pytest.mark.parametrize(("name", "strategy", "taken"), STRATEGIES.values(), ids=STRATEGIES)
    def test_with_no_metric_of_any_node_requests_decide_as_the_profile_wants(self, name, strategy, taken):
        cluster = self.cluster(a="3", b="1", c="2")
        chosen = profile(scores=(ScoreSettings(name),), load=LoadSettings(requests_strategy=strategy))
        (decision,) = decide(cluster, [pod("p", requests={"cpu": "100m"})], chosen).decisions
        assert (decision.assignment.node, decision.by_allocation) == (taken, True)
        assert decision.score == {"a": 40, "b": 83}[taken]  # (cpu 77 + memory 4) / 2, (cpu 71 + memory 95) / 2

    OTHERS: ClassVar = {
        "that are the same everywhere": ((ScoreSettings("TaintToleration"),), "a", True),
        "that concern some pods only": ((ScoreSettings("NodeAffinity"),), "a", True),
        "that weigh more": ((ScoreSettings("TaintToleration", 100),), "a", True),
        "of requests, in a way of their own": (
            (ScoreSettings("NodeResourcesFit", node_resources_fit=NodeResourcesFitArgs("LeastAllocated")),),
            "b",
            True,
        ),
        "of what agents measure otherwise": ((ScoreSettings("Capacity"),), "c", False),
    }

    @pytest.mark.parametrize(("others", "taken", "by_allocation"), OTHERS.values(), ids=OTHERS)
    def test_without_metrics_requests_stand_in_for_load_beside_other_scores(self, others, taken, by_allocation):
        cluster = self.cluster(a="3", b="1", c="2")
        cluster.set_capacity(capacity("c", 60.0, version=2), NOW)
        waiting = pod("p", requests={"cpu": "100m"})
        (decision,) = decide(cluster, [waiting], profile(scores=(*self.LOAD_ONLY, *others))).decisions
        assert (decision.assignment.node, decision.by_allocation) == (taken, by_allocation)

    def test_the_chosen_node_comes_first_and_the_next_best_after_it(self):
        cluster = self.cluster(loads={"a": (0.3, 0.0), "b": (0.1, 0.0), "c": (0.2, 0.0)})
        (decision,) = decide(cluster, [pod("p", requests={"cpu": "100m"})], profile(scores=self.LOAD_ONLY)).decisions
        assert [r.node for r in decision.top] == ["a", "c", "b"]
        assert decision.top[0].score == decision.score

    def test_two_profiles_read_the_same_nodes_each_in_its_own_way(self):
        cluster = self.cluster(loads={"a": (0.3, 0.0), "b": (0.1, 0.0), "c": (0.0, 0.0)})
        packing = profile(scores=(ScoreSettings("TargetLoadPacking"),))
        spreading = profile("spread", scores=(ScoreSettings("LoadVariationRiskBalancing"),))
        heads = [pod("p", requests={"cpu": "100m"}), pod("q", schedulerName="spread", requests={"cpu": "100m"})]
        result = schedule(
            cluster, heads, {"concerto": packing, "spread": spreading}, now=NOW, generator=np.random.default_rng(0)
        )
        assert [d.assignment.node for d in result.decisions] == ["a", "c"]


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BESIDE = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "x"}}}


class TestPodsAndPods:
    def zones(self):
        return cluster_state([node(f"{zone}{i}", labels={"zone": zone}) for zone in "abc" for i in range(2)])

    def test_what_a_cycle_places_counts_for_the_pods_after_it(self):
        apart = {"affinity": {"podAntiAffinity": {REQUIRED: [BESIDE]}}, "labels": {"app": "x"}}
        result = decide(self.zones(), [pod(f"p{i}", **apart) for i in range(5)])
        assert {d.assignment.node[0] for d in result.decisions} == {"a", "b", "c"}
        assert len(result.decisions) == 3
        assert result.unschedulable[0].diagnosis.message == (
            "0/6 nodes are available: 6 node(s) didn't match pod anti-affinity rules."
        )

    def test_a_pod_that_found_no_node_finds_one_after_the_pod_that_it_requires_was_placed(self):
        cluster = self.zones()
        follower = pod("follower", affinity={"podAffinity": {REQUIRED: [BESIDE]}})
        leader = pod("leader", labels={"app": "x"}, nodeSelector={"zone": "b"})
        result = decide(cluster, [follower, leader, pod("second", affinity={"podAffinity": {REQUIRED: [BESIDE]}})])
        assert [(d.pod.name, d.assignment.node[0]) for d in result.decisions] == [("leader", "b"), ("second", "b")]
        (failure,) = result.unschedulable
        cluster.confirm("uid-leader")
        seen = cluster.set_pod(replace(leader, node_name=result.decisions[0].assignment.node), NOW)
        assert failure.diagnosis.requeue_on & seen, "it is looked at again once the leader is bound"

    def test_spread_is_even_over_zones(self):
        even = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **BESIDE}
        waiting = [pod(f"p{i}", labels={"app": "x"}, topologySpreadConstraints=[even]) for i in range(9)]
        zones = Counter(d.assignment.node[0] for d in decide(self.zones(), waiting).decisions)
        assert zones == {"a": 3, "b": 3, "c": 3}

    def test_a_decision_that_is_taken_back_counts_no_more(self):
        apart = {"affinity": {"podAntiAffinity": {REQUIRED: [BESIDE]}}, "labels": {"app": "x"}}
        cluster = cluster_state([node("a", labels={"zone": "a"})])
        first, second = pod("first", **apart), pod("second", **apart)
        assert len(decide(cluster, [first, second]).decisions) == 1
        cluster.forget("uid-first")
        assert [d.pod.name for d in decide(cluster, [second]).decisions] == ["second"]
