"""Pods on rows: an index that can't take a pod leaves the others as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concerto.scheduling.state.placed_pods import PlacedPods
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.volume_reservations import VolumeReservations
from support.scheduling_builders import pod


class Names(PodIndex):
    """Takes pods of every name but one."""

    def __init__(self, refuses: str = "") -> None:
        self.on: set[str] = set()
        self._refuses = refuses

    def pod_added(self, pod, row):
        if pod.name == self._refuses:
            raise ValueError(pod.name)
        self.on.add(pod.name)

    def pod_updated(self, before, after, row):
        if after.name == self._refuses:
            raise ValueError(after.name)
        self.on.remove(before.name)
        self.on.add(after.name)

    def pod_removed(self, pod, row):
        self.on.remove(pod.name)


@pytest.fixture
def indexes():
    return [Names(), Names("bad"), Names()]


def test_a_pod_that_an_index_can_not_take_is_in_none(indexes):
    placed = PlacedPods(indexes, VolumeReservations())
    with pytest.raises(ValueError):
        placed.add(pod("bad"), 0, bound=True)
    assert "uid-bad" not in placed
    assert [index.on for index in indexes] == [set(), set(), set()]


def test_a_change_that_an_index_can_not_take_is_in_none(indexes):
    placed = PlacedPods(indexes, VolumeReservations())
    placed.add(known := pod("good"), 0, bound=True)
    with pytest.raises(ValueError):
        placed.update(replace(known, name="bad"))
    assert placed.get(known.uid).pod == known
    assert [index.on for index in indexes] == [{"good"}] * 3
    placed.remove(known.uid)
    assert [index.on for index in indexes] == [set()] * 3
