from dataclasses import replace

import pytest

from concerto.autoscaling.initialisation import Initialisation, InitialisationSettings
from support.pod_views import target_pod

SETTINGS = InitialisationSettings(default_seconds=60, remembered=5, trim=3, fresh=3)


def pods(*seconds, revision="a", first=0.0):
    return [
        target_pod(f"p{i}", started=None, created=first + 100 * i, ready_since=first + 100 * i + s, revision=revision)
        for i, s in enumerate(seconds)
    ]


def learned(*batches):
    known = Initialisation()
    for batch in batches:
        known = known.learn(batch, SETTINGS)
    return known


def test_before_the_first_pod_there_is_a_default():
    assert Initialisation().typical(SETTINGS) == 60


def test_an_outlier_does_not_count():
    assert learned(pods(30, 31, 29, 900, 30)).typical(SETTINGS) == 30


def test_only_the_latest_count():
    assert learned(pods(90, 90, 90, 90, 90), pods(10, 10, 10, 10, 10, first=1000)).typical(SETTINGS) == 10


def test_each_pod_counts_once():
    assert learned(pods(30, 30), pods(30, 30)).seconds == (30, 30)


WAITED = {
    "bound late": (target_pod("p", created=0, started=1501, scheduled_at=1500, ready_since=1520), 20.0),
    "without the condition, its kubelet's time counts": (
        target_pod("p", created=0, started=1501, ready_since=1520),
        19.0,
    ),
    "without either, its creation counts": (target_pod("p", created=0, started=None, ready_since=40), 40.0),
}


@pytest.mark.parametrize(("pod", "seconds"), WAITED.values(), ids=WAITED)
def test_waiting_for_a_node_is_not_start_up(pod, seconds):
    assert learned([pod]).seconds == (seconds,)


def test_pods_that_are_not_ready_do_not_count():
    waiting = [target_pod("p", ready="False", created=0, ready_since=50)]
    assert learned(waiting).seconds == ()


def test_a_new_revision_starts_afresh_but_the_old_one_stands_in_until_it_is_known():
    old = pods(30, 30, 30)
    known = learned(old, pods(80, 80, revision="b", first=1000))
    assert known.typical(SETTINGS) == 30
    known = known.learn(pods(80, revision="b", first=2000), SETTINGS)
    assert known.typical(SETTINGS) == 80
    assert known.revision == "b"


def test_pods_that_come_back_with_their_node_have_not_taken_days_to_start():
    back = [target_pod(f"q{i}", created=0.0, ready_since=30 * 86400.0 + i, revision="a") for i in range(5)]
    assert learned(pods(30, 30, 30, 30, 30), back).typical(SETTINGS) == 30
    assert Initialisation((1e9,) * 5).typical(SETTINGS) == SETTINGS.longest_seconds


def test_a_pod_that_was_seen_to_become_ready_before_does_not_count_again():
    again = [replace(pod, first_ready=pod.created + 30) for pod in pods(900, 900, 900)]
    assert learned(again).seconds == ()
    assert learned([replace(pod, first_ready=pod.ready_since) for pod in pods(31, 32)]).seconds == (31, 32)


def test_pods_that_take_twenty_minutes_are_learned():
    assert learned(pods(1200, 1210, 1190, 1200)).typical(SETTINGS) == pytest.approx(1200)


def bound(*waits, start=30.0, **fields):
    """Pods that waited so long for a node, and took ``start`` seconds from there."""
    return [
        target_pod(f"w{i}", created=100.0 * i, scheduled_at=100.0 * i + w, ready_since=100.0 * i + w + start, **fields)
        for i, w in enumerate(waits)
    ]


WAITS = {
    "nobody was seen": ([], 0.0),
    "all found room at once": (bound(0, 0, 1), 1 / 3),
    "most waited for a new node": (bound(90, 95, 0, 85), 90.0),
    "one of many waited": (bound(0, 0, 0, 0, 90), 0.0),
    "the cluster had no room": (bound(1500, 1500, 1500), 0.0),
    "when they were bound is not known": (pods(90, 90, 90), 0.0),
    "they had a scheduling gate": (bound(90, 90, 90, was_gated=True), 0.0),
}


@pytest.mark.parametrize(("seen", "seconds"), WAITS.values(), ids=WAITS)
def test_the_wait_for_a_node_is_learned_by_itself(seen, seconds):
    known = learned(seen)
    assert known.typical_wait(SETTINGS) == pytest.approx(seconds)
    assert known.ahead(SETTINGS) == pytest.approx(known.typical(SETTINGS) + seconds)


def test_a_new_revision_waits_for_nodes_as_the_one_before_did():
    known = learned(bound(90, 90, 90), pods(30, 30, 30, revision="b", first=1000))
    assert (known.revision, known.typical_wait(SETTINGS)) == ("b", 90.0)


def test_no_wait_is_looked_ahead_for_beyond_the_longest_start():
    assert Initialisation((3600.0,), waits=(500.0,)).ahead(SETTINGS) == SETTINGS.longest_seconds
