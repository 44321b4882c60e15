"""What the runbooks and pages say of missing load, sentence by sentence, against the code."""

from __future__ import annotations

import numpy as np
import pytest

from concerto.controllers.scheduling.load_providers.source import SourceError
from concerto.controllers.scheduling.load_providers.state import ProviderState, failed_state
from concerto.controllers.scheduling.profiles import metrics_condition
from concerto.scheduling.coverage import coverage
from concerto.scheduling.cycle import schedule
from scheduling.test_missing_metrics import NODES, cluster_of, made
from support.crd_schemas import REPOSITORY
from support.scheduling_builders import NOW, pod

RUNBOOKS = " ".join((REPOSITORY / "docs" / "runbooks.md").read_text().split())
STALE_AFTER = 300.0


def section(name):
    return RUNBOOKS.partition(f"## {name} ")[2].partition(" ## ")[0]


def decide(loads, now=NOW, rule=None):
    profile = made("TargetLoadPacking", "Prometheus", rule)
    waiting = [pod("p", schedulerName="study", requests={"cpu": "100m"})]
    cluster = cluster_of("Prometheus", loads)
    return schedule(cluster, waiting, {"study": profile}, now=now, generator=np.random.default_rng(0))


def old_metrics_are_used():
    (decision,) = decide(dict.fromkeys(NODES, 0.3), NOW + STALE_AFTER).decisions
    assert not decision.by_allocation


def requests_decide_for_all_nodes():
    (decision,) = decide({"a": 0.3, "b": 0.3}).decisions
    assert decision.by_allocation
    (decision,) = decide(dict.fromkeys(NODES, 0.3), NOW + STALE_AFTER + 1).decisions
    assert decision.by_allocation


def pods_wait_for_metrics():
    result = decide({}, rule="Avoid")
    assert (result.decisions, len(result.unschedulable)) == ([], 1)


def metrics_name_nodes():
    profile = made("TargetLoadPacking", "Prometheus")
    known = coverage(cluster_of("Prometheus", {"a": 0.3}), profile, NOW)
    assert known.missing_nodes == ("b", "c", "d", "e")
    condition = metrics_condition(known)
    assert (condition.status, condition.reason) == ("False", "SomeMissing")
    assert "missingMetrics of each score and spec.metricsPolicy decide" in condition.message
    assert "Condition ProviderReady shows the state of its provider." in condition.message


def the_last_answer_is_used():
    state = failed_state(SourceError("Timeout", "no answer within 5 s"), ProviderState())
    assert state.condition.reason == "Timeout"
    assert "Its last answer is used until it is spec.staleAfter old." in state.condition.message
    old_metrics_are_used()


SENTENCES = {
    ("ConcertoLoadUnknown", "While metrics are only old, they are used."): old_metrics_are_used,
    (
        "ConcertoLoadUnknown",
        "Once fewer than half of the nodes have metrics that are younger than `spec.staleAfter`, requests decide for "
        "all nodes.",
    ): requests_decide_for_all_nodes,
    (
        "ConcertoLoadUnknown",
        "Pods of a profile that avoids nodes without metrics (`spec.metricsPolicy`, `missingMetrics` of a score) wait.",
    ): pods_wait_for_metrics,
    (
        "ConcertoLoadUnknown",
        "`kubectl describe sprof NAME`: condition ProviderReady says what is wrong with the provider (its Secret, "
        "address, a query, the label that names nodes), and `status.metrics` names nodes.",
    ): metrics_name_nodes,
    (
        "ConcertoMetricProviderFails",
        "Its last answer is used until it is stale; then ConcertoLoadUnknown follows.",
    ): the_last_answer_is_used,
}


@pytest.mark.parametrize(("where", "holds"), [pytest.param(*item, id=item[1].__name__) for item in SENTENCES.items()])
def test_a_runbooks_sentence_is_so(where, holds):
    name, sentence = where
    assert sentence in section(name)
    holds()


ANSWERS = {0: "AllMissing", 3: "SomeMissing", 5: "Measured"}


@pytest.mark.parametrize(("measured", "reason"), list(ANSWERS.items()))
def test_the_condition_counts_the_nodes(measured, reason):
    loads = dict.fromkeys(NODES[:measured], 0.3)
    condition = metrics_condition(
        coverage(cluster_of("Prometheus", loads), made("TargetLoadPacking", "Prometheus"), NOW)
    )
    assert (condition.reason, condition.status) == (reason, "True" if measured == 5 else "False")
    if measured < 5:
        assert f"Telemetry of {5 - measured} of 5 nodes is missing" in condition.message
