"""Which parts an operator has, and by which Lease it leads."""

from __future__ import annotations

import pytest

from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.capacity.kinds_trace import KindsTrace
from concerto.controllers.runtime.clock import SteadyClock
from concerto.controllers.runtime.health import Health
from concerto.controllers.runtime.metrics import Metrics
from concerto.controllers.runtime.supervision import Supervisor
from concerto.controllers.wiring import OperatorSettings, Replica, build
from concerto.kube.lease import LeaseSettings
from concerto.scheduling.state.cluster import ClusterState
from support.faulty_server import faulty, refuses

VOLUMES = {
    "persistentvolumes", "persistentvolumeclaims", "storageclasses.storage.k8s.io", "csinodes.storage.k8s.io",
    "csidrivers.storage.k8s.io", "csistoragecapacities.storage.k8s.io", "volumeattachments.storage.k8s.io",
}  # fmt: skip
SCHEDULING = VOLUMES | {
    "nodes", "pods", "namespaces", "nodecapacities.concerto.dev", "schedulingprofiles.concerto.dev",
    "podreservations.concerto.dev", "subspacesnapshots.concerto.dev", "poddisruptionbudgets.policy",
    "services", "replicationcontrollers", "replicasets.apps", "statefulsets.apps",
}  # fmt: skip
PINNING = {"nodecputopologies.concerto.dev", "podcpubindings.concerto.dev"}


def settings(*controllers: str) -> OperatorSettings:
    return OperatorSettings("ns", frozenset(controllers), None, LeaseSettings(), PredictiveHPASettings(), True)


@pytest.mark.parametrize(
    ("controllers", "lease", "kinds"),
    [
        (["scheduling"], "concerto-operator", SCHEDULING),
        (["scheduling", "pinning"], "concerto-operator", SCHEDULING | PINNING),
        (["scheduling", "pinning", "autoscaling"], "concerto-operator", SCHEDULING | PINNING),
        (["autoscaling"], "concerto-autoscaler", {"nodecapacities.concerto.dev"}),
    ],
)
async def test_an_operator_follows_what_its_controllers_need_and_has_their_lease(controllers, lease, kinds):
    async with faulty([refuses(404, "NotFound")]) as server:
        health = Health()
        cluster = ClusterState()
        replica = Replica(
            "host_me", server.session, cluster, Metrics(), health, Supervisor(lambda: None), clock := SteadyClock(),
            KindsTrace(cluster, clock), (), on_lost=lambda: None,
        )  # fmt: skip
        build(replica, settings(*controllers))
        assert health.ready.keys() == kinds
        assert settings(*controllers).lease_name == lease
        assert cluster.cpus.followed == ("pinning" in controllers or "scheduling" not in controllers)
        assert f'concerto_leader{{lease="{lease}"}} 0.0' in replica.metrics.render().decode(), "it stands by"
        # the number is that of the Lease which manifests/base/policy-fencing.yaml compares
        fenced = server.session.field_manager
        assert (fenced and fenced()) == ("concerto-leader-0" if lease == "concerto-operator" else None)


@pytest.mark.parametrize("controllers", [["scheduling"], ["scheduling", "pinning"], ["autoscaling"]], ids="+".join)
async def test_events_of_every_part_that_were_not_written_are_counted(controllers):
    async with faulty([refuses(404, "NotFound")]) as server:
        cluster = ClusterState()
        replica = Replica(
            "host_me", server.session, cluster, Metrics(), Health(), Supervisor(lambda: None), clock := SteadyClock(),
            KindsTrace(cluster, clock), (), on_lost=lambda: None,
        )  # fmt: skip
        _, recorders = build(replica, settings(*controllers))
        assert recorders
        for recorder in recorders:
            recorder.dropped += 1
        for _ in range(2):
            assert f"concerto_events_dropped_total {len(recorders)}.0" in replica.metrics.render().decode()


def test_pinning_without_scheduling_is_refused():
    with pytest.raises(ValueError, match="needs --controllers=scheduling"):
        settings("pinning", "autoscaling")
