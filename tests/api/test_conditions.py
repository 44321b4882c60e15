import pytest

from concerto.api.conditions import (
    NOT_RECONCILING,
    NOT_STALLED,
    Condition,
    find_condition,
    merge_conditions,
    with_progress,
)

READY = Condition("Ready", "True", "Measured", "All is well.")
BEFORE = {
    "type": "Ready",
    "status": "True",
    "reason": "Warmup",
    "message": "Soon.",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}
LATER = "2026-03-01T13:00:00Z"


def test_the_transition_time_stays_while_the_status_does():
    (merged,) = merge_conditions([BEFORE], [READY], now=LATER, observed_generation=2)
    assert merged == {**BEFORE, "reason": "Measured", "message": "All is well.", "observedGeneration": 2}


def test_the_transition_time_moves_with_the_status():
    (merged,) = merge_conditions([{**BEFORE, "status": "False"}], [READY], now=LATER, observed_generation=2)
    assert merged["lastTransitionTime"] == LATER


def test_a_condition_that_nothing_is_said_about_stays_as_it_is():
    stalled = {**BEFORE, "type": "Stalled"}
    merged = merge_conditions([stalled], [READY], now=LATER, observed_generation=2)
    assert [c["type"] for c in merged] == ["Stalled", "Ready"]
    assert merged[0] == stalled


def test_the_old_list_is_not_touched():
    old = [dict(BEFORE)]
    merge_conditions(old, [READY], now=LATER, observed_generation=2)
    assert old == [BEFORE]


def test_a_condition_is_found_by_its_type():
    assert find_condition([BEFORE], "Ready") is BEFORE
    assert find_condition([BEFORE], "Stalled") is None
    assert find_condition(None, "Ready") is None


@pytest.mark.parametrize(
    ("status", "reconciling", "expected"),
    [
        ("True", "", {"Reconciling": ("False", NOT_RECONCILING), "Stalled": ("False", NOT_STALLED)}),
        ("False", "", {"Reconciling": ("False", NOT_RECONCILING), "Stalled": ("True", "Why.")}),
        ("False", "Looking.", {"Reconciling": ("True", "Looking."), "Stalled": ("False", NOT_STALLED)}),
    ],
    ids=["ready", "not ready, and nothing is done about it", "not ready yet"],
)
def test_an_object_that_is_not_ready_is_reconciled_or_stalled(status, reconciling, expected):
    ready, *progress = with_progress(Condition("Ready", status, "Reason", "Why."), reconciling)
    assert ready.message == "Why."
    assert {each.reason for each in progress} == {"Reason"}
    assert {each.type: (each.status, each.message) for each in progress} == expected


def test_an_object_whose_time_is_over_is_not_stalled():
    _, reconciling, stalled = with_progress(Condition("Ready", "False", "Expired", "Over."), has_ended=True)
    assert (reconciling.status, stalled.status) == ("False", "False")
