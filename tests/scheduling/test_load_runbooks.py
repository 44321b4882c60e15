"""What alerts, runbooks and pages say of missing load, sentence by sentence, against the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from concerto.controllers.scheduling.load_providers.source import SourceError
from concerto.controllers.scheduling.load_providers.state import ProviderState, failed_state
from concerto.controllers.scheduling.profiles import metrics_condition
from concerto.scheduling.coverage import Coverage, coverage
from concerto.scheduling.cycle import schedule
from scheduling.test_missing_metrics import NODES, cluster_of, made
from support.crd_schemas import REPOSITORY, documents
from support.scheduling_builders import NOW, pod

RUNBOOKS = " ".join((REPOSITORY / "docs" / "runbooks.md").read_text().split())
PAGE = (REPOSITORY / "docs" / "load-aware.md").read_text()
RULES = {
    rule["alert"]: rule
    for group in documents(REPOSITORY / "manifests" / "components" / "monitoring" / "rules.yaml")[0]["spec"]["groups"]
    for rule in group["rules"]
}
OPERATOR = REPOSITORY / "operator" / "concerto"
STALE_AFTER = 300.0


def section(name):
    return RUNBOOKS.partition(f"## {name} ")[2].partition(" ## ")[0]


def sentences(text):
    """What ends with a full stop and is followed by another sentence, or by nothing."""
    return re.split(r"(?<=\.) (?=[A-Z`\[{])", text.strip())


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


def most_nodes_have_no_recent_load():
    expression = RULES["ConcertoLoadUnknown"]["expr"]
    assert 'state=~"missing|stale"' in expression and expression.endswith("> 0.5")
    profile = made("TargetLoadPacking", "Prometheus")
    known = coverage(cluster_of("Prometheus", {"a": 0.3, "b": 0.3}), profile, NOW + 61.0)
    assert (known.fresh, known.stale, known.missing) == (0, 2, 3)


def metrics_name_scores_and_nodes():
    profile = made("TargetLoadPacking", "Prometheus")
    known = coverage(cluster_of("Prometheus", {"a": 0.3}), profile, NOW)
    assert known.missing_nodes == ("b", "c", "d", "e")
    condition = metrics_condition(known)
    assert (condition.status, condition.reason) == ("False", "SomeMissing")
    assert "TargetLoadPacking lacks that of 4 (missingMetrics LeastScore)." in condition.message
    assert "Condition ProviderReady shows the state of its provider." in condition.message


def agents_have_a_section():
    assert section("ConcertoAgentsNotReporting")
    condition = metrics_condition(coverage(cluster_of("Agents", {}), made("TargetLoadPacking", "Agents"), NOW))
    assert "`kubectl get ncap` shows which agents do not report." in condition.message


def the_last_answer_is_used():
    state = failed_state(SourceError("Timeout", "no answer within 5 s"), ProviderState())
    assert state.condition.reason == "Timeout"
    assert "Its last answer is used until it is spec.staleAfter old." in state.condition.message
    old_metrics_are_used()


def every_fault_is_counted_by_its_reason():
    expression = RULES["ConcertoMetricProviderFails"]["expr"]
    assert 'result!~"Agents|Answering|NotAsked"' in expression and expression.endswith("> 0.5")
    assert reasons("controllers/scheduling/load_providers") >= {"Agents", "Answering", "NotAsked"}


def the_page_has_every_reason():
    found = reasons("controllers/scheduling/load_providers", "controllers/runtime/http_source.py")
    assert found == table_reasons("Condition ProviderReady:")


def reasons(*paths: str) -> set[str]:
    """What code gives as the reason of a condition: the first argument of an error, the third of a condition."""
    found = set()
    for path in (f for p in paths for f in sorted(OPERATOR.glob(f"{p}/*.py" if "." not in p else p))):
        found |= set(_reasons(ast.parse(path.read_text())))
    return found


AT = {"SourceError": 0, "_not_ready": 0, "Contradiction": 0, "Condition": 2}


def _reasons(tree: ast.AST) -> Iterator[str]:
    assigned = [
        node for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    constants = {name.id: node.value.value for node in assigned for name in node.targets if isinstance(name, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > AT.get(node.func.id, 99):
            given = node.args[AT[node.func.id]]
            for part in ast.walk(given):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value
                elif isinstance(part, ast.Name) and part.id in constants:
                    yield constants[part.id]


def table_reasons(after: str) -> set[str]:
    """First cells of the table after these words of the page."""
    table = PAGE.partition(after)[2].partition("\n| ")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in f"| {table}".splitlines()[2:]]
    return {reason.strip() for cell in cells for reason in cell.split(",")}


SENTENCES = {
    "A profile has no recent load of more than half of the nodes.": most_nodes_have_no_recent_load,
    "While metrics are only old, they are used.": old_metrics_are_used,
    "Once fewer than half of the nodes have metrics that are younger than `spec.staleAfter`, requests decide for all "
    "nodes.": requests_decide_for_all_nodes,
    "Pods of a profile that avoids nodes without metrics (`spec.metricsPolicy`, `missingMetrics` of a score) wait.": (
        pods_wait_for_metrics
    ),
    "`kubectl describe sprof NAME`: condition MetricsComplete names the scores that lack metrics, condition "
    "ProviderReady says what is wrong with the provider (its Secret, address, a query, the label that names nodes), "
    "and `status.metrics` names nodes.": metrics_name_scores_and_nodes,
    "For the provider Agents see [ConcertoAgentsNotReporting](#concertoagentsnotreporting).": agents_have_a_section,
    "More than half of the polls of a profile's metric provider fail, or lack some of the answer.": (
        every_fault_is_counted_by_its_reason
    ),
    "The last answer is used until it is older than `spec.staleAfter`; then ConcertoLoadUnknown follows.": (
        the_last_answer_is_used
    ),
    "`kubectl describe sprof NAME`: condition ProviderReady has the reason, which is also the label `result` of "
    "`concerto_metric_provider_polls_total`.": every_fault_is_counted_by_its_reason,
    "[load-aware.md](load-aware.md#who-measures) lists the reasons.": the_page_has_every_reason,
    "Profile {{ $labels.profile }} has no recent load of {{ $value | humanizePercentage }} of the nodes.": (
        most_nodes_have_no_recent_load
    ),
    "Requests decide once fewer than half have any.": requests_decide_for_all_nodes,
    "{{ $value | humanizePercentage }} of the polls of the metric provider of profile {{ $labels.profile }} fail, or "
    "lack some of the answer.": every_fault_is_counted_by_its_reason,
}


@pytest.mark.parametrize(("sentence", "holds"), SENTENCES.items())
def test_a_sentence_is_so(sentence, holds):
    holds()


@pytest.mark.parametrize("alert", ["ConcertoLoadUnknown", "ConcertoMetricProviderFails"])
def test_every_sentence_of_alert_and_runbook_is_held_by_a_test(alert):
    written = [*sentences(section(alert)), *sentences(RULES[alert]["annotations"]["summary"])]
    assert [sentence for sentence in written if sentence not in SENTENCES] == []


def test_the_page_has_every_reason_that_settings_are_inconsistent():
    given = reasons("scheduling/consistency.py") - {"InvalidSpec", "Consistent"}
    assert given == table_reasons("condition SettingsConsistent says so:")


METRICS_COMPLETE = {"NoNodes", "ScoresLackMetrics", "Measured", "SomeMissing", "AllMissing"}


def test_every_reason_of_metrics_complete_has_a_test():
    ready = {"InvalidSpec", "DuplicateSchedulerName", "InUse"}
    assert reasons("controllers/scheduling/profiles.py") - ready == METRICS_COMPLETE
    tested = Path(__file__).read_text() + (REPOSITORY / "tests/controllers/test_statuses.py").read_text()
    # once in the set above, and once in a test
    assert [reason for reason in METRICS_COMPLETE if tested.count(f'"{reason}"') < 2] == []


BY_NODE = "tests/scheduling/state/test_load.py"
PROVIDED = "tests/scheduling/state/test_provided_load.py"
PROVIDERS = "tests/controllers/scheduling/test_load_providers.py"
RISK = "tests/scheduling/plugins/test_score_load_variation_risk_balancing.py"
ROWS = {
    "an agent is silent": ("tests/scheduling/state/test_ledger.py", "test_the_age_of_telemetry"),
    "a status is older than `staleAfter`": ("e2e/suites/test_load_aware.py", "test_agents_die_and_scheduling_goes_on"),
    "too few nodes have metrics": ("e2e/suites/test_load_aware.py", "test_what_was_decided_without_metrics_is_counted"),
    "a number is NaN": (BY_NODE, "test_a_metric_that_cannot_be_is_missing_and_counted"),
    "a provider's value is over 1": (PROVIDED, "test_a_value_that_cannot_be_is_missing_and_counted"),
    "a query has two series": (PROVIDED, "test_a_node_of_which_a_query_says_two_things_has_no_metric"),
    "one query of several fails": (PROVIDERS, "test_one_query_of_many_fails_and_the_others_are_used"),
    "a provider fails": (PROVIDERS, "test_a_fault_has_a_name_a_sentence_a_counter_and_leaves_the_last_answer"),
    "a provider has no query": (PROVIDED, "test_scores_that_go_without_something_are_reported_with_what_they_lack"),
    "one resource of two": (RISK, "test_the_resource_that_is_measured_counts_and_a_deviation_that_is_not_is_0"),
    "a window is not full": (BY_NODE, "test_what_the_window_does_not_contain_is_added"),
    "a clock jumps": (PROVIDED, "test_a_clock_that_is_wrong_or_jumps_makes_nothing_fresh_or_stale"),
}


def test_each_row_about_bad_metrics_has_its_test():
    table = PAGE.partition("\n## When metrics are bad\n")[2].partition("\n| ")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in f"| {table}".splitlines()[2:]]
    assert len(rows) == len(ROWS)
    assert [row for row in rows if sum(row.startswith(words) for words in ROWS) != 1] == []
    for path, name in ROWS.values():
        assert f"def {name}(" in (REPOSITORY / path).read_text(), name


def test_without_nodes_nothing_is_known():
    condition = metrics_condition(Coverage())
    assert (condition.status, condition.reason) == ("Unknown", "NoNodes")


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
