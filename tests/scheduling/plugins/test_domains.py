from concerto.scheduling.plugins.domains import DomainCounts
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import node


def test_many_rows_are_added_as_each_of_them_would_be():
    cluster = ClusterState()
    for i in range(150):
        cluster.set_node(node(f"n{i}", labels={"zone": str(i % 3)} if i % 7 else {}))
    by_row = {row: 1 + row % 4 for row in range(150)}
    at_once, one_by_one = DomainCounts(cluster, "zone"), DomainCounts(cluster, "zone")
    at_once.add_rows(by_row, -2)
    for row, count in by_row.items():
        one_by_one.add(row, -2 * count)
    assert at_once.numbers.tolist() == one_by_one.numbers.tolist()
    assert at_once.numbers.tolist()[0] == 0
