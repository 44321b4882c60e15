"""Kinds with pods on nodes have the costs that they would have if each was looked at by itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.pod_kind import Kind, kind_of
from concerto.capacity.kinds.cost import UNKNOWN, estimate
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.scheduling.state import placed_kinds
from concerto.scheduling.state.placed_kinds import PlacedKinds
from support.step_counts import steps_of

KINDS = [
    kind_of(namespace, workload_kind, workload, (("main", image),))
    for namespace, workload_kind, workload, image in (
        ("a", "Job", "one", "x"), ("a", "Job", "two", "x"), ("b", "Job", "one", "x"), ("a", "Job", "one", "y"),
        ("a", "Deployment", "web", "x"), ("a", "Deployment", "web", "y"), ("b", "Deployment", "api", "y"),
    )
]  # fmt: skip
measurements = st.builds(
    PodMeasurement,
    st.sampled_from([0.5, 4.0]),
    st.sampled_from([2.0, 90.0]),
    st.just(100.0),
    st.sampled_from([1e6, 5e6]),
    st.booleans(),
    st.sampled_from([0.0, 0.7]),
)
known_of = st.lists(st.tuples(st.sampled_from(KINDS), measurements, st.booleans()), max_size=5)
events = st.lists(
    st.tuples(st.just("add"), st.sampled_from(KINDS), st.integers(0, 2))
    | st.tuples(st.just("remove"), st.sampled_from(KINDS), st.integers(0, 2))
    | st.tuples(st.just("learn"), known_of, st.none()),
    max_size=25,
)


def table(known: list[tuple[Kind, PodMeasurement, bool]]) -> dict[str, KindSums]:
    """What is known of pods; of some, nothing is known but what all pods with their images cost."""
    found: dict[str, KindSums] = {}
    for kind, pod, of_images_alone in known:
        sums = KindSums.of_ended(pod) if pod.ended else KindSums.of_running(pod)
        for key in kind.keys[2:] if of_images_alone else kind.keys:
            found[key] = found.get(key, KindSums()).plus(sums)
    return found


@pytest.mark.parametrize("at_a_time", [1, 1000])
@settings(max_examples=150, deadline=None)
@given(events)
def test_each_kind_costs_what_is_known_of_it_however_that_has_come(at_a_time, taken):
    kinds, pods = PlacedKinds(), Counter()
    before, placed_kinds.MAX_CHANGED = placed_kinds.MAX_CHANGED, at_a_time
    try:
        shares = Counter()  # by row, as who is told of the changes adds them up
        for what, first, row in taken:
            if what == "add":
                pods[first, row] += 1
                shares[row] += kinds.add_pod(first, row).cost.share
            elif what == "remove":
                cost = kinds.remove_pod(first, row)
                assert (cost is not None) == bool(pods[first, row])
                if cost is not None:
                    pods[first, row] -= 1
                    shares[row] -= cost.share
            else:
                _, changes = kinds.set_table(table(first))
                while changes or kinds.are_behind:
                    for change in changes:
                        for at, number in change.pods.items():
                            shares[at] += number * (change.after.share - change.before.share)
                    changes = kinds.catch_up()
            there = {kind for (kind, _), number in pods.items() if number}
            assert {known.kind for known in kinds} == there
            assert all(known.cost == estimate(kinds.table, known.kind) for known in kinds)
            for at in range(3):
                expected = sum(
                    number * estimate(kinds.table, kind).share for (kind, on), number in pods.items() if on == at
                )
                assert shares[at] == pytest.approx(expected)
        for (kind, row), number in pods.items():
            for _ in range(number):
                kinds.remove_pod(kind, row)
        assert not (len(kinds) or kinds._alike or kinds._of_workload or kinds._known or kinds.are_behind)
    finally:
        placed_kinds.MAX_CHANGED = before


def job(number: int) -> Kind:
    return kind_of("a", "Job", f"job-{number}", (("main", "x"),))


def test_what_is_learned_of_images_is_no_more_work_for_more_jobs_of_one_pod():
    def steps(jobs: int) -> int:
        kinds = PlacedKinds()
        for number in range(jobs):
            kinds.add_pod(job(number), 0)
        first, second = (PodMeasurement(work, 4.0, 4.0, 1e6, True) for work in (1.0, 2.0))
        kinds.set_table(table([(job(-1), first, False)]))
        return steps_of(lambda: kinds.set_table(table([(job(-1), second, False)])))

    assert steps(100) < 1.2 * steps(10)


def test_a_job_costs_what_its_own_pods_cost_once_one_has_ended():
    kinds, runs = PlacedKinds(), PodMeasurement(1.0, 9.0, 9.0, 1e6, False, 0.5)
    costs = [kinds.add_pod(job(number), 0) for number in range(3)]
    assert {each.cost for each in costs} == {UNKNOWN}
    kinds.set_table(table([(job(0), runs, False)]))
    assert costs[0].cost == costs[1].cost != UNKNOWN
    ended = [(job(number), PodMeasurement(work, 9.0, 9.0, 1e6, True), False) for number, work in ((1, 8.0), (-1, 2.0))]
    kinds.set_table(table([(job(0), runs, False), *ended]))
    assert costs[0].cost == costs[2].cost != costs[1].cost


def test_where_each_of_very_many_kinds_costs_what_its_own_pods_cost_they_change_in_parts(monkeypatch):
    kinds, looked_at = PlacedKinds(), Counter()

    def counted(known, kind):
        looked_at["now"] += 1
        return estimate(known, kind)

    costs = [kinds.add_pod(job(number), 0) for number in range(40)]
    monkeypatch.setattr(placed_kinds, "MAX_CHANGED", 10)
    monkeypatch.setattr(placed_kinds, "estimate", counted)
    learned = table([(job(number), PodMeasurement(1.0 + number, 90.0, 90.0, 1e6, True), False) for number in range(40)])
    kinds.set_table(learned)
    assert looked_at["now"] <= 10
    parts = 1
    while kinds.are_behind:
        looked_at.clear()
        kinds.catch_up()
        assert looked_at["now"] <= 10
        parts += 1
    assert parts == 4
    assert all(each.cost == estimate(learned, each.kind) for each in costs)


def test_a_pod_comes_and_goes_in_the_same_time_however_many_images_the_pods_of_its_workload_have() -> None:
    """Pods without an owner that have names with numbers are of one workload, and each may have an image of its own."""

    def steps(number: int) -> int:
        kinds, made = PlacedKinds(), [kind_of("a", "Pod", "p", (("main", f"image-{n}"),)) for n in range(number)]
        for kind in made:
            kinds.add_pod(kind, 0)
        return steps_of(lambda: kinds.remove_pod(made[0], 0))

    assert steps(500) == steps(5)
