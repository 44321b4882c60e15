"""Room for gangs whose pods have what is in no index before they are assumed: CPUs of their own, or volumes."""

import numpy as np
import pytest

from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.scheduling.cycle import schedule
from concerto.scheduling.gangs.gang import gang_of
from concerto.scheduling.gangs.preemption import GangPreemption
from support.cluster_contents import state_of
from support.gang_builders import add, group, member
from support.scheduling_builders import NOW, cluster_state, node, pod, profile
from support.topologies import machine
from support.volume_builders import claim, mounts, storage_class, store, volume

GANG, NODES, EACH = 8, 25, 4
OWN_SOCKETS = WorkloadAwareSettings("Balanced", frozenset({"MemoryBoundExclusiveSockets"}))


def with_own_cpus():
    """Two sockets of each node can be had by one pod alone, and both are had."""
    labels = {"concerto.dev/workload-type": "memory-bound"}
    cluster = cluster_state([node(f"n{i}", allocatable={"cpu": 30_000}) for i in range(NODES)])
    for i in range(NODES):
        cluster.set_topology(NodeCPUTopology(f"n{i}", machine(3, 5, 2), CPUPools()))
        for j in range(EACH):
            own = {"labels": labels} if j < 2 else {}
            add(cluster, pod(f"v{i}-{j}", nodeName=f"n{i}", requests={"cpu": "1"}, priority=j, **own))
            if own:
                cluster.set_cpu_binding(
                    {
                        "metadata": {"namespace": "default", "name": f"v{i}-{j}"},
                        "spec": {"podName": f"v{i}-{j}", "exclusivenessLevel": "Socket"},
                        "status": {
                            "nodeName": f"n{i}", "cpus": "05"[j], "podUID": f"uid-v{i}-{j}",
                            "resourceStatus": "Validated",
                        },
                    }
                )  # fmt: skip
    pods = [member(f"g-{i}", requests={"cpu": "1"}, labels=labels, priority=100) for i in range(GANG)]
    return cluster, pods, {"workload_aware": OWN_SOCKETS}, GANG


def with_volumes():
    """Each node has a volume, and is full."""
    cluster = cluster_state([node(f"n{i}") for i in range(NODES)])
    store(cluster, storage_class(), *(claim(f"c{i}") for i in range(GANG)))
    store(cluster, *(volume(f"v{i}", on=f"n{i}") for i in range(NODES)))
    for i in range(NODES):
        add(cluster, *(pod(f"v{i}-{j}", nodeName=f"n{i}", requests={"cpu": "1"}, priority=j) for j in range(EACH)))
    pods = [member(f"g-{i}", requests={"cpu": "2"}, priority=100, **mounts(f"c{i}")) for i in range(GANG)]
    return cluster, pods, {}, 2 * GANG


MADE = {"CPUs of their own": with_own_cpus, "volumes": with_volumes}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_the_victims_make_room_for_the_whole_gang_and_each_pod_that_is_put_back_takes_no_whole_look(make):
    cluster, pods, settings, victims = make()
    add(cluster, group("g", GANG), *pods)
    before, asked = state_of(cluster), []
    search = GangPreemption(cluster, gang_of(cluster, pods[0]), profile(**settings), NOW, np.random.default_rng(0))
    found = search.find(250, lambda: asked.append(1))
    assert state_of(cluster) == before
    assert len(found.victims.pods) == victims
    assert len(asked) < 2 * GANG + 3 * NODES * EACH, "a whole look asks for each pod of the gang"
    for each in found.victims.pods:
        cluster.remove_pod(each.uid)
        cluster.remove_cpu_binding((each.namespace, each.name))
    result = schedule(cluster, pods, {"concerto": profile(**settings)}, now=NOW, generator=np.random.default_rng(0))
    assert len(result.decisions) == GANG
