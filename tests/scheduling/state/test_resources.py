"""The table of resources against dictionaries, and what hostile pods and nodes cost."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concerto.scheduling.state import resources
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.resources import ResourceTable
from support.scheduling_builders import NOW, node, pod

ROWS = 5
NAMES = ("cpu", "memory", *(f"x.io/{i}" for i in range(6)))


class TableMachine(RuleBasedStateMachine):
    """Nodes offer, pods request, both change and go; with room for two resources beside the permanent ones."""

    def __init__(self):
        super().__init__()
        self.before = resources.MAX_COLUMNS
        resources.MAX_COLUMNS = 5
        self.table = ResourceTable()
        self.table.grow(ROWS)
        self.offered = {}
        self.pods = []

    def teardown(self):
        resources.MAX_COLUMNS = self.before

    @rule(row=st.integers(0, ROWS - 1), amounts=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)))
    def node_offers(self, row, amounts):
        self.table.set_allocatable(row, amounts)
        self.offered[row] = amounts

    @rule(row=st.integers(0, ROWS - 1), amounts=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 3)))
    def pod_comes(self, row, amounts):
        made = pod("p", requests={r: f"{a}m" if r == "cpu" else str(a) for r, a in amounts.items()})
        self.table.pod_added(made, row)
        self.pods.append((made, row))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def pod_goes(self, data):
        made, row = self.pods.pop(data.draw(st.integers(0, len(self.pods) - 1)))
        self.table.pod_removed(made, row)

    @invariant()
    def amounts_are_the_sums(self):
        rows = slice(0, ROWS)
        for name in NAMES:
            offered = [self.offered.get(row, {}).get(name, 0) for row in range(ROWS)]
            used = [sum(p.requests.get(name, 0) for p, at in self.pods if at == row) for row in range(ROWS)]
            assert self.table.allocatable(name, rows).tolist() == offered
            assert self.table.used(name, rows).tolist() == used
            assert self.table.is_offered(name) == (any(offered) or name in ("cpu", "memory"))
        free = self.table.free(NAMES, np.arange(ROWS))
        assert (free == self.table.free(NAMES, rows)).all()

    @invariant()
    def only_what_is_offered_has_a_column(self):
        assert len(self.table._index) <= resources.MAX_COLUMNS
        assert all(self.table.is_offered(name) for name in self.table._index)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def many(count, value="1"):
    return {f"e.vl/r{i}": value for i in range(count)}


def test_a_pod_with_thousands_of_resource_names_costs_its_size_and_leaves_nothing():
    cluster = ClusterState()
    for i in range(5000):
        cluster.set_node(node(f"n{i}"))
    table = cluster.resources
    view = pod("p", nodeName="no-such-node", requests=many(3000))
    shape = table._used.shape
    cluster.set_pod(view, NOW)
    assert table._used.shape == shape, "a column for each name takes 18 s"
    cluster.remove_pod(view.uid)
    assert table._used.shape == shape
    assert not table._sparse_used


def test_a_node_with_thousands_of_resource_names_costs_its_size_and_leaves_nothing():
    cluster = ClusterState()
    for i in range(2000):
        cluster.set_node(node(f"n{i}"))
    cluster.set_node(node("hostile", allocatable=dict.fromkeys(many(3000), 1)))
    cluster.set_node(node("honest", allocatable={"x.io/gpu": 4}))
    cluster.set_pod(pod("p", nodeName="honest", requests={"x.io/gpu": "3"}), NOW)
    assert len(cluster.resources._index) <= resources.MAX_COLUMNS
    assert cluster.resources.free(("x.io/gpu",), np.array([cluster.row_of["honest"]])).tolist() == [[1]]
    cluster.remove_node("hostile")
    assert len(cluster.resources._index) <= 4
    assert cluster.resources._sparse_allocatable.keys() <= {"x.io/gpu"}
