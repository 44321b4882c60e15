import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.what_if import RowWhatIf
from support.cluster_contents import state_of
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile
from support.step_counts import steps_of

ANTI = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}]}}  # fmt: skip
SPREAD = [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
           "labelSelector": {"matchLabels": {"app": "x"}}}]  # fmt: skip
PORT = [{"name": "c", "ports": [{"hostPort": 80, "containerPort": 80}]}]


def on(name, where="a", **over):
    return pod(name, nodeName=where, **over)


def feasible(cluster, asks, settings: Profile | None = None):
    settings = settings or profile()
    query = query_for(cluster, asks, settings, NOW)
    rows = np.arange(cluster.size)
    mask = np.ones(cluster.size, dtype=bool)
    for each in settings.filters:
        if (state := each.prepare(query)) is not None:
            mask &= each.check(state, rows) == 0
    return [cluster.names[row] for row in rows[mask]]


MENDED = {
    "requests": (on("v", requests={"cpu": "4"}), pod("p", requests={"cpu": "1"}), 9.0),
    "host ports": (on("v", containers=PORT), pod("p", containers=PORT), 9.0),
    "its own anti-affinity": (on("v", labels={"app": "x"}), pod("p", affinity=ANTI), 9.0),
    "the other's anti-affinity": (on("v", affinity=ANTI), pod("p", labels={"app": "x"}), 9.0),
    "a unit in flight": (on("v"), pod("p"), 1.0),
}


@pytest.mark.parametrize(("victim", "asks", "room"), MENDED.values(), ids=MENDED)
def test_without_a_pod_its_node_has_what_the_pod_takes(victim, asks, room):
    cluster = cluster_state([node("a")], [victim], [capacity("a", room)])
    assert feasible(cluster, asks) == []
    with RowWhatIf(cluster, cluster.row_of["a"]) as what_if:
        what_if.remove(victim)
        what_if.settle()
        assert feasible(cluster, asks) == ["a"]
        what_if.add(victim)
        what_if.settle()
        assert feasible(cluster, asks) == []
        what_if.remove(victim)
    assert feasible(cluster, asks) == []


def test_a_pod_that_its_agent_counts_gives_its_unit_back_too():
    victim = on("v")
    cluster = cluster_state([node("a")], [victim], [capacity("a", 0.0, ("uid-v",))])
    with RowWhatIf(cluster, 0) as what_if:
        what_if.remove(victim)
        what_if.settle()
        assert cluster.measured.available[0] == 1.0
    assert cluster.measured.available[0] == 0.0


def test_a_spread_is_even_without_the_pod():
    victims = [on("v1", labels={"app": "x"}), on("v2", labels={"app": "x"})]
    cluster = cluster_state([node("a"), node("b", unschedulable=True)], victims, [capacity("a", 9.0)])
    asks = pod("p", labels={"app": "x"}, topologySpreadConstraints=SPREAD)
    assert feasible(cluster, asks) == []
    with RowWhatIf(cluster, cluster.row_of["a"]) as what_if:
        for each in victims:
            what_if.remove(each)
        what_if.settle()
        assert feasible(cluster, asks) == ["a"]
    assert feasible(cluster, asks) == []


def test_a_pod_that_is_placed_takes_its_requests_and_its_unit():
    cluster = cluster_state([node("a")], (), [capacity("a", 1.0)])
    nominated = pod("n", requests={"cpu": "4"})
    with RowWhatIf(cluster, 0) as what_if:
        what_if.place(nominated)
        what_if.settle()
        assert feasible(cluster, pod("p", requests={"cpu": "1"})) == []
        assert cluster.measured.available[0] == 0.0
    assert feasible(cluster, pod("p", requests={"cpu": "1"})) == ["a"]


def test_what_was_reported_of_a_node_just_before_is_not_lost():
    victim = on("v")
    cluster = cluster_state([node("a"), node("b")], [victim], [capacity("a", 3.0)])
    loads, row = cluster.kinds.loads, cluster.row_of["a"]
    before, _ = loads.left(row)
    loads.set_own(row, 2.0, 0.0)
    with RowWhatIf(cluster, row) as what_if:
        what_if.remove(victim)
        what_if.settle()
        loads.cpu_left(slice(None))
    assert loads.left(row)[0] == pytest.approx(before - 2.0 * loads.head_room[row])


PODS = st.lists(
    st.builds(
        lambda i, millicores, anti, port: on(
            f"v{i}",
            labels={"app": "x"},
            requests={"cpu": f"{millicores}m"} if millicores else None,
            **({"affinity": ANTI} if anti else {}),
            **({"containers": PORT} if port else {}),
        ),
        st.integers(0, 99),
        st.integers(0, 999),
        st.booleans(),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda p: p.uid,
)


@given(PODS, st.data())
def test_afterwards_all_is_as_before(pods, data):
    observed = tuple(p.uid for p in pods if data.draw(st.booleans()))
    cluster = cluster_state([node("a"), node("b")], pods, [capacity("a", 3.3, observed)])
    before = state_of(cluster)
    with RowWhatIf(cluster, cluster.row_of["a"]) as what_if:
        off = []
        for each in pods:
            if data.draw(st.booleans()):
                what_if.remove(each)
                off.append(each)
        for each in off:
            if data.draw(st.booleans()):
                what_if.add(each)
        what_if.place(pod("new", requests={"cpu": "1"}, affinity=ANTI))
    assert state_of(cluster) == before


def test_the_end_of_a_nomination_may_help_others():
    cluster = cluster_state([node("a")])
    waits = pod("p", status={"nominatedNodeName": "a"})
    assert cluster.set_pod(waits, NOW) is Change.NOTHING
    assert cluster.set_pod(pod("p"), NOW) == Change.ENDED | Change.CAPACITY
    cluster.set_pod(waits, NOW)
    assert cluster.remove_pod("uid-p") == Change.ENDED | Change.CAPACITY


def test_the_pods_of_a_row_are_known_as_they_were_seen_last():
    cluster = cluster_state([node("a"), node("b")], [on("v", priority=3), on("w", priority=-2), on("o", "b")])
    row = cluster.row_of["a"]
    assert sorted(p.name for p in cluster.pods_on.on(row)) == ["v", "w"]
    assert cluster.pods_on.lowest_priority[row] == -2
    cluster.set_pod(on("w", priority=-2, deleting=True), NOW)
    assert {p.name: p.deleting for p in cluster.pods_on.on(row)} == {"v": False, "w": True}
    cluster.remove_pod("uid-w")
    assert cluster.pods_on.lowest_priority[row] == 3
    cluster.remove_pod("uid-v")
    assert cluster.pods_on.lowest_priority[row] == np.inf
    assert not cluster.pods_on.on(row)


def test_a_pod_that_goes_costs_as_much_however_many_others_name_its_node():
    def steps(count):
        cluster = cluster_state([], [on(f"p{i}", "made-up") for i in range(count)])
        return steps_of(lambda: cluster.remove_pod("uid-p0"))

    assert steps(500) < 1.2 * steps(50)
