"""A bound pod of which all containers have ended, and which its kubelet has still to take down."""

import pytest

from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.pod_kind import kind_of_pod
from concerto.api.pod_trimming import trim_pod
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, raw_pod
from support.topologies import machine

RUNS, ENDED = {"running": {}}, {"terminated": {"exitCode": 0}}


def raw(state, phase="Running", image="i"):
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": "500m"}}}
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


def test_its_exclusive_cpus_are_kept_from_others_until_its_binding_is_gone():
    cluster = cluster_state([node("n")], [PodView.from_raw(raw(RUNS))], [capacity("n", 5.0)])
    cluster.set_topology(NodeCPUTopology("n", machine(1, 4, 1), CPUPools()))
    cluster.set_cpu_binding(
        {
            "metadata": {"namespace": "default", "name": "p", "uid": "uid-p"},
            "spec": {"podName": "p", "podUID": "uid-p", "exclusivenessLevel": "CPU"},
            "status": {"nodeName": "n", "podUID": "uid-p", "cpus": "0-1", "resourceStatus": "Validated"},
        }
    )
    seen = NodeKinds()
    for image, work in (("i", 8.0), ("patched", 2.0)):
        seen.pod_ended(kind_of_pod(raw(RUNS, image=image)), PodMeasurement(work, 4.0, 4.0, 2e7, True), NOW)
    cluster.kinds.set_table(seen.table((), NOW))
    row = cluster.row_of["n"]

    def taken():
        return float(cluster.kinds.loads.cpu[row] + cluster.kinds.loads.kept_cpu[row])

    assert cluster.kinds.loads.cpu[row] > 0.0
    before = taken()
    for state in (ENDED, RUNS, ENDED):
        cluster.set_pod(PodView.from_raw(raw(state)), NOW)
        assert taken() == pytest.approx(before)
        assert bool(cluster.kinds.loads.cpu[row] > 0.0) is (state is RUNS)
    cluster.set_pod(PodView.from_raw(raw(RUNS)), NOW)
    cluster.set_pod(PodView.from_raw(raw(RUNS, image="patched")), NOW)
    assert taken() == pytest.approx(before)
    cluster.set_pod(PodView.from_raw(raw(ENDED)), NOW)
    cluster.remove_cpu_binding(("default", "p"))
    assert taken() == pytest.approx(0.0)
