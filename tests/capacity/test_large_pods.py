"""Large pods: what makes a pod large."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.capacity.large_pods import LargePods


class Node:
    """A node that is looked at once a second; `rates` are shares of its CPUs by pod."""

    def __init__(self) -> None:
        self.pods = LargePods(1)
        self.used: dict[str, float] = {}
        self.now = 0.0

    def run(self, seconds: int, rates: dict[str, float], load: float = 1.0, *, unread: tuple[str, ...] = ()) -> Node:
        for _ in range(seconds):
            self.now += 1.0
            for uid, rate in rates.items():
                self.used[uid] = self.used.get(uid, 0.0) + rate
            seen = {uid: self.used[uid] for uid in rates if uid not in unread}
            self.pods.saw(0, seen, sum(rates.values()), load, self.now)
        return self

    def end(self, *uids: str) -> Node:
        for uid in uids:
            self.pods.ended(0, uid)
        return self

    @property
    def large(self) -> set[str]:
        return set(self.pods.of(0))


def seen_off(small: float = 0.2, seconds: int = 5) -> Node:
    """A node on which three pods have run for a while and ended."""
    rates = dict.fromkeys(("a", "b", "c"), small)
    return Node().run(seconds, rates).end(*rates).run(1, {})


def test_a_pod_with_a_multiple_of_the_others_time_that_takes_half_the_node_is_large():
    node = seen_off().run(2, {"big": 0.8, "d": 0.2})
    assert node.large == set(), "1.6 seconds are not 2.5 times the mean of 1"
    assert node.run(3, {"big": 0.8, "d": 0.2}).large == {"big"}
    assert node.pods.count[0] == 1
    assert node.pods.share[0] == pytest.approx(0.8, abs=0.1)


def test_what_it_wants_is_more_than_what_it_gets_on_a_node_that_is_contended():
    node = seen_off().run(8, {"big": 0.4, "d": 0.3, "e": 0.3}, load=2.0)
    assert node.large == {"big"}
    assert node.pods.wanted[0] == pytest.approx(0.8, abs=0.05)


def test_where_all_pods_are_alike_none_is_large_however_large_they_are():
    node = Node()
    for i in range(10):
        node.run(10, {f"p{i}": 0.9, f"q{i}": 0.1}).end(f"p{i}")
    assert node.large == set()


def test_a_pod_that_stays_for_long_and_takes_little_is_not():
    assert seen_off().run(200, {"service": 0.1, "d": 0.2}).large == set()


def test_before_a_pod_has_ended_none_is():
    assert Node().run(50, {"big": 0.9, "d": 0.05}).large == set()


def test_what_pods_took_since_they_were_last_looked_at_is_theirs():
    node = Node()
    for i in range(20):  # each is there for less than a second: it is looked at before it begins to compute
        uid = f"p{i}"
        node.now += 1.0
        node.pods.saw(0, {uid: 0.0}, 0.5, 1.0, node.now)
        node.end(uid)
    # Pods of half a second are the rule here, so that one of a second is not large
    assert node.run(2, {"d": 0.6}).large == set()
    assert node.run(2, {"d": 0.6}).large == {"d"}


def test_the_end_of_a_large_pod_says_nothing_about_the_others():
    node = seen_off().run(20, {"big": 0.8, "d": 0.1})
    assert node.end("big").run(1, {"d": 0.1}).large == set()
    assert node.run(4, {"next": 0.8}).large == {"next"}


def test_a_pod_that_can_not_be_read_is_an_ordinary_one():
    node = seen_off().run(10, {"big": 0.8, "d": 0.1}, unread=("big",))
    assert node.large == set()
    assert node.run(4, {"big": 0.8, "d": 0.1}).large == {"big"}


def test_one_that_stays_for_good_leaves_half_of_the_node_to_others():
    node = seen_off().run(10, {"big": 1.0})
    assert (node.pods.wanted[0], node.pods.passing[0]) == (pytest.approx(1.0, abs=0.05), True)
    node.run(60, {"big": 1.0})
    assert (node.pods.wanted[0], node.pods.passing[0]) == (0.5, False)


def test_one_that_was_busy_when_it_began_is_large_only_while_it_is_busy():
    node = seen_off().run(10, {"service": 0.9, "d": 0.1})
    assert node.large == {"service"}
    assert node.run(5, {"service": 0.01, "d": 0.1}).large == {"service"}, "it may be waiting for its input"
    assert node.run(40, {"service": 0.01, "d": 0.1}).large == set()


def test_the_end_of_a_large_pod_is_seen_without_a_reading():
    node = seen_off().run(10, {"big": 0.8})
    node.end("big")
    assert (node.pods.count[0], node.pods.share[0], node.pods.wanted[0], node.pods.passing[0]) == (0, 0, 0, False)


def test_pods_found_at_the_start_with_hours_of_time_are_large_only_if_they_are_busy_now():
    node = Node()
    node.used = {"old": 7200.0, "older": 9000.0}
    node.run(5, {"old": 0.01, "older": 0.6, "a": 0.2}).end("a").run(5, {"old": 0.01, "older": 0.6})
    assert node.large == {"older"}


@given(st.data())
def test_whatever_is_reported_shares_are_shares(data):
    pods, now = LargePods(1), 0.0
    for _ in range(data.draw(st.integers(1, 8))):
        now += data.draw(st.sampled_from([0.0, 0.3, 1.0, 100.0]))
        used = data.draw(st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 1e6)))
        for uid in data.draw(st.sets(st.sampled_from("abc"))):
            pods.ended(0, uid)
        pods.saw(0, used, data.draw(st.floats(0.0, 1e6)), data.draw(st.floats(0.0, 2.0)), now)
        assert pods.of(0).keys() <= used.keys()
        assert pods.count[0] == len(pods.of(0))
        for array in (pods.share, pods.wanted):
            assert np.isfinite(array).all() and 0.0 <= array[0] <= 1.0
