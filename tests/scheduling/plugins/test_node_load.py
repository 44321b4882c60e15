"""The load that scores go by: what was measured, with pods that have just begun and without those that ended."""

import numpy as np
import pytest

from concerto.api.schedulingprofile import LoadSettings
from concerto.scheduling.plugins.load.node_load import NodeLoad
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod
from support.scheduling_builders import query as query_of

SETTINGS = LoadSettings(request_multiplier=1.0)


def running(name, millicores):
    status = {"startTime": "1970-01-01T00:00:10Z"}
    return pod(name, requests={"cpu": f"{millicores}m"}, nodeName="n", status=status, created="1970-01-01T00:00:01Z")


def mean_after(measured, predicted, *, ended, begun=0):
    """The load of a node of four CPUs whose window contains two such pods, of which so many end; then others begin."""
    there = [running(name, predicted) for name in "ab"]
    status = capacity("n", observed=("uid-a", "uid-b"), windows=load((measured, 0.0)))
    cluster = cluster_state([node("n")], there, [status])
    for name in "ab"[:ended]:
        cluster.remove_pod(f"uid-{name}")
    for index in range(begun):
        cluster.set_pod(pod(f"young-{index}", requests={"cpu": f"{predicted}m"}, nodeName="n"), NOW)
    return float(NodeLoad.of(query_of(cluster, pod(), load=SETTINGS)).mean("cpu", np.array([0]))[0])


CASES = {
    "nothing has ended": (0.5, 1000, 0, 0, 0.5),
    "one that used what was predicted": (0.5, 1000, 1, 0, 0.25),
    "both": (0.5, 1000, 2, 0, 0.0),
    "one that used more than was predicted": (0.5, 500, 1, 0, 0.375),
    "one that used less than was predicted takes its part along, and no more": (0.1, 1000, 1, 0, 0.05),
    "another follows": (0.5, 1000, 1, 1, 0.5),
    "two follow": (0.5, 1000, 1, 2, 0.75),
    "both, which used less than was predicted, and another follows": (0.1, 1000, 2, 1, 0.05),
    "both, which used more than was predicted, and another follows": (0.5, 500, 2, 1, 0.375),
    "best effort pods of which nothing is predicted": (0.5, 0, 1, 0, 0.5),
}


@pytest.mark.parametrize(("measured", "predicted", "ended", "begun", "expected"), CASES.values(), ids=CASES)
def test_ended_pods_are_taken_off_and_young_ones_added(measured, predicted, ended, begun, expected):
    assert mean_after(measured, predicted, ended=ended, begun=begun) == pytest.approx(expected, abs=2e-3)
