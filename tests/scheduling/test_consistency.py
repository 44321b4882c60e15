"""Settings that work against each other are named, and nothing else is."""

import pytest

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.consistency import Heartbeat, consistency_condition
from support.crd_schemas import REPOSITORY, documents, stored_spec


def scores(*names, **fit):
    given = {"NodeResourcesFit": {"nodeResourcesFit": fit}} if fit else {}
    return {"scores": [{"name": name} | given.get(name, {}) for name in names]}


def shape(*points):
    return {"strategy": "RequestedToCapacityRatio", "shape": [{"utilization": u, "score": s} for u, s in points]}


def queries(average, window="5m", statistic="average"):
    prometheus = {"address": "http://p", "queries": {"cpu": {statistic: average}}}
    return scores("TargetLoadPacking") | {
        "load": {"window": window},
        "metricProvider": {"type": "Prometheus", "prometheus": prometheus},
    }


TLP, LVRB, LROC = "TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment"
DEVIATION = "standardDeviation"
FIT, BALANCED = "NodeResourcesFit", "NodeResourcesBalancedAllocation"
CASES = {
    "the default": ({}, "Consistent"),
    "packing alone": (scores(TLP, "TaintToleration", "NodeAffinity"), "Consistent"),
    "spreading alone": (scores(LVRB, "Capacity"), "Consistent"),
    "risks beside packing": (scores(TLP, LROC), "Consistent"),
    "risks, and least allocated": (scores(LROC, FIT, BALANCED), "Consistent"),
    "requests alone": (scores(FIT, BALANCED), "Consistent"),
    "packing and spreading by load": (scores(TLP, LVRB), "OpposedScores"),
    "packing, and most capacity": (scores(TLP, "Capacity"), "OpposedScores"),
    "packing, and least allocated": (scores(TLP, FIT), "OpposedScores"),
    "most allocated, and most capacity": (scores("Capacity", FIT, strategy="MostAllocated"), "OpposedScores"),
    "a rising shape, and most capacity": (scores("Capacity", FIT, **shape((0, 0), (100, 10))), "OpposedScores"),
    "a falling shape, and most capacity": (scores("Capacity", FIT, **shape((0, 10), (100, 0))), "Consistent"),
    "a shape with a peak": (scores("Capacity", FIT, **shape((0, 0), (50, 10), (100, 0))), "Consistent"),
    "load and requests": (scores(TLP, FIT, strategy="MostAllocated"), "LoadAndRequests"),
    "load and balance of requests": (scores(LVRB, BALANCED), "LoadAndRequests"),
    "the window's own range": (queries("avg_over_time(x[5m])"), "Consistent"),
    "the same in seconds": (queries("avg_over_time(x[300s])"), "Consistent"),
    "the placeholder": (queries("avg_over_time(rate(x[1m])[$window:30s])", "15m"), "Consistent"),
    "a recording rule": (queries("x:avg"), "Consistent"),
    "a range of the latest value": (queries("rate(x[1m])", statistic="latest"), "Consistent"),
    "another range": (queries("avg_over_time(x[5m])", "15m"), "RangeDiffersFromWindow"),
    "another range of a deviation": (queries("stddev_over_time(x[1h])", statistic=DEVIATION), "RangeDiffersFromWindow"),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "reason"), CASES.values(), ids=CASES)
def test_what_works_against_each_other_is_named(spec, reason):
    stored = stored_spec("SchedulingProfile", {"schedulerName": "x"} | spec)
    condition = consistency_condition(ProfileSettings.from_raw(stored))
    assert (condition.type, condition.reason) == ("SettingsConsistent", reason)
    assert condition.status == ("True" if reason == "Consistent" else "False")


PROMETHEUS = {"type": "Prometheus", "prometheus": {"address": "http://p", "exporter": "NodeExporter"}}
STALENESS = {
    "the defaults": ({}, 30.0, "Consistent"),
    "no agent yet": ({"staleAfter": "1s"}, None, "Consistent"),
    "two heartbeats": ({"staleAfter": "1m"}, 30.0, "Consistent"),
    "less than two heartbeats": ({"staleAfter": "59s"}, 30.0, "StaleTooSoon"),
    "a node with the longest heartbeat": ({}, 300.0, "StaleTooSoon"),
    "two polls": (scores(TLP) | {"metricProvider": PROMETHEUS | {"interval": "150s"}}, 30.0, "Consistent"),
    "less than two polls": (scores(TLP) | {"metricProvider": PROMETHEUS | {"interval": "10m"}}, 30.0, "StaleTooSoon"),
}


@pytest.mark.parametrize(("spec", "heartbeat", "reason"), STALENESS.values(), ids=STALENESS)
def test_telemetry_that_is_too_old_before_the_next_report_is_named(spec, heartbeat, reason):
    settings = ProfileSettings.from_raw(stored_spec("SchedulingProfile", {"schedulerName": "x"} | spec))
    condition = consistency_condition(settings, None if heartbeat is None else Heartbeat("n1", heartbeat))
    assert condition.reason == reason
    if reason == "StaleTooSoon" and "metricProvider" not in spec:
        assert "node n1" in condition.message


def test_all_of_it_is_said():
    settings = ProfileSettings.from_raw({"schedulerName": "x"} | scores(TLP, LVRB, BALANCED))
    message = consistency_condition(settings).message
    assert message.startswith("TargetLoadPacking fills nodes that are in use, and LoadVariationRiskBalancing prefers")
    assert "NodeResourcesBalancedAllocation compares requests" in message


def test_an_invalid_spec_is_not_judged():
    assert consistency_condition(None).status == "Unknown"


@pytest.mark.parametrize("path", sorted((REPOSITORY / "manifests").rglob("*.yaml")), ids=lambda path: path.name)
def test_no_profile_that_we_ship_contradicts_itself(path):
    for obj in documents(path):
        if obj and obj.get("kind") == "SchedulingProfile" and "spec" in obj:
            condition = consistency_condition(ProfileSettings.from_raw(stored_spec("SchedulingProfile", obj["spec"])))
            assert condition.status == "True", condition.message
