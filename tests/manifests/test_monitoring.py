"""What Prometheus and Grafana are given: rules tried by promtool, and metrics that can't grow with the pods."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.quantities import parse_duration
from concerto.api.schedulingprofile import ProfileSettings
from concerto.autoscaling.forecast_influence import ForecastResult
from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics, ShownLoad
from concerto.controllers.runtime.metrics import Metrics
from concerto_agent.exposition import exposition
from concerto_agent.metrics import Counters, Gauges, describe
from concerto_agent.pin_counts import PinCounts
from support.crd_schemas import REPOSITORY, documents
from support.programs import program

MONITORING = REPOSITORY / "manifests" / "components" / "monitoring"
RULES = [rule for group in documents(MONITORING / "rules.yaml")[0]["spec"]["groups"] for rule in group["rules"]]
UNIT_TESTS = Path(__file__).with_name("alerts.yaml")
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())

# Every label of every series, with what bounds the number of its values
BOUNDED_LABELS = {
    "result": "outcomes in the code",
    "kind": "our kinds",
    "plugin": "the registry of filters and scores",
    "direction": "up and down",
    "event": "started and ended",
    "reason": "reasons to publish, and reasons of the API server",
    "write": "what is written until the outcome is known",
    "error": "classes of errors",
    "resource": "spec.resources of the node, at most 8",
    "le": "buckets",
    "profile": "SchedulingProfiles",
    "state": "fresh, stale and missing; how pins stand",
    "pool": "pools of NodeCPUTopology",
    "cpus": "what a container can be created with by NRI",
    "lease": "the Leases of operator and autoscaler",
    "namespace": "PredictiveHPAs, of which people make as many as they like",
    "name": "PredictiveHPAs",
}


def promtool(*arguments: str | Path, stdin: str | None = None) -> None:
    command = [program("promtool", "prometheus"), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def exposed() -> str:
    """What operator and agent expose, with a value of each label."""
    metrics = Metrics()
    forecasts = ForecastMetrics(metrics.registry)
    result = ForecastResult("ForecastActive", "Trend", 2.0, 3.0, 60.0, 9.0, 4.0)
    forecasts.observe(("default", "web"), result, ShownLoad(1.5, 2, 3, 1, 30.0, 45.0))
    forecasts.observe_ready(("default", "web"), ready=True)
    forecasts.rescaled(1, 2)
    metrics.leader.labels("concerto-operator").set(1)
    metrics.decisions.labels("capacity").inc()
    metrics.abstentions.labels("TargetLoadPacking").inc()
    metrics.bindings.labels("bound").inc()
    metrics.preemption_attempts.labels("found").inc()
    metrics.gangs.labels("placed").inc()
    metrics.preemption_victims.labels("evicted").inc()
    metrics.write_failures.labels("PlacementRecord", "Webhook").inc()
    metrics.reconciles.labels("PodReservation", "ok").inc()
    metrics.unreadable.labels("NodeCapacity").inc()
    for family in (metrics.provider_polls, metrics.provider_rejected, metrics.load_nodes):
        family.labels("by-load", "fresh")
    for family in (metrics.provider_seconds, metrics.provider_unmatched):
        family.labels("by-load")
    counters = Counters(samples=5)
    for counted, label in (
        (counters.invalid, "cpu"), (counters.pods, "Started"), (counters.published, "First"),
        (counters.failed, "Forbidden"),
    ):  # fmt: skip
        counted[label] += 1
    pins = PinCounts({"shared": 1}, {"Applied": 1}, 0, created={"Bound": 1})
    return metrics.render().decode() + exposition(describe(counters, Gauges(usage={"cpu": 0.5}, pins=lambda: pins)))


def test_promtool_finds_nothing_wrong_with_the_names_of_metrics():
    promtool("check", "metrics", stdin=exposed())


def test_no_series_is_labelled_by_what_grows_with_pods_or_nodes():
    samples = [s for family in text_string_to_metric_families(exposed()) for s in family.samples]
    assert {label for s in samples for label in s.labels} == set(BOUNDED_LABELS)
    # nothing that has labels was left out above
    families = [f for f in vars(Metrics()).values() if getattr(f, "_labelnames", ())]
    assert {f._name for f in families} <= {re.sub(r"_(total|bucket)$", "", s.name) for s in samples}


def test_scraping_adds_no_label_of_a_pod():
    for monitor in documents(MONITORING / "monitors.yaml"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            drop = next(r for r in endpoint["relabelings"] if r.get("action") == "labeldrop")
            assert "pod" in drop["regex"].split("|")


def scraped_labels(monitor: dict[str, Any], pod: str, node: str) -> dict[str, str]:
    """The labels that Prometheus gives all series of a pod, by what the Prometheus operator and the monitor say."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    labels = {
        "__meta_kubernetes_pod_name": pod, "__meta_kubernetes_pod_node_name": node, "namespace": "concerto-system",
        "job": f"concerto-system/{monitor['metadata']['name']}", "pod": pod, "container": "c", "endpoint": "metrics",
    }  # fmt: skip
    for rule in endpoint["relabelings"]:
        if rule.get("action") == "labeldrop":
            labels = {name: value for name, value in labels.items() if not re.fullmatch(rule["regex"], name)}
        else:
            (source,) = rule["sourceLabels"]
            labels[rule["targetLabel"]] = labels[source]
    return {name: value for name, value in labels.items() if not name.startswith("__")}


MONITORS = {monitor["metadata"]["name"]: monitor for monitor in documents(MONITORING / "monitors.yaml")}


@pytest.mark.parametrize("name", ["concerto-operator", "concerto-autoscaler"])
def test_two_replicas_on_one_node_have_series_of_their_own(name):
    """Else the leader's and the standby's samples would be one series, in which the leader comes and goes."""
    assert scraped_labels(MONITORS[name], "a", "n") != scraped_labels(MONITORS[name], "b", "n")


def test_an_agent_that_is_started_again_goes_on_with_the_series_of_its_node():
    monitor = MONITORS["concerto-agent"]
    assert scraped_labels(monitor, "a", "n") == scraped_labels(monitor, "b", "n")
    assert scraped_labels(monitor, "a", "n") != scraped_labels(monitor, "a", "m")


def test_of_a_relabeling_the_api_server_sets_nothing():
    """The CRD of PodMonitor has one default in a list, the action `replace`: it would be drift to Argo CD."""
    relabelings = [
        rule
        for monitor in MONITORS.values()
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        for rule in endpoint["relabelings"]
    ]
    assert [rule for rule in relabelings if "action" not in rule] == []


def test_scraping_is_over_tls_with_the_token_of_who_may_read_metrics():
    account, secret, binding = documents(MONITORING / "access.yaml")
    name = account["metadata"]["name"]
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert secret["metadata"]["annotations"]["kubernetes.io/service-account.name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "concerto-system"}]
    for monitor in documents(MONITORING / "monitors.yaml"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert (endpoint["port"], endpoint["scheme"]) == ("metrics", "https")
            assert endpoint["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "token"}


def test_every_alert_fires_when_it_should_and_not_before(tmp_path):
    spec = documents(MONITORING / "rules.yaml")[0]["spec"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(spec))
    shutil.copy(UNIT_TESTS, tmp_path)
    promtool("check", "rules", tmp_path / "rules.yml")
    promtool("test", "rules", tmp_path / UNIT_TESTS.name)


def test_a_silent_agent_is_told_of_before_its_last_status_is_too_old():
    (rule,) = (rule for rule in RULES if rule["alert"] == "ConcertoAgentsNotReporting")
    profile, node = ProfileSettings(scheduler_name="x"), CapacitySettings()
    silent = profile.heartbeats_missed * node.heartbeat_seconds
    assert silent + parse_duration(rule["for"]) < profile.stale_after_seconds


def test_every_alert_is_tried_both_ways():
    tried = [t for test in documents(UNIT_TESTS)[0]["tests"] for t in test["alert_rule_test"]]
    names = {rule["alert"] for rule in RULES}
    assert {t["alertname"] for t in tried if t.get("exp_alerts")} == names
    # what fires at once, or for the first time within a rate's window, has no "before" worth a line
    silent = {t["alertname"] for t in tried if not t.get("exp_alerts")}
    assert names - silent <= {"ConcertoReconcileErrors", "ConcertoAgentCannotPublish"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_has_a_section_in_the_runbooks(rule):
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (REPOSITORY / page).read_text(), re.MULTILINE)
    assert anchor in {heading.lower() for heading in headings}


def test_rules_and_dashboard_ask_for_metrics_that_there_are():
    known = {s.name for family in text_string_to_metric_families(exposed()) for s in family.samples}
    known |= {re.sub(r"_(sum|count|bucket)$", "", name) for name in known}
    queries = [rule["expr"] for rule in RULES] + [t["expr"] for p in DASHBOARD["panels"] for t in p["targets"]]
    assert {name for query in queries for name in re.findall(r"concerto_\w+", query)} <= known


def test_panels_are_distinguished():
    panels = DASHBOARD["panels"]
    assert len({p["id"] for p in panels}) == len({p["title"] for p in panels}) == len(panels)
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in panels}) == len(panels)
