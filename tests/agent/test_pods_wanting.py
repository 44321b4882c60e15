"""How many pods want a CPU: those that compute, and those that wait for one altogether."""

from __future__ import annotations

import pytest

from concerto_agent.pod_reader import PodReading
from concerto_agent.pods_wanting import PodsWanting


def reading(cpu, some, full):
    """A pod that has used so much CPU time, with such pressure of its own, in seconds."""
    return PodReading(cpu, some, (some + full) / 2.0, held_up_seconds=full)


NOTHING = reading(0.0, 0.0, 0.0)

OVER_TEN_SECONDS = {
    "one that computes throughout": ([(10.0, 0.0, 0.0)], 1.0),
    "one that computes for half of the time": ([(5.0, 0.0, 0.0)], 0.5),
    "two that share a CPU": ([(5.0, 5.0, 5.0)] * 2, 2.0),
    "four that share a CPU": ([(2.5, 7.5, 7.5)] * 4, 4.0),
    "sixteen threads of one pod on one CPU": ([(10.0, 10.0, 0.0)], 1.0),
    "such a pod on four CPUs": ([(40.0, 10.0, 0.0)], 4.0),
    "none that does anything": ([(0.0, 0.0, 0.0)] * 3, 0.0),
    "no pod": ([], 0.0),
}


@pytest.mark.parametrize("sentence", OVER_TEN_SECONDS)
def test_pods_count_while_they_compute_or_none_of_their_tasks_that_wait_runs(sentence):
    pods, expected = OVER_TEN_SECONDS[sentence]
    wanting, since = PodsWanting(lambda uid: False), {str(i): 0.0 for i in range(len(pods))}
    assert wanting.read(dict.fromkeys(since, NOTHING), since, 5.0) is None, "since when, nobody knows"
    later = {str(i): reading(*pod) for i, pod in enumerate(pods)}
    assert wanting.read(later, since, 15.0) == pytest.approx(expected)
    assert wanting.read(later, since, 25.0) == 0.0, "and nothing has happened since"


def test_a_pod_that_came_and_went_between_two_reads_counts():
    wanting = PodsWanting(lambda uid: False)
    wanting.read({}, {}, 0.0)
    wanting.ended("gone", reading(1.0, 1.0, 1.0), 2.0)
    came = {"new": reading(3.0, 0.0, 0.0)}
    assert wanting.read(came, {"new": 4.0}, 10.0) == pytest.approx((2.0 + 3.0) / 10.0)
    wanting.ended("new", reading(4.0, 0.0, 0.0), 4.0)
    assert wanting.read({}, {}, 20.0) == pytest.approx(0.1)
    assert wanting.read({}, {}, 30.0) == 0.0


def test_what_a_pod_wanted_before_the_agent_began_does_not_count():
    wanting, old = PodsWanting(lambda uid: False), {"old": 1.0, "other": 1.0}
    wanting.read({}, old, 100.0)
    wanting.ended("other", reading(50.0, 0.0, 0.0), 1.0)
    assert wanting.read({"old": reading(90.0, 0.0, 0.0)}, old, 110.0) == 0.0


@pytest.mark.parametrize("unknown", [PodReading(5.0), PodReading(5.0, 1.0, 1.0)])
def test_without_pressure_of_every_pod_nothing_is_known(unknown):
    """Before Linux 5.13 there is no ``full`` for cpu: threads of one pod that wait for each other would count."""
    wanting, since = PodsWanting(lambda uid: False), {"a": 0.0, "b": 0.0}
    wanting.read({"a": NOTHING, "b": unknown}, since, 0.0)
    assert wanting.read({"a": reading(9.0, 0.0, 0.0), "b": unknown}, since, 10.0) is None
    assert wanting.read({"a": reading(9.0, 0.0, 0.0)}, since, 20.0) == 0.0, "once that one is gone, it is known"


def test_a_counter_that_goes_back_takes_nothing_off():
    wanting, since = PodsWanting(lambda uid: False), {"a": 0.0, "b": 0.0}
    wanting.read({"a": reading(5.0, 0.0, 0.0), "b": NOTHING}, since, 0.0)
    assert wanting.read({"a": NOTHING, "b": reading(4.0, 0.0, 0.0)}, since, 10.0) == pytest.approx(0.4)


def test_of_a_pod_with_a_cpu_limit_what_it_computes_counts():
    """Its pressure is that of its own quota, too: many such pods on idle CPUs do not wait for each other."""
    wanting, since = PodsWanting(lambda uid: uid.startswith("limited")), {"limited": 0.0, "other": 0.0}
    wanting.read(dict.fromkeys(since, NOTHING), since, 0.0)
    both = {uid: reading(2.0, 8.0, 8.0) for uid in since}
    assert wanting.read(both, since, 10.0) == pytest.approx(0.2 + 1.0)
    wanting.ended("limited", reading(4.0, 16.0, 16.0), 0.0)
    assert wanting.read({"other": both["other"]}, since, 20.0) == pytest.approx(0.2)


def test_what_a_limit_held_back_before_it_was_lifted_does_not_count_at_once():
    limited = {"a"}
    wanting, since = PodsWanting(limited.__contains__), {"a": 0.0}
    wanting.read({"a": NOTHING}, since, 0.0)
    wanting.read({"a": reading(0.0, 86400.0, 86400.0)}, since, 86400.0)
    limited.clear()
    later = {"a": reading(0.5, 86400.5, 86400.5)}
    assert wanting.read(later, since, 86401.0) == pytest.approx(1.0)


def test_a_pod_whose_container_is_started_again_at_once_counts_once():
    wanting = PodsWanting(lambda uid: False)
    wanting.read({}, {}, 0.0)
    wanting.ended("a", reading(1.0, 0.0, 0.0), 1.0)
    assert wanting.read({"a": reading(3.0, 0.0, 0.0)}, {"a": 1.0}, 10.0) == pytest.approx(0.3)
