from concerto.scheduling.plugins.domains import CountsByKey, DomainCounts
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.row_counts import RowCounts
from support.scheduling_builders import node


def counted(by_row):
    counts = RowCounts()
    for row, number in by_row.items():
        counts.add(row, number)
    return counts


def test_many_rows_are_added_as_each_of_them_would_be():
    cluster = ClusterState()
    for i in range(150):
        cluster.set_node(node(f"n{i}", labels={"zone": str(i % 3)} if i % 7 else {}))
    by_row = {row: 1 + row % 4 for row in range(150)}
    at_once, one_by_one = DomainCounts(cluster, "zone"), DomainCounts(cluster, "zone")
    at_once.add_rows([(counted(by_row), -2)])
    for row, count in by_row.items():
        one_by_one.add(row, -2 * count)
    assert at_once.numbers.tolist() == one_by_one.numbers.tolist()
    assert at_once.numbers.tolist()[0] == 0


def test_keys_that_no_node_has_as_a_label_are_not_kept():
    cluster = ClusterState()
    for i in range(150):
        cluster.set_node(node(f"n{i}", labels={"zone": str(i % 3)}))
    counts = CountsByKey(cluster)
    for key in ("zone", "rack", "row"):
        counts[key].add_rows([(counted(dict.fromkeys(range(150), 1)), 1)])
        counts[key].add_rows([(counted({0: 1}), 1)])
        assert len(counts[key].turn(1, 1)) == 0
        counts[key].add_column(counts[key].by_row(slice(0, 150)))
    assert list(counts) == ["zone"]
    assert counts["rack"].numbers.tolist() == [0]
    assert counts["zone"].numbers.sum() > 0


def test_a_label_that_changes_while_counts_are_in_use_changes_none_of_them():
    cluster = ClusterState()
    for i in range(4):
        cluster.set_node(node(f"n{i}", labels={"zone": str(i % 2)}))
    counts = DomainCounts(cluster, "zone")
    counts.add_rows([(counted({0: 1, 1: 2}), 1)])
    cluster.set_node(node("n3", labels={"zone": "another"}))
    assert counts.by_row(slice(0, 4)).tolist() == [1, 2, 1, 2]
    assert counts.turn(3, 1).tolist() == []
    assert counts.by_row(slice(0, 4)).tolist() == [1, 3, 1, 3]
