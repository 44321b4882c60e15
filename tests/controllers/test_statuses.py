"""What the operator writes, without a server: statuses that fit the CRDs, and conditions that say what is so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from concerto.api.podreservation import Assignment, Reservation, build_placement_record
from concerto.capacity.subspace import Subspace
from concerto.controllers.capacity.cluster_model import build_cluster_status
from concerto.controllers.scheduling.binder import build_binding
from concerto.controllers.scheduling.event_notes import scheduled_note
from concerto.controllers.scheduling.load_providers.state import NOT_ASKED, ProviderState
from concerto.controllers.scheduling.outcome_counts import ProfileCounts
from concerto.controllers.scheduling.profiles import (
    ProfileState,
    build_profile_status,
    is_news,
    metrics_condition,
    ready_condition,
)
from concerto.controllers.scheduling.reservation_status import build_reservation_status
from concerto.scheduling.coverage import Coverage
from concerto.scheduling.cycle_result import Decision
from concerto.scheduling.evaluation import Ranked
from concerto.scheduling.plugins.registry import SCORES
from concerto.scheduling.state.reservation_ledger import ReservationState
from support.crd_schemas import problems
from support.scheduling_builders import pod

NOW = "2026-03-01T12:00:00Z"
META = {"name": "x", "namespace": "default", "uid": "u1", "generation": 2, "creationTimestamp": NOW}


def reservation(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodReservation",
        "metadata": META,
        "spec": {"podSelector": {"matchLabels": {"a": "b"}}, "count": 3} | spec,
    }


def by_type(status: dict[str, object]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


@pytest.mark.parametrize(
    ("sentence", "state", "limited", "phase", "ready"),
    [
        ("all units are held", ReservationState({"n1": 2, "n2": 1}, {}, 3, False), False, "Active", ("True", "Held")),
        ("some lack a node", ReservationState({"n1": 1}, {}, 3, False), False, "Pending", ("False", "NoCapacity")),
        ("the namespace has its fill", ReservationState({}, {}, 3, False), True, "Pending",
         ("False", "NamespaceLimit")),
        ("the rest is held", ReservationState({"n1": 1}, {"p": "n1", "q": "n1"}, 1, False), False, "Active",
         ("True", "Held")),
        ("all were used", ReservationState({}, {"p": "a", "q": "b", "r": "c"}, 0, False), False, "Consumed",
         ("True", "Consumed")),
        ("its time is over", ReservationState({}, {"p": "a"}, 0, True), False, "Expired", ("False", "Expired")),
    ],
)  # fmt: skip
def test_a_standing_reservation_says_how_it_stands(sentence, state, limited, phase, ready):
    obj = reservation(ttlSeconds=60)
    consumers = [
        {"namespace": "default", "name": uid, "uid": uid, "node": node} for uid, node in state.consumed.items()
    ]
    status = build_reservation_status(
        obj, Reservation.from_raw(obj), state, consumers=consumers, limited=limited, now=NOW
    )
    assert status["phase"] == phase, sentence
    assert by_type(status)["Ready"] == ready
    assert by_type(status)["Reconciling"][0] == ("True" if phase == "Pending" else "False")
    assert status["used"] == len(state.consumed)
    assert status["expiresAt"] == "2026-03-01T12:01:00Z"
    assert problems({**obj, "status": status}) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"nodeName": "n9"}, "0 of 3 units are held: there is no node n9 (spec.nodeName)."),
        ({"nodeSelector": {"pool": "x"}}, "0 of 3 units are held: no node has the labels of spec.nodeSelector."),
    ],
)
def test_a_reservation_on_nodes_that_are_not_there_says_so(asked, message):
    obj, state = reservation(**asked), ReservationState({}, {}, 3, False)
    view = Reservation.from_raw(obj)
    status = build_reservation_status(obj, view, state, consumers=[], limited=True, nowhere=True, now=NOW)
    assert status["phase"] == "Pending"
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "NodeNotFound"
    assert message in ready["message"]


def test_a_status_that_says_nothing_new_is_not_different():
    obj = reservation()
    view, state = Reservation.from_raw(obj), ReservationState({"n1": 3}, {}, 3, False)
    first = build_reservation_status(obj, view, state, consumers=[], limited=False, now=NOW)
    again = build_reservation_status(
        {**obj, "status": first}, view, state, consumers=[], limited=False, now="2026-03-01T12:05:00Z"
    )
    assert again == first


@pytest.mark.parametrize(
    ("sentence", "wrong", "winner", "expected"),
    [
        ("it is the only one", "", "mine", ("True", "InUse")),
        ("an older one has its name", "", "theirs", ("False", "DuplicateSchedulerName")),
        ("its spec is not usable", "spec can't be used: x", "", ("False", "InvalidSpec")),
    ],
)
def test_a_profile_says_whether_it_is_in_use(sentence, wrong, winner, expected):
    obj = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {k: v for k, v in META.items() if k != "namespace"},
        "spec": {"schedulerName": "concerto"},
    }
    counts = ProfileCounts(5, 2, 1).plus_abstentions("TargetLoadPacking", 3).plus_abstentions("TargetLoadPacking", 4)
    provider = ProviderState(NOT_ASKED, ("elsewhere",), 1, {"AboveOne": 2})
    state = ProfileState(counts, Coverage("Prometheus", 1, 1, 1, ("n3",)), provider)
    status = build_profile_status(obj, ready_condition(wrong, "mine", winner), state, NOW)
    assert by_type(status)["Ready"] == expected, sentence
    assert by_type(status)["Stalled"][0] == ("True" if expected[0] == "False" else "False")
    assert (status["decisions"], status["unschedulable"], status["fallbacks"]) == (5, 2, 1)
    assert status["abstentions"] == [{"plugin": "TargetLoadPacking", "count": 7}]
    assert by_type(status)["MetricsComplete"] == ("False", "SomeMissing")
    assert by_type(status)["ProviderReady"] == ("Unknown", "NotAsked")
    assert status["metrics"] == {
        "provider": "Prometheus",
        "fresh": 1,
        "stale": 1,
        "missing": 1,
        "missingNodes": ["n3"],
        "unmatched": ["elsewhere"],
        "unmatchedCount": 1,
        "rejected": [{"reason": "AboveOne", "count": 2}],
    }
    assert status["observedGeneration"] == 2
    assert problems({**obj, "status": status}) == []


@pytest.mark.parametrize(
    ("missing", "nodes", "expected"),
    [(0, 3, ("True", "Measured")), (1, 3, ("False", "SomeMissing")), (3, 3, ("False", "AllMissing"))],
)
def test_a_profile_says_of_how_many_nodes_it_has_no_metrics(missing, nodes, expected):
    condition = metrics_condition(Coverage(fresh=nodes - missing, missing=missing))
    assert (condition.status, condition.reason) == expected


def test_the_condition_names_the_scores_that_lack_metrics_and_their_rules():
    affected = (("TargetLoadPacking", "missingMetrics LeastScore", 2), ("Capacity", "metricsPolicy Avoid", 1))
    message = metrics_condition(Coverage("Prometheus", fresh=1, missing=2, affected=affected)).message
    assert message.startswith("Telemetry of 2 of 3 nodes is missing, unusable or older than spec.staleAfter. ")
    assert "TargetLoadPacking lacks that of 2 (missingMetrics LeastScore)" in message
    assert "Capacity lacks that of 1 (metricsPolicy Avoid)" in message
    assert "spec.metricsPolicy decides" in metrics_condition(Coverage(missing=1)).message


def test_a_score_that_its_provider_has_no_answer_for_has_a_condition_once_all_else_is_well():
    lacking = (("LoadVariationRiskBalancing", ("memory.standardDeviation",)),)
    condition = metrics_condition(Coverage("Prometheus", fresh=3, lacking=lacking))
    assert (condition.status, condition.reason) == ("False", "ScoresLackMetrics")
    assert "LoadVariationRiskBalancing lacks memory.standardDeviation" in condition.message
    assert metrics_condition(Coverage("Prometheus", missing=3, lacking=lacking)).reason == "AllMissing"


TOLD = ProfileState(ProfileCounts(5), Coverage(fresh=2, missing=1), ProviderState(NOT_ASKED))
NEWS = {
    "only counters have moved": (replace(TOLD, counts=ProfileCounts(9)), False),
    "a node has grown old, and is used still": (replace(TOLD, coverage=Coverage(fresh=1, stale=1, missing=1)), False),
    "one more node is missing": (replace(TOLD, coverage=Coverage(fresh=1, missing=2)), True),
    "another score lacks metrics of it": (
        replace(TOLD, coverage=Coverage(fresh=2, missing=1, affected=(("Capacity", "metricsPolicy Avoid", 1),))),
        True,
    ),
    "no node is missing any more": (replace(TOLD, coverage=Coverage(fresh=3)), True),
    "all are missing": (replace(TOLD, coverage=Coverage(missing=3)), True),
    "the provider is another way": (replace(TOLD, provider=ProviderState()), True),
}


@pytest.mark.parametrize(("state", "news"), NEWS.values(), ids=NEWS)
def test_what_changes_a_condition_is_not_kept_until_counters_are_reported(state, news):
    assert is_news(state, TOLD) is news


def test_the_cluster_model_is_written_as_the_agents_read_it():
    model = Subspace(np.array([[0.8, -0.6], [0.6, 0.8]]), np.array([0.5, 0.1]), 3)
    status = build_cluster_status(model, ("cpu", "memory"), observed_at=1.5, batches=7, generation=1, conditions=[])
    assert status["directions"] == [[0.8, 0.6], [-0.6, 0.8]]
    assert status["nodes"] == 3
    obj = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SubspaceSnapshot",
        "metadata": {"name": "cluster"},
        "spec": {},
    }
    assert problems({**obj, "status": status}) == []


ASSIGNMENT = Assignment("default", "p", "uid-1", "n1", "Capacity", "42", 3.25)


def test_a_batch_fits_its_schema_and_can_be_read_again():
    batch = build_placement_record("concerto-system", "cycle-a-000001", [ASSIGNMENT])
    assert problems(batch) == []
    assert Assignment.from_raw(batch["spec"]["assignments"][0]) == ASSIGNMENT


def test_a_binding_carries_the_uid_so_that_no_other_pod_of_that_name_can_be_bound():
    body = build_binding("default", "p", "uid-1", "n1")
    assert body["metadata"] == {"namespace": "default", "name": "p", "uid": "uid-1"}
    assert body["target"]["name"] == "n1"


def decision(assignment=ASSIGNMENT, **more):
    return Decision(pod("p"), assignment, 87.0, 3, **more)


def test_the_scheduled_event_begins_as_kube_schedulers_and_says_what_was_measured():
    assert scheduled_note(decision()) == (
        "Successfully assigned default/p to n1, which could take 3.2 more pods by its measured capacity"
    )


def test_the_scheduled_event_names_the_best_nodes_with_their_scores():
    top = (
        Ranked("n1", 87.0, (("Capacity", 100.0), ("TargetLoadPacking", 74.0))),
        Ranked("n2", 50.4, ()),
        Ranked("n3", 12.5, (("Capacity", 25.0), ("TargetLoadPacking", 0.0))),
    )
    assert scheduled_note(decision(top=top)).endswith(
        "measured capacity. Best nodes: n1 87 (Capacity 100, TargetLoadPacking 74); n2 50 (no score); "
        "n3 12 (Capacity 25, TargetLoadPacking 0)"
    )


def test_the_scheduled_event_says_when_requests_had_to_decide():
    note = scheduled_note(decision(replace(ASSIGNMENT, basis="Requests"), by_allocation=True))
    assert "by requests, because the node has no recent measurement; there were metrics of too few nodes" in note


def test_an_event_is_never_longer_than_the_api_server_takes():
    plugins = tuple((name, 100.0) for name in SCORES)
    top = tuple(Ranked("n" * 253, 100.0, plugins) for _ in range(3))
    note = scheduled_note(decision(top=top))
    assert 500 < len(note) <= 1024
