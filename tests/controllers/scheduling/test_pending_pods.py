"""Pods that wait for a node, while profiles come and go."""

from __future__ import annotations

import asyncio

from concerto.controllers.scheduling.pending import MAX_ENQUEUED, PendingPods
from concerto.controllers.scheduling.unschedulable import UnschedulableReporter
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import pod, profile


def pending_of(profiles, pods):
    def clock():
        return 1000.0

    reporter = UnschedulableReporter(None, None, clock)  # type: ignore[arg-type]  # nothing is written
    made = PendingPods(ClusterState(), profiles, reporter, clock)
    for each in pods:
        made.add_pod(each)
    return made


def test_a_profile_that_comes_or_goes_moves_a_bounded_number_of_pods_with_each_cycle():
    profiles = {}
    made = pending_of(profiles, [pod(f"p{i}") for i in range(MAX_ENQUEUED + 2)])
    profiles["concerto"] = profile()
    made.on_profile("concerto")
    made.remove_pod("uid-p0")
    lengths = []
    for _ in range(3):
        made.apply_profiles()
        lengths.append(len(made.queue))
    assert lengths == [MAX_ENQUEUED, MAX_ENQUEUED + 1, MAX_ENQUEUED + 1]
    del profiles["concerto"]
    made.on_profile("concerto")
    for _ in range(2):
        made.apply_profiles()
    assert len(made.queue) == 0


async def test_pods_that_have_not_joined_the_queue_yet_are_work():
    profiles = {}
    made = pending_of(profiles, [pod(f"p{i}") for i in range(MAX_ENQUEUED + 1)])
    profiles["concerto"] = profile()
    made.on_profile("concerto")
    made.apply_profiles()
    made.work.clear()
    async with asyncio.timeout(5):
        await made.wait_for_work(1000.0)
    made.apply_profiles()
    assert len(made.queue) == MAX_ENQUEUED + 1


def test_a_profile_that_is_edited_leaves_the_pods_where_they_are():
    profiles = {"concerto": profile()}
    made = pending_of(profiles, [pod("p")])
    made.on_profile("concerto")
    made.remove_pod("uid-p")
    made.apply_profiles()
    assert len(made.queue) == 0


def test_a_pod_whose_binding_fails_after_its_profile_has_gone_does_not_join_the_queue():
    profiles = {"concerto": profile()}
    made = pending_of(profiles, [pod("p")])
    made.queue.take("uid-p")
    del profiles["concerto"]
    made.on_profile("concerto")
    made.apply_profiles()
    made.retry("uid-p")
    assert len(made.queue) == 0, "each cycle would find it among the heads, and decide nothing"
    profiles["concerto"] = profile()
    made.on_profile("concerto")
    made.apply_profiles()
    assert "uid-p" in made.queue
