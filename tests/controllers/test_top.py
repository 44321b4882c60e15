"""`concerto top`: the table and the plot."""

from __future__ import annotations

import json

import pytest

from concerto.controllers.top import plot, read_dump, table
from scheduling.scheduling_builders import NOW, capacity, load

CAPACITIES = [
    capacity("b", 2.25, observed=("x", "y"), windows=load((0.5, 0.125), (0.25, 0.0))),
    capacity("a", None),
    capacity("c", 0.0, at=NOW - 90),
]


def test_the_table_has_a_line_for_each_node():
    assert table(CAPACITIES, "5m", NOW + 5).splitlines() == [
        "NODE  CAN TAKE  PODS  CPU       MEMORY   HEARD",
        "a     -         -     -         -        never",
        "b     2.2       2     50% ± 12  25% ± 0  5s ago",
        "c     0.0       0     -         -        95s ago",
    ]
    assert "50%" not in table(CAPACITIES, "15m", NOW)


@pytest.mark.parametrize("before", [[], CAPACITIES], ids=["now", "before and now"])
def test_the_plot_is_written(tmp_path, before):
    path = tmp_path / "plots" / "mu-sigma.svg"
    plot(path, "5m", CAPACITIES, before)
    text = path.read_text()
    assert text.lstrip().startswith("<?xml")


def test_a_dump_is_read_again(tmp_path):
    raw = {
        "metadata": {"name": "b", "uid": "u", "resourceVersion": "7", "generation": 1},
        "spec": {},
        "status": CAPACITIES[0].status.to_raw(),
    }
    path = tmp_path / "before.json"
    path.write_text(json.dumps({"items": [raw]}))
    (read,) = read_dump(path)
    assert read.status.windows == CAPACITIES[0].status.windows
