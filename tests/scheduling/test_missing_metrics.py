"""Nodes whose metrics are missing: one rule for each score and node, as docs/load-aware.md has it."""

from __future__ import annotations

import re
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from concerto.api.metric_provider import MetricProviderSettings
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.score_arguments import MissingMetrics, ScoreSettings
from concerto.scheduling.coverage import coverage
from concerto.scheduling.cycle import schedule
from concerto.scheduling.explanation import explain
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.provided_load import Series
from concerto.simulation.studies.outage_study import ORDERS, SCORES, OutageSettings, share_on_the_fullest
from support.crd_schemas import REPOSITORY, structural_schema
from support.daemon_sets import daemon_affinity
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod

BY_LOAD = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment")
PROVIDERS = ("Agents", "Prometheus")
LOADS = {"a": 0.2, "b": 0.3, "c": 0.1}  # of the nodes that are measured; d and e are not
REQUESTS = {"a": "1", "b": "2", "c": "1", "d": "3", "e": "100m"}
NODES = "abcde"
PAGE = (REPOSITORY / "docs" / "load-aware.md").read_text()


def made(score, provider, rule=None, policy="FallbackToRequests", **load_settings):
    """A profile of one load-aware score."""
    by_agents = provider == "Agents"
    return Profile.build(
        ProfileSettings(
            "study",
            scores=(ScoreSettings(score, **({"missing_metrics": rule} if rule else {})),),
            tie_breaking="FirstByName",
            metrics_policy=policy,
            load=LoadSettings(provider="" if by_agents else "study", **load_settings),
            metric_provider=MetricProviderSettings(provider),
        )
    )


def cluster_of(provider, loads):
    """Nodes with pods that have run for long; those of `loads` are measured, in one way or the other."""
    long_ago = {"created": "1970-01-01T00:00:01Z", "status": {"startTime": "1970-01-01T00:00:01Z"}}
    there = [pod(f"on-{n}", requests={"cpu": r}, nodeName=n, **long_ago) for n, r in REQUESTS.items()]
    statuses = []
    if provider == "Agents":
        statuses = [
            capacity(n, 50.0, observed=(f"uid-on-{n}",), windows=load((loads[n], 0.0)) if n in loads else ())
            for n in NODES
        ]
    cluster = cluster_state([node(n) for n in NODES], there, statuses)
    if provider != "Agents":
        values = {n: (value, NOW) for n, value in loads.items()}
        cluster.provide("study", [Series(r, "average", values, 300.0) for r in ("cpu", "memory")], NOW)
    return cluster


def decide(cluster, profile, count=1, **over):
    waiting = [pod(f"p{i}", schedulerName="study", **({"requests": {"cpu": "100m"}} | over)) for i in range(count)]
    return schedule(cluster, waiting, {"study": profile}, now=NOW, generator=np.random.default_rng(0))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("score", BY_LOAD)
class TestRules:
    def table(self, provider, score, rule):
        """Score of each node, as `concerto explain` shows it."""
        cluster = cluster_of(provider, LOADS)
        waiting = pod("p", schedulerName="study", requests={"cpu": "100m"})
        return {v.node: v for v in explain(cluster, waiting, made(score, provider, rule), NOW)}

    def test_least_score_is_the_default_and_gives_0(self, provider, score):
        table = self.table(provider, score, None)
        assert {n: table[n].total for n in "de"} == {"d": 0, "e": 0}
        assert min(table[n].total for n in "abc") > 0

    def test_abstain_gives_the_mean_of_the_others(self, provider, score):
        table = self.table(provider, score, "Abstain")
        mean = np.mean([table[n].total for n in "abc"])
        assert [table[n].total for n in "de"] == pytest.approx([mean, mean])

    def test_requests_gives_the_score_of_the_requests(self, provider, score):
        table = self.table(provider, score, "Requests")
        # e requests as much as 2.5 % and d as much as 75 % of the cpu; what is measured stays as it is
        assert {n: table[n].total for n in "abc"} == {n: self.table(provider, score, None)[n].total for n in "abc"}
        expected = {
            "TargetLoadPacking": {"d": 14, "e": 49},  # 78.75 % and 6.25 % with the pod, target 40
            "LoadVariationRiskBalancing": {"d": 22, "e": 95},  # 22.5 and 95
            "LowRiskOverCommitment": {"d": 100, "e": 100},  # load as requested is no risk
        }[score]
        assert {n: table[n].total for n in "de"} == pytest.approx(expected, abs=1)

    def test_avoid_takes_no_pods(self, provider, score):
        cluster = cluster_of(provider, LOADS)
        result = decide(cluster, made(score, provider, "Avoid"), 200, requests={"cpu": "50m"})
        assert {d.assignment.node for d in result.decisions} <= set("abc")
        (message,) = {u.diagnosis.message for u in result.unschedulable}
        assert f"2 node(s) had no metrics for {score}" in message
        assert Change.LOAD in result.unschedulable[0].diagnosis.requeue_on

    def test_metrics_policy_avoid_sets_it_for_every_score(self, provider, score):
        result = decide(cluster_of(provider, LOADS), made(score, provider, None, "Avoid"), 200, requests={"cpu": "50m"})
        assert {d.assignment.node for d in result.decisions} <= set("abc")

    def test_pods_of_daemon_sets_belong_to_their_node(self, provider, score):
        result = decide(
            cluster_of(provider, {}), made(score, provider, "Avoid"), owner="DaemonSet", affinity=daemon_affinity("a")
        )
        assert len(result.decisions) == 1

    @pytest.mark.parametrize("rule", ["LeastScore", "Abstain"])
    def test_too_few_measured_nodes_leave_it_to_requests_for_all(self, provider, score, rule):
        for loads in ({}, {"a": 0.1}, {"a": 0.1, "b": 0.1}):
            (decision,) = decide(cluster_of(provider, loads), made(score, provider, rule)).decisions
            packs = score == "TargetLoadPacking"
            assert (decision.assignment.node, decision.by_allocation) == ("d" if packs else "e", True), loads
        (decision,) = decide(cluster_of(provider, LOADS), made(score, provider, rule)).decisions
        assert not decision.by_allocation

    def test_how_many_are_too_few_is_a_setting(self, provider, score):
        one = {"c": 0.1}
        (decision,) = decide(cluster_of(provider, one), made(score, provider, min_measured_percent=20)).decisions
        assert (decision.assignment.node, decision.by_allocation) == ("c", False)
        (decision,) = decide(cluster_of(provider, LOADS), made(score, provider, min_measured_percent=61)).decisions
        assert decision.by_allocation
        (decision,) = decide(cluster_of(provider, {}), made(score, provider, min_measured_percent=0)).decisions
        assert decision.by_allocation, "none is always too few"

    def test_by_requests_everywhere_is_a_fallback_too(self, provider, score):
        (decision,) = decide(cluster_of(provider, {}), made(score, provider, "Requests")).decisions
        assert decision.by_allocation

    def test_coverage_counts_the_nodes_whose_metrics_are_missing(self, provider, score):
        known = coverage(cluster_of(provider, LOADS), made(score, provider), NOW)
        assert (known.fresh, known.missing, known.missing_nodes) == (3, 2, ("d", "e"))
        assert known.affected == ((score, "missingMetrics LeastScore", 2),)


@pytest.mark.parametrize("policy", ["FallbackToRequests", "Avoid"])
def test_with_prometheus_complete_and_no_agents_pods_are_placed_by_load(policy):
    cluster = cluster_of("Prometheus", dict.fromkeys(NODES, 0.9) | {"b": 0.3})
    profile = made("TargetLoadPacking", "Prometheus", None, policy)
    assert {d.assignment.node for d in decide(cluster, profile, 3, requests={"cpu": "10m"}).decisions} == {"b"}
    assert coverage(cluster, profile, NOW).missing == 0


def test_a_profile_that_reads_capacity_still_needs_agents():
    cluster = cluster_of("Prometheus", dict.fromkeys(NODES, 0.3))
    by_load = made("TargetLoadPacking", "Prometheus", None, "Avoid").settings
    both = ProfileSettings(
        "study",
        scores=(*by_load.scores, ScoreSettings("Capacity")),
        metrics_policy="Avoid",
        load=by_load.load,
        metric_provider=by_load.metric_provider,
    )
    result = decide(cluster, Profile.build(both))
    assert result.decisions == []
    known = coverage(cluster, Profile.build(both), NOW)
    assert (known.missing, known.affected) == (5, (("Capacity", "metricsPolicy Avoid", 5),))


def test_the_study_has_every_load_aware_score():
    assert SCORES == BY_LOAD


# Limits and deviations are of risks alone
OUTAGES = [(score, 1.0, 0.0) for score in SCORES] + [("LowRiskOverCommitment", 2.0, 0.1)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("score", "limits", "deviation"), OUTAGES)
def test_a_partial_outage_is_not_worse_than_a_total_one(score, order, limits, deviation):
    settings = OutageSettings(pods=100, millicores=80, limits=limits, deviation=deviation)
    shares = share_on_the_fullest(settings, score, ORDERS[order])
    assert len(shares) == 11
    assert max(shares) == shares[0], shares


@pytest.mark.parametrize("rule", ["Abstain", "Requests"])
@pytest.mark.parametrize(("score", "limits", "deviation"), OUTAGES)
def test_nor_is_it_by_the_other_rules(score, rule, limits, deviation):
    settings = OutageSettings(nodes=6, pods=60, millicores=80, limits=limits, deviation=deviation)
    shares = share_on_the_fullest(settings, score, ORDERS["the fullest first"], rule)
    assert max(shares) == shares[0], shares


def test_a_burst_goes_to_measured_nodes_first():
    profile = made("LoadVariationRiskBalancing", "Prometheus")
    result = decide(cluster_of("Prometheus", LOADS), profile, 9, requests={"cpu": "200m"})
    assert set(Counter(d.assignment.node for d in result.decisions)) == {"a", "b", "c"}


def rows_of(heading):
    """Cells of the first table below a heading of the page."""
    table = PAGE.partition(f"\n## {heading}\n")[2].partition("\n| ")[2].partition("\n\n")[0]
    lines = re.findall(r"^\|(.+)\|$", "| " + table, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def test_the_page_has_one_row_for_each_rule_and_says_what_the_code_does():
    rows = {row[0].strip("`"): row for row in rows_of("When metrics are missing")}
    assert tuple(rows) == get_args(MissingMetrics)
    assert "(default)" in rows["LeastScore"][1] and ScoreSettings("x").missing_metrics == "LeastScore"
    assert rows["LeastScore"][2].startswith("0")
    assert rows["Abstain"][2].startswith("the mean")
    assert "request as load" in rows["Requests"][2]
    assert "no pods" in rows["Avoid"][2]
    by_requests = {name: "all nodes by requests" in row[3] for name, row in rows.items()}
    assert by_requests == {"LeastScore": True, "Abstain": True, "Requests": True, "Avoid": False}
    text = " ".join(PAGE.split())
    settings = LoadSettings()
    assert f"`spec.load.minMeasuredPercent` ({settings.min_measured_percent}" in text
    schema = structural_schema("SchedulingProfile")["properties"]["spec"]["properties"]["load"]["properties"]
    assert schema["minMeasuredPercent"]["default"] == settings.min_measured_percent
    assert schema["requestsStrategy"]["default"] == settings.requests_strategy == "ByScore"
