"""What the leader reports of pods that no agent counts, and what it does about those that never start."""

from __future__ import annotations

import pytest

from concerto.api.podreservation import Assignment
from concerto.controllers.scheduling import housekeeping
from concerto.controllers.scheduling.housekeeping import Housekeeping, OverdueReports
from concerto.controllers.scheduling.placement_records import PlacementRecord
from support.faulty_server import faulty, refuses
from support.scheduler_builders import scheduling
from support.scheduling_builders import capacity, node, pod
from support.step_counts import steps_of

PODS_OF_EACH = 20


async def steps_to_report_overdue_pods(record_count: int) -> int:
    now = 1000.0
    async with faulty([refuses(404, "NotFound")]) as server:
        made = scheduling(server.session, lambda: now)
        ledger, records = made.parts.cluster.ledger, made.parts.records
        for number in range(record_count):
            assignments = tuple(
                Assignment("d", f"p{number}-{i}", f"uid-{number}-{i}", f"n{i}", "Capacity", "1", 9.0)
                for i in range(PODS_OF_EACH)
            )
            for assignment in assignments:
                ledger.assume(assignment, now)
            records.on_found(PlacementRecord(f"cycle-other-{number}", f"u{number}", "1", assignments))
        records.adopt_found()
        for number in range(record_count):
            for i in range(PODS_OF_EACH):
                ledger.confirm(f"uid-{number}-{i}")
        reports = OverdueReports(made.context, made.parts, {})
        now = 5000.0
        steps = steps_of(reports.report_overdue_pods)
        assert len(reports._reported_pods) == record_count * PODS_OF_EACH
        return steps


async def test_pods_that_become_overdue_together_are_looked_up_and_not_searched_for():
    # Of 30,000 pods, searching all records for each took 9 s of CPU, as long as a leader's right lasts
    few, many = await steps_to_report_overdue_pods(3), await steps_to_report_overdue_pods(30)
    assert many < 12 * few


def backs_off():
    container = {"name": "main", "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    return {"startTime": "1970-01-01T00:16:40Z", "containerStatuses": [container]}


async def test_what_a_pod_takes_that_never_starts_is_given_back_though_nothing_is_seen_of_it():
    now = 1000.0
    async with faulty([refuses(404, "NotFound")]) as server:
        made = scheduling(server.session, lambda: now)
        cluster = made.parts.cluster
        keeps = Housekeeping(made.context, made.parts, OverdueReports(made.context, made.parts, {}))
        cluster.set_node(node("n"))
        cluster.set_capacity(capacity("n", 1.0), now)
        cluster.set_pod(pod("bad", nodeName="n", status=backs_off()), now)
        row = cluster.row_of["n"]
        keeps.release_unstarted()
        assert cluster.measured.available[row] == 0.0
        now += 120.0
        keeps.release_unstarted()
        assert cluster.measured.available[row] == 1.0


async def test_of_very_many_pods_that_never_start_some_are_released_at_a_time(monkeypatch):
    monkeypatch.setattr(housekeeping, "MAX_RELEASED", 4)
    now = 1000.0
    async with faulty([refuses(404, "NotFound")]) as server:
        made = scheduling(server.session, lambda: now)
        cluster = made.parts.cluster
        keeps = Housekeeping(made.context, made.parts, OverdueReports(made.context, made.parts, {}))
        cluster.set_node(node("n"))
        cluster.set_capacity(capacity("n", 10.0), now)
        for i in range(10):
            cluster.set_pod(pod(f"bad{i}", nodeName="n", status=backs_off()), now)
        now += 120.0
        left = []
        while keeps.release_unstarted():
            left.append(cluster.measured.available[cluster.row_of["n"]])
        assert left == [4.0, 8.0]
        assert cluster.measured.available[cluster.row_of["n"]] == 10.0


NO_AGENT = {"kubernetes.io/os": "windows"}
FLEETS = {
    "all report": (["a", "b"], {}, 0),
    "one has never reported": (["a"], {}, 1),
    "nobody has an agent": ([], {}, 0),
    "one that is not Ready": (["a"], {"ready": False}, 0),
    "one that can have none": (["a"], {"labels": NO_AGENT}, 0),
}


@pytest.mark.parametrize(("reported", "other", "count"), FLEETS.values(), ids=FLEETS)
async def test_nodes_whose_agent_has_never_reported_are_counted_where_others_do(reported, other, count):
    now = 1000.0
    async with faulty([refuses(404, "NotFound")]) as server:
        made = scheduling(server.session, lambda: now)
        cluster, reports = made.parts.cluster, OverdueReports(made.context, made.parts, {})
        cluster.set_node(node("a"))
        cluster.set_node(node("b", **other))
        for name in reported:
            cluster.set_capacity(capacity(name, 10.0, at=now), now)
        reports.report_missing_agents()
        assert f"concerto_nodes_without_agent {count}.0" in made.context.metrics.render().decode()


async def test_of_very_many_reports_some_are_made_at_a_time(monkeypatch):
    monkeypatch.setattr(housekeeping, "MAX_REPORTED", 2)
    now = 1000.0
    async with faulty([refuses(404, "NotFound")]) as server:
        made = scheduling(server.session, lambda: now)
        cluster, recorded = made.parts.cluster, []
        monkeypatch.setattr(made.context.recorder, "record", lambda subject, **event: recorded.append(subject))
        for i in range(5):
            cluster.set_node(node(f"n{i}"))
            cluster.set_capacity(capacity(f"n{i}", 10.0, at=now), now)
        now += 1e6
        reports = OverdueReports(made.context, made.parts, {})
        for reported in (2, 4, 5, 5):
            reports.report_stale_agents()
            assert len(recorded) == reported
