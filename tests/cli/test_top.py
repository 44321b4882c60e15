"""`concerto top`: the table and the plot."""

from __future__ import annotations

import json

import pytest

from concerto.capacity.kinds.sums import KindSums, PodMeasurement
from concerto.capacity.kinds.table import MAX_ENTRIES, NodeKinds
from concerto.cli.explain import full_table_note
from concerto.cli.top import commitments_of, plot, read_dump, table
from support.scheduling_builders import GI, NOW, capacity, cluster_state, load, node, pod

CAPACITIES = [
    capacity("b", 2.25, observed=("x", "y"), windows=load((0.5, 0.125), (0.25, 0.0))),
    capacity("a", None),
    capacity("c", 0.0, at=NOW - 90),
    capacity("d", -3.25, observed=("z",)),
]


def test_the_table_has_a_line_for_each_node():
    assert table(CAPACITIES, "5m", NOW + 5).splitlines() == [
        "NODE  CAN TAKE  OVER BY  PODS  CPU       MEMORY   COMMITTED  REQUESTED  LAST STATUS",
        "a     -         -        -     -         -        -          -          never",
        "b     2.2       -        2     50% ± 12  25% ± 0  -          -          5s ago",
        "c     0.0       -        0     -         -        -          -          95s ago",
        "d     0.0       3.2      1     -         -        -          -          5s ago",
    ]
    assert "50%" not in table(CAPACITIES, "15m", NOW)


def test_what_pods_take_by_their_kinds_stands_beside_what_they_request():
    there = [pod("p-1", nodeName="b", requests={"cpu": "1", "memory": "2Gi"}), pod("p-2", nodeName="b")]
    cluster = cluster_state([node("a"), node("b")], there, [capacity("b", 2.0)])
    assert commitments_of(cluster)["b"].committed is None, "no agent has measured a kind"
    kinds = NodeKinds()
    kinds.pod_ended(pod("p-3").kind, PodMeasurement(2.0, 4.0, 4.0, 2.0 * GI, True), 0.0)
    cluster.kinds.set_table(kinds.table((), 0.0))
    lines = table(CAPACITIES[:2], "5m", NOW + 5, commitments_of(cluster)).splitlines()
    assert [("25%, 50%" in line, "25%, 25%" in line) for line in lines[1:]] == [(False, False), (True, True)]


TABLES = {"a full one": (MAX_ENTRIES, 1), "one with room": (MAX_ENTRIES - 1, 0), "none": (0, 0)}


@pytest.mark.parametrize(("entries", "notes"), TABLES.values(), ids=TABLES)
def test_a_published_table_that_is_full_may_lack_what_decisions_use(entries, notes):
    found = full_table_note({f"n/Job/j{i}@1": KindSums() for i in range(entries)})
    assert len(found) == notes
    assert all("SubspaceSnapshot cluster" in note and "40,000" in note for note in found)


@pytest.mark.parametrize("before", [[], CAPACITIES], ids=["now", "before and now"])
def test_the_plot_is_written(tmp_path, before):
    path = tmp_path / "plots" / "mu-sigma.svg"
    plot(path, "5m", CAPACITIES, before)
    text = path.read_text()
    assert text.lstrip().startswith("<?xml")


def test_a_dump_is_read_again(tmp_path):
    raw = {
        "kind": "NodeCapacity",
        "metadata": {"name": "b", "uid": "u", "resourceVersion": "7", "generation": 1},
        "spec": {},
        "status": CAPACITIES[0].status.to_raw(),
    }
    path = tmp_path / "before.json"
    path.write_text(json.dumps({"items": [raw]}))
    (read,) = read_dump(path)
    assert read.status.windows == CAPACITIES[0].status.windows


DUMPS = {
    "no JSON": "NAME  CAPACITY",
    "a list": "[1]",
    "no items": "{}",
    "other objects": '{"items": [{"kind": "Pod", "metadata": {"name": "x"}, "spec": {}}]}',
    "half an object": '{"items": [{"kind": "NodeCapacity"}]}',
}


@pytest.mark.parametrize("text", DUMPS.values(), ids=DUMPS)
def test_a_dump_of_something_else_is_refused_with_a_sentence(tmp_path, text):
    path = tmp_path / "before.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"before\.json is not what `kubectl get ncap -o json` prints"):
        read_dump(path)


def test_the_plot_has_the_name_that_was_asked_for_or_an_error(tmp_path):
    plot(tmp_path / "mu-sigma", "5m", CAPACITIES, [])
    assert (tmp_path / "mu-sigma").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="xyz"):
        plot(tmp_path / "mu-sigma.xyz", "5m", CAPACITIES, [])
    with pytest.raises(IsADirectoryError):
        plot(tmp_path, "5m", CAPACITIES, [])
