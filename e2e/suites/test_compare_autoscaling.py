"""`make compare-autoscaling`, without a node: the load's rate, and the figures of what was answered."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from e2e.compare.autoscalers import Service, Turn, autoscaler, service, work
from e2e.compare.paced_load import Addresses, parse_phases, rate_at
from e2e.compare.scaled_runs import HPA, OURS, ScaledRun, requests_of, table, unloaded_p95
from e2e.testbed.phpa_helpers import Object

RATES = {0.0: 1.0, 9.9: 1.0, 15.0: 8.5, 20.0: 16.0, 24.9: 16.0, 25.0: 0.1, 1000.0: 0.1}


@pytest.mark.parametrize(("seconds", "want"), RATES.items())
def test_the_rate_follows_the_phases_and_stays_as_the_last_one_ends(seconds: float, want: float) -> None:
    phases = parse_phases("10:1:1,10:1:16,5:16:16,0.5:0:0")
    assert rate_at(phases, seconds) == pytest.approx(want)


def test_the_phases_of_a_turn_can_be_handed_over_as_text() -> None:
    phases = Turn().phases(300.0)
    assert parse_phases(",".join(map(str, phases))) == phases
    assert [rate_at(phases, at) for at in (299.0, 300.0 + Turn().rise)] == [1.0, 16.0]


def test_addresses_are_read_again_when_they_change(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    path.write_text("")
    addresses = Addresses(path)
    assert addresses() is None
    path.write_text("10.0.0.1\n")
    path.touch()
    assert addresses() == "10.0.0.1"


def test_the_load_gets_the_pods_that_are_ready_and_stay(tmp_path: Path) -> None:
    def pod(name: str, ready: str, app: str = "hpa", **meta: str) -> Object:
        conditions = [{"type": "Ready", "status": ready}]
        labelled = {"name": name, "labels": {"app": app}, **meta}
        return {"kind": "Pod", "metadata": labelled, "status": {"podIP": name, "conditions": conditions}}

    twin = Service("hpa", tmp_path / "addresses", [])
    found = {"kind": "Deployment", "metadata": {"name": "hpa"}, "spec": {"replicas": 3}}
    gone = pod("c", "True", deletionTimestamp="2026-03-01T12:00:00Z")
    twin.note([found, pod("b", "True"), pod("a", "False"), gone, pod("d", "True", app="phpa")])
    assert (twin.addresses.read_text(), twin.seen[0][1:]) == ("b", (3, 1))


def a_run(name: str, requests: list[tuple[float, float]]) -> ScaledRun:
    return ScaledRun(name, 1, 30.0, 60.0, requests, [(0.0, 1, 1), (30.0, 3, 1), (45.0, 3, 3)])


def test_requests_without_an_answer_count_as_slower_than_all_others() -> None:
    run = a_run(HPA, [(float(at), 100.0) for at in range(9)] + [(9.0, -1.0)])
    assert (run.success_percent, run.percentile(0.5)) == (90.0, 100.0)
    assert math.isinf(run.percentile(0.95))


def test_pods_cost_from_when_they_are_asked_for() -> None:
    run = a_run(HPA, [(0.0, 1.0)])
    assert (run.pod_minutes, run.rescales) == (0.5 + 1.5, 1)


def test_requests_of_a_turn_are_those_that_were_due_in_it() -> None:
    lines = ["", "99.9 5.0", "100.0 7.5", "101.5 -", "110.0 5.0"]
    assert requests_of(lines, 100.0, 110.0) == [(0.0, 7.5), (1.5, -1.0)]


def test_time_is_slow_where_the_p95_is_over_three_unloaded_ones_of_either_run() -> None:
    calm = a_run(OURS, [(at + 0.5, 100.0) for at in range(60)])
    slow = a_run(HPA, [(at + 0.5, 400.0 if at < 30 else 250.0) for at in range(60)])
    assert unloaded_p95([calm, slow]) == 100.0
    rows = [line.split(" | ") for line in table([slow, calm])[2:]]
    assert [(row[0], row[6]) for row in rows] == [("| HPA v2", "30"), ("| PredictiveHPA", "0")]


def test_the_fastest_answer_stands_in_where_each_quarter_of_a_minute_has_requests_without_one() -> None:
    unanswered = [(at + 0.5, -1.0) for at in range(60)]
    assert unloaded_p95([a_run(HPA, [(1.0, 80.0), *unanswered])]) == 80.0
    assert math.isinf(unloaded_p95([a_run(HPA, unanswered)]))
    assert table([a_run(HPA, unanswered)])[-1].split(" | ")[4:6] == ["no answer", "no answer"]


def test_both_twins_have_the_same_spec() -> None:
    ours, theirs = autoscaler("phpa")["spec"], autoscaler("hpa")["spec"]
    assert {**ours, "scaleTargetRef": None} == {**theirs, "scaleTargetRef": None}
    ready = service("hpa", 30, work(1e6))["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    assert ready["initialDelaySeconds"] == 30
