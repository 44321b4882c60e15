"""Waiting pods of very many kinds that one event may help: they are looked at again in parts."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from concerto.api.volumes import ClaimKey
from concerto.scheduling import queue_index
from concerto.scheduling.queue import Queue
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import pod
from support.step_counts import steps_of
from support.volume_builders import mounts

NOW = 1000.0
CLAIM = ClaimKey("default", "data")


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(queue_index, "MAX_ACTIVATED", 3)


def unlike(name, number, **over):
    """A pod that is like no other."""
    return pod(name, requests={"cpu": f"{number + 1}m"}, **over)


def parked(*pods, requeue_on=Change.CAPACITY):
    """A queue with pods for which no node was found."""
    made = Queue()
    for each in pods:
        made.set(each)
        made.mark_all([(each.uid, requeue_on, False)], NOW)
    return made


def names(queue):
    return [each.name for each in queue.heads(NOW)]


EVENTS = {
    "a change": lambda queue: queue.requeue(Change.CAPACITY),
    "a claim that changes": lambda queue: queue.requeue_users(CLAIM),
    "a profile that changes": lambda queue: queue.requeue_all(),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_an_event_takes_as_long_however_many_pods_it_may_help(event):
    def steps(count):
        queue = parked(
            *(unlike(f"p{i}", i, **mounts("data")) for i in range(count)), requeue_on=Change.CAPACITY | Change.VOLUMES
        )
        return steps_of(lambda: event(queue))

    assert steps(400) < 1.2 * steps(40)


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_each_cycle_begins_with_some_more_of_them_until_all_have_had_their_turn(event):
    queue = parked(
        *(unlike(f"p{i}", i, **mounts("data")) for i in range(8)), requeue_on=Change.CAPACITY | Change.VOLUMES
    )
    event(queue)
    looked_at = []
    while queue.next_ready() == -math.inf:
        found = names(queue)
        assert 0 < len(found) <= 3
        looked_at += found
        for name in found:
            queue.mark_all([(f"uid-{name}", Change.CAPACITY | Change.VOLUMES, False)], NOW)
    assert looked_at == [f"p{i}" for i in range(8)]
    assert queue.next_ready() == NOW + 30


def test_the_highest_priority_comes_first_and_namespaces_take_turns():
    crowd = [unlike(f"c{i}", i, namespace="crowd") for i in range(6)]
    quiet = [unlike(f"q{i}", i, namespace="quiet") for i in range(2)]
    queue = parked(*crowd, *quiet, unlike("vip", 0, namespace="crowd", priority=1))
    queue.requeue(Change.CAPACITY)
    assert names(queue) == ["vip", "c0", "q0"]


def test_those_that_wait_for_their_turn_count_among_those_that_wait():
    queue = parked(*(unlike(f"p{i}", i) for i in range(5)))
    queue.requeue(Change.CAPACITY)
    assert len(list(queue.parked(Change.CAPACITY))) == 5
    assert list(queue.parked(Change.NODE)) == []


def test_a_claim_that_changes_again_and_again_helps_all_its_users():
    queue = parked(*(unlike(f"p{i}", i, **mounts("data")) for i in range(7)), requeue_on=Change.VOLUMES)
    looked_at = set()
    for _ in range(3):
        queue.requeue_users(CLAIM)
        found = names(queue)
        looked_at |= {*found}
        for name in found:
            queue.mark_all([(f"uid-{name}", Change.VOLUMES, False)], NOW)
    assert looked_at == {f"p{i}" for i in range(7)}
    assert queue.next_ready() == -math.inf, "those that came first before the claim changed again are looked at again"
    assert names(queue) == ["p0", "p1", "p2"]


EVENT = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 9), st.sampled_from(("a", "b")), st.integers(0, 1)),
    st.tuples(st.just("mark"), st.integers(0, 9), st.sampled_from((Change.NODE, Change.CAPACITY, Change.VOLUMES))),
    st.tuples(st.just("consider"), st.integers(0, 9), st.sampled_from((Change.NODE, Change.CAPACITY))),
    st.tuples(st.just("requeue"), st.sampled_from((Change.NODE, Change.CAPACITY, Change.NODE | Change.VOLUMES))),
    st.tuples(st.just("claim")),
    st.tuples(st.just("all")),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("retry"), st.integers(0, 9)),
    st.tuples(st.just("cycle")),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(EVENT, max_size=60))
def test_in_parts_or_at_once_the_same_pods_are_active_in_the_end(events):
    """With one group a cycle, and with as many as there are."""
    queues = []
    for limit in (1, 1000):
        queue_index.MAX_ACTIVATED = limit
        queue = Queue()
        for what, *of in events:
            if what == "set":
                number, namespace, priority = of
                if f"uid-p{number}" not in queue:
                    queue.set(unlike(f"p{number}", number, namespace=namespace, priority=priority, **mounts("data")))
            elif what in ("mark", "consider"):
                queue.mark_all([(f"uid-p{of[0]}", of[1], what == "consider")], NOW)
            elif what == "requeue":
                queue.requeue(of[0])
            elif what == "claim":
                queue.requeue_users(ClaimKey("a", "data"))
            elif what == "all":
                queue.requeue_all()
            elif what == "remove":
                queue.remove(f"uid-p{of[0]}")
            elif what == "retry":
                queue.retry(f"uid-p{of[0]}", NOW)
            while what == "cycle" and queue.next_ready() == -math.inf:
                names(queue)
        while queue.next_ready() == -math.inf:
            names(queue)
        queues.append(queue)
    in_parts, at_once = queues
    assert {*names(in_parts)} >= {*names(at_once)}, "one that is marked before its turn comes is looked at once more"
    for i in range(10):
        in_parts.remove(f"uid-p{i}")
    names(in_parts)
    assert not any((in_parts._waiting, in_parts._groups, in_parts._unschedulable, in_parts._index))
