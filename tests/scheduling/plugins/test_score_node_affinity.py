import numpy as np
import pytest

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.plugins.node_affinity.score import NodeAffinity
from support.scheduling_builders import cluster_state, node, pod, query, scores


def preferring(*preferences):
    """A pod that prefers nodes with label (key, value) by weight."""
    terms = [
        {
            "weight": weight,
            "preference": {"matchExpressions": [{"key": k, "operator": "In", "values": [v]} for k, v in labels]},
        }
        for weight, *labels in preferences
    ]
    return pod("p", affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}})


NODES = [
    node("a", labels={"zone": "one", "disk": "ssd"}),
    node("b", labels={"zone": "one"}),
    node("c", labels={"disk": "ssd"}),
    node("d"),
]
CASES = {
    "no preferences, nothing to say": (pod("p"), {}),
    "one preference": (preferring((2, ("zone", "one"))), {"a": 100, "b": 100, "c": 0, "d": 0}),
    "weights are summed": (
        preferring((2, ("zone", "one")), (4, ("disk", "ssd"))), {"a": 100, "b": 33, "c": 66, "d": 0}
    ),
    "all expressions of one must match": (
        preferring((5, ("zone", "one"), ("disk", "ssd"))), {"a": 100, "b": 0, "c": 0, "d": 0}
    ),
    "an empty preference matches nothing": (preferring((5,)), {"a": 0, "b": 0, "c": 0, "d": 0}),
}  # fmt: skip


@pytest.mark.parametrize(("p", "expected"), CASES.values(), ids=CASES)
def test_preferred_nodes(p, expected):
    assert scores(NodeAffinity(), query(cluster_state(NODES), p)) == expected


def test_a_profile_s_own_preferences_count_beside_the_pod_s():
    spec = {
        "schedulerName": "concerto",
        "addedAffinity": {
            "preferredSchedulingTerms": [
                {"weight": 3, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
            ]
        },
    }
    settings = ProfileSettings.from_raw(spec)
    assert settings.added_affinity is None
    added = {"added_preferences": settings.added_preferences}
    cluster = cluster_state(NODES)
    assert scores(NodeAffinity(), query(cluster, pod("p"), **added)) == {"a": 100, "b": 0, "c": 100, "d": 0}
    both = preferring((1, ("zone", "one")))
    assert scores(NodeAffinity(), query(cluster, both, **added)) == {"a": 100, "b": 25, "c": 75, "d": 0}


def test_nodes_that_are_not_feasible_do_not_set_the_scale():
    needs_normalising = NodeAffinity().normalise(
        query(cluster_state(NODES), pod("p")), np.array([np.nan, 2.0, 4.0, 0.0])
    )
    np.testing.assert_array_equal(needs_normalising, [np.nan, 50, 100, 0])
