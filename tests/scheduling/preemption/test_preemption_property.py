"""Random clusters: the pods that preemption chooses are of lower priority, no fewer would do, and all of it holds."""

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.selectors import LabelSelector, Requirement
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.preemption.candidates import Candidate
from concerto.scheduling.preemption.look import NodeLook
from concerto.scheduling.preemption.preemption import Preemption
from concerto.scheduling.queries import query_for
from support.scheduling_builders import capacity, cluster_state, node, pod, profile

AT = 1772366500.0  # long after the builders' pods were created
APPS = "xyz"


def anti(app, key="kubernetes.io/hostname"):
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def spread(app):
    return [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": {"matchLabels": {"app": app}}}]  # fmt: skip


@st.composite
def shapes(draw, name, amounts=(0, 500, 1000, 2000), **over):
    """A pod that may take CPU, a host port, and refuse others."""
    millicores = draw(st.sampled_from(amounts))
    spec = {
        "requests": {"cpu": f"{millicores}m"} if millicores else None,
        "labels": {"app": draw(st.sampled_from(APPS))},
    }
    match draw(st.integers(0, 5)):
        case 0:
            spec["containers"] = [{"name": "c", "ports": [{"hostPort": 80}]}]
            del spec["requests"]
        case 1:
            spec["affinity"] = anti(
                draw(st.sampled_from(APPS)), draw(st.sampled_from(["kubernetes.io/hostname", "zone"]))
            )
        case 2:
            spec["topologySpreadConstraints"] = spread(spec["labels"]["app"])
    return pod(name, **spec, **over)


@st.composite
def worlds(draw):
    names = "abcd"[: draw(st.integers(1, 4))]
    nodes = [node(n, labels={"zone": draw(st.sampled_from("12"))}) for n in names]
    pods = [
        draw(shapes(f"p{i}", nodeName=draw(st.sampled_from(names)), priority=draw(st.integers(0, 3))))
        for i in range(draw(st.integers(0, 10)))
    ]
    capacities = [capacity(n, float(draw(st.integers(0, 8))), at=AT) for n in names if draw(st.booleans())]
    made = cluster_state(nodes, pods, capacities)
    for n in names:
        account = made.ledger.nodes.get(n)
        if account.status is not None:
            account.last_status_at = AT
            made.measured.update(made.row_of[n])
    for app in APPS:
        if draw(st.booleans()):
            selector = LabelSelector((Requirement("app", "In", (app,)),))
            made.budgets.set(DisruptionBudget("default", app, selector, draw(st.integers(0, 2))))
    asks = draw(shapes("asks", (500, 1000, 2000), priority=draw(st.integers(1, 4))))
    for name in sorted(nodes_for(made, asks)):
        for filler in draw(fillers(made, name)):
            made.set_pod(filler, AT)
    return made, asks


@st.composite
def fillers(draw, cluster, name):
    """Pods that take the node's host port, and the CPU that is left there, so that it takes no other pod."""
    count = draw(st.integers(1, 3))
    left = int(cluster.resources.free(("cpu",), slice(0, cluster.size))[0][cluster.row_of[name]])
    port = {"ports": [{"hostPort": 80}]}
    return [
        pod(
            f"filler-{name}-{index}",
            containers=[
                {"name": "c", "resources": {"requests": {"cpu": f"{left // count}m"}}} | ({} if index else port)
            ],
            labels={"app": draw(st.sampled_from(APPS))},
            nodeName=name,
            priority=draw(st.integers(0, 3)),
        )
        for index in range(count)
    ]


def nodes_for(cluster, asks):
    """All nodes that would take the pod."""
    evaluation = Evaluation(query_for(cluster, asks, profile(), AT), profile(), ())
    return {cluster.names[row] for row in np.flatnonzero(evaluation.feasible)}


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_the_victims_make_room_and_no_fewer_would(world):
    cluster, asks = world
    assume(not nodes_for(cluster, asks))
    search = Preemption(cluster, profile(), asks, AT)
    assert search.begin(asks) is None
    while search.look_at_next(asks):
        pass
    candidate = search.take(asks).candidate
    look = NodeLook(cluster, profile(), AT)
    found = {name: look(asks, name) for name in cluster.row_of}
    candidates = [each for each in found.values() if isinstance(each, Candidate)]
    if candidate is None:
        assert not [each for each in candidates if each.node in search._hopeful]
        return
    victims = candidate.victims.pods
    assert victims
    assert all(victim.priority < asks.priority for victim in victims)
    assert candidate.victims.violations == min(
        each.victims.violations for each in candidates if each.node in search._hopeful
    )
    # With one victim less it does not fit; without all of them it does, there
    for kept in victims:
        for victim in victims:
            if victim is not kept:
                cluster.remove_pod(victim.uid)
        assert candidate.node not in nodes_for(cluster, asks)
        for victim in victims:
            if victim is not kept:
                cluster.ledger._ended.pop(victim.uid, None)
                cluster.set_pod(victim, AT)
    for victim in victims:
        cluster.remove_pod(victim.uid)
    assert candidate.node in nodes_for(cluster, asks)
