"""A bound pod of which all containers have ended, and which its kubelet has still to take down."""

import pytest

from concerto.api.pod import PodView
from concerto.api.pod_kind import kind_of_pod
from concerto.api.pod_trimming import trim_pod
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, raw_pod

RUNS, ENDED = {"running": {}}, {"terminated": {"exitCode": 0}}


def raw(state, phase="Running"):
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": "500m"}}}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "state": state, "restartCount": 0}]}
    return trim_pod(raw_pod("p", nodeName="n", containers=[container], restartPolicy="Never", status=status))


def test_what_its_kind_costs_is_free_then_and_what_it_requests_once_it_is_taken_down():
    cluster = cluster_state([node("n")], [PodView.from_raw(raw(RUNS))], [capacity("n", 5.0)])
    seen = NodeKinds()
    seen.pod_ended(kind_of_pod(raw(RUNS)), PodMeasurement(8.0, 4.0, 4.0, 2e7, True), NOW)
    cluster.kinds.set_table(seen.table((), NOW))
    row = cluster.row_of["n"]
    rows = slice(row, row + 1)
    assert cluster.kinds.loads.cpu[row] > 0.0
    assert cluster.set_pod(PodView.from_raw(raw(ENDED)), NOW) & Change.CAPACITY
    assert cluster.kinds.loads.cpu[row] == pytest.approx(0.0)
    assert cluster.resources.used("cpu", rows)[0] == 500
    assert cluster.set_pod(PodView.from_raw(raw(ENDED, "Succeeded")), NOW) & Change.ENDED
    assert cluster.resources.used("cpu", rows)[0] == 0
    assert cluster.kinds.loads.cpu[row] == pytest.approx(0.0)


def test_its_unit_is_free_then_and_is_not_given_away_twice():
    cluster = cluster_state([node("n")], [], [capacity("n", 1.0)])
    cluster.set_pod(PodView.from_raw(raw(RUNS)), NOW)
    row = cluster.row_of["n"]
    assert cluster.measured.available[row] == 0.0
    cluster.set_pod(PodView.from_raw(raw(ENDED)), NOW)
    assert cluster.measured.available[row] == 1.0
    cluster.set_pod(PodView.from_raw(raw(ENDED, "Succeeded")), NOW)
    assert cluster.measured.available[row] == 1.0
