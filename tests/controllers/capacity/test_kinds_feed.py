"""Costs of kinds reach the scheduler as agents publish them."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from concerto.capacity.kinds.cluster_kinds import KEYS_A_TURN
from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds, to_entries
from concerto.controllers.capacity import kinds_feed
from concerto.controllers.capacity.kinds_feed import KindsFeed
from support.scheduling_builders import cluster_state, node, pod


def snapshot(name, *pods, of):
    kinds = NodeKinds()
    for measured in pods:
        kinds.pod_ended(of.kind, measured, 0.0)
    entries = to_entries(kinds.table((), 0.0))
    return {
        "metadata": {"name": name, "resourceVersion": "1"},
        "status": {
            "observedAt": "2026-03-01T12:00:00Z",
            "resources": ["cpu", "memory"],
            "sigma": [0.5, 0.1],
            "directions": [[1.0, 0.0], [0.0, 1.0]],
            "batches": 1,
            "kinds": [{"key": key, "sums": list(sums)} for key, sums in entries],
        },
    }


def fed(places_by_kind=True):
    cluster = cluster_state([node("n1")])
    changes = []
    return cluster, KindsFeed(cluster, changes.append, places_by_kind=places_by_kind), changes


def at_once():
    """All Nodes are known."""
    event = asyncio.Event()
    event.set()
    return event


async def turn_of_the_loop():
    """Let every task run until it waits for something."""
    for _ in range(4):
        await asyncio.sleep(0)


def test_what_agents_measured_is_what_pods_cost_from_then_on():
    cluster, feed, changes = fed()
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.update()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5
    assert len(changes) == 1
    feed.update()
    assert len(changes) == 1


async def test_what_arrives_is_handed_over_at_once_and_not_with_the_next_look(monkeypatch):
    monkeypatch.setattr(kinds_feed, "INTERVAL_SECONDS", 1000.0)
    cluster, feed, _ = fed()
    task = asyncio.create_task(feed.run(at_once()))
    await turn_of_the_loop()
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    await turn_of_the_loop()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(8.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    await turn_of_the_loop()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5, "one that follows at once waits, as looks cost time"
    task.cancel()


def test_while_nothing_is_measured_pods_are_counted_as_units():
    cluster, feed, changes = fed()
    feed.on_snapshot(None, snapshot("n1", of=pod("a")))
    feed.update()
    assert not cluster.kinds
    assert not changes


def test_an_operator_that_counts_pods_keeps_the_costs_for_the_clusters_model_alone():
    cluster, feed, changes = fed(places_by_kind=False)
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.update()
    assert feed.kinds.table()
    assert not cluster.kinds
    assert not changes


def test_an_odd_table_neither_ends_nor_spoils_the_feed():
    cluster, feed, _ = fed()
    odd = snapshot("n2", of=pod("a"))
    odd["status"]["kinds"] = [
        {"key": "x", "sums": ["?"]},
        {"key": "y", "sums": [1.0] * 99},
        {"key": "z", "sums": [1e300]},
    ]
    feed.on_snapshot(None, odd)
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.update()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5


def test_a_process_that_begins_knows_costs_before_it_decides():
    cluster, feed, _ = fed()
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.load()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5


def test_the_clusters_table_stands_for_those_of_many_nodes_until_they_have_been_read():
    cluster, feed, _ = fed()
    feed.on_snapshot(None, snapshot("cluster", PodMeasurement(1.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    for i in range(300):
        feed.on_snapshot(None, snapshot(f"n{i}", of=pod("a")))
    feed.on_snapshot(None, snapshot("z", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.load()
    assert cluster.kinds.cost_of(pod("b")).share == 0.25
    for _ in range(31):  # 10 nodes each
        feed.update()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5


async def test_all_that_an_earlier_process_has_merged_is_handed_over_though_nothing_arrives_any_more():
    """As where the nodes that measured it have gone: the first 200 kinds were, and no other before an agent's word."""
    _, feed, _ = fed()
    merged = snapshot("cluster", PodMeasurement(1.0, 4.0, 9.0, 1e6, True), of=pod("a"))
    sums = merged["status"]["kinds"][0]["sums"]
    merged["status"]["kinds"] = [{"key": f"default/Job/j{number}@a", "sums": sums} for number in range(KEYS_A_TURN + 9)]
    feed.on_snapshot(None, merged)
    task = asyncio.create_task(feed.run(at_once()))
    await turn_of_the_loop()
    feed.load()
    await turn_of_the_loop()
    assert not feed.kinds.has_changes
    assert len(feed.kinds.table()) == KEYS_A_TURN + 9
    task.cancel()


def test_an_odd_table_of_the_cluster_is_left_out():
    cluster, feed, _ = fed()
    odd = snapshot("cluster", of=pod("a"))
    odd["status"]["sigma"] = "x"
    feed.on_snapshot(None, odd)
    for i in range(300):
        feed.on_snapshot(None, snapshot(f"n{i}", of=pod("a")))
    feed.load()
    assert not cluster.kinds


def test_what_pods_cost_is_known_after_a_restart_though_the_nodes_that_measured_it_have_gone():
    cluster, feed, _ = fed()
    feed.on_snapshot(None, snapshot("cluster", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.on_snapshot(None, snapshot("new", of=pod("a")))
    feed.load()
    feed.update()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5
    assert cluster.kinds.cost_of(pod("b")).basis == "Ended"


def test_what_pods_cost_is_known_though_the_node_that_measured_it_goes():
    cluster, feed, _ = fed()
    of = snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a"))
    feed.on_snapshot(None, of)
    feed.update()
    feed.on_snapshot(of, None)
    feed.update()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5


def test_a_pod_takes_no_more_cpus_and_memory_than_the_node_that_measured_it_has():
    cluster, feed, _ = fed()
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(1e6, 4.0, 9.0, 1e15, True), of=pod("a")))
    feed.update()
    cost = cluster.kinds.cost_of(pod("b"))
    assert (cost.share, cost.memory) == (4.0, 8 * 2.0**30)


def test_what_is_taken_in_is_not_held_a_second_time():
    _, feed, _ = fed()
    published = snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a"))
    feed.on_snapshot(None, published)
    feed.update()
    assert feed.kinds.table()
    assert "kinds" not in published["status"]


async def test_a_replica_that_runs_takes_in_all_that_arrived_and_holds_nothing_back():
    cluster, feed, _ = fed()
    for i in range(500):
        feed.on_snapshot(None, snapshot(f"n{i}", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    task = asyncio.create_task(feed.run(at_once()))
    for _ in range(24):
        await turn_of_the_loop()
    assert not feed._seen
    assert cluster.kinds.cost_of(pod("b")).pods == pytest.approx(500.0)
    task.cancel()


async def test_what_can_not_be_added_up_at_once_is_added_up_with_the_next_looks(monkeypatch):
    monkeypatch.setattr(kinds_feed, "INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(kinds_feed, "ROWS_A_LOOK", 1)
    _, feed, _ = fed()
    feed.on_snapshot(None, snapshot("n1", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.update()
    assert feed.kinds.has_changes
    task = asyncio.create_task(feed.run(at_once()))
    for _ in range(10):
        await turn_of_the_loop()
    assert not feed.kinds.has_changes
    assert len(feed.kinds.table()) == len(pod("a").kind.keys)
    task.cancel()


async def test_many_kinds_are_added_up_in_turns_of_the_loop_and_handed_over_together():
    _, feed, changes = fed()
    for i in range(50):
        feed.kinds.set_node(f"n{i}", {f"k{i}-{k}": KindSums(ended=1.0, held=2.0) for k in range(20)}, 4.0)
    feed._arrived.set()
    task = asyncio.create_task(feed.run(at_once()))
    known = []
    for _ in range(12):
        await asyncio.sleep(0)
        known.append(len(feed.kinds._merged))
    assert max(after - before for before, after in itertools.pairwise([0, *known])) <= KEYS_A_TURN
    assert known[-1] == 1000
    assert len(changes) == 1
    task.cancel()


async def test_of_tables_that_come_at_once_few_entries_are_taken_in_without_a_pause(monkeypatch):
    """8,000 kinds in the tables of 50 nodes held the loop for 0.9 s."""
    _, feed, _ = fed()
    taken, take = [], feed.kinds.set_entries

    def set_entries(name, entries, *of_node):
        taken[-1] += MAX_ENTRIES
        take(name, entries, *of_node)

    monkeypatch.setattr(feed.kinds, "set_entries", set_entries)
    for i in range(60):
        feed.on_snapshot(None, snapshot(f"n{i}", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    task = asyncio.create_task(feed.run(at_once()))
    for _ in range(12):
        taken.append(0)
        await asyncio.sleep(0)
    task.cancel()
    assert sum(taken) == 60 * MAX_ENTRIES
    assert max(taken) <= 4000


def test_a_standby_that_begins_to_lead_knows_what_the_last_leader_has_merged():
    cluster, feed, _ = fed()
    feed.on_snapshot(None, snapshot("cluster", PodMeasurement(1.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.on_snapshot(None, snapshot("n1", of=pod("a")))
    feed.update()
    feed.on_snapshot(None, snapshot("cluster", PodMeasurement(2.0, 4.0, 9.0, 1e6, True), of=pod("a")))
    feed.load()
    assert cluster.kinds.cost_of(pod("b")).share == 0.5
