"""Random clusters: a gang's victims have a lower priority, make room for all of it, and all of them are needed."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.selectors import LabelSelector, Requirement
from concerto.scheduling.cycle import schedule
from concerto.scheduling.gangs.gang import gang_of
from concerto.scheduling.gangs.preemption import GangPreemption
from support.cluster_contents import state_of
from support.gang_builders import add, group, member
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, profile

SIZES = st.sampled_from([0, 500, 1000, 2000])
APPS = st.sampled_from("xy")


def apart(app):
    terms = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": app}}}]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def shape(millicores, app, keeps_apart):
    requests = {"cpu": f"{millicores}m"} if millicores else None
    return {"requests": requests, "labels": {"app": app}} | ({"affinity": apart(app)} if keeps_apart else {})


SHAPES = st.builds(shape, SIZES, APPS, st.integers(0, 5).map(lambda i: not i))


@st.composite
def worlds(draw):
    names = "abc"[: draw(st.integers(1, 3))]
    pods = [
        pod(f"p{i}", nodeName=draw(st.sampled_from(names)), priority=draw(st.integers(0, 3)), **draw(SHAPES))
        for i in range(draw(st.integers(0, 12)))
    ]
    capacities = [capacity(name, float(draw(st.integers(0, 6)))) for name in names if draw(st.booleans())]
    cluster = cluster_state([node(name) for name in names], pods, capacities)
    for app in "xy":
        if draw(st.booleans()):
            selector = LabelSelector((Requirement("app", "In", (app,)),))
            cluster.budgets.set(DisruptionBudget("default", app, selector, draw(st.integers(0, 2))))
    alike, priority = draw(SHAPES), draw(st.integers(1, 4))
    members = [
        member(f"g-{i}", priority=priority, **(alike if draw(st.booleans()) else draw(SHAPES)))
        for i in range(draw(st.integers(1, 6)))
    ]
    add(cluster, group("g", draw(st.integers(1, len(members)))), *members)
    return cluster, members


def placed_without(cluster, members, found, kept=None):
    """Where the gang is placed once its victims are gone, but for one."""
    victims = [victim for victim in found.victims.pods if victim is not kept]
    for victim in victims:
        cluster.remove_pod(victim.uid)
    heads = [each for each in members if each.uid in found.nodes]
    for each in heads:
        cluster.nominations.nominate(each, found.nodes[each.uid])
    result = schedule(cluster, heads, {"concerto": profile()}, now=NOW, generator=np.random.default_rng(0))
    nodes = {decision.pod.uid: decision.assignment.node for decision in result.decisions}
    for each in nodes:
        cluster.forget(each)
    for each in heads:
        cluster.nominations.withdraw(each.uid)
    for victim in victims:
        cluster.ledger._ended.pop(victim.uid, None)
        cluster.set_pod(victim, NOW)
    return nodes


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_the_victims_make_room_for_the_whole_gang_and_none_is_needless(world):
    cluster, members = world
    gang, before = gang_of(cluster, members[0]), state_of(cluster)
    found = GangPreemption(cluster, gang, profile(), NOW, np.random.default_rng(0)).find(100, lambda: False)
    assert state_of(cluster) == before
    if found is None:
        return
    assert all(victim.priority < members[0].priority for victim in found.victims.pods)
    assert len(found.nodes) >= gang.needed
    assert placed_without(cluster, members, found) == found.nodes
    for kept in found.victims.pods:
        assert placed_without(cluster, members, found, kept) != found.nodes
