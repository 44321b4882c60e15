"""What `concerto explain` says of the gang of a pod."""

from __future__ import annotations

from concerto.api.pod import PodView
from concerto.api.podgroup import PodGroup
from concerto.kube import KubeError, NotFound, Session
from concerto.kube.resources import POD_GROUPS
from concerto.scheduling.gangs.gang import NotReady, gang_of
from concerto.scheduling.state.cluster import ClusterState


async def read_gang(session: Session, cluster: ClusterState, pod: PodView) -> list[str]:
    """Sentences about the pod's PodGroup.

    Args:
        session: the way to the API server.
        cluster: the cluster with all other pods; the PodGroup and the pod are added to its groups.
        pod: the pod.
    """
    if not pod.group or pod.node_name:
        return []
    try:
        raw = await session.get(POD_GROUPS.path(pod.namespace, pod.group))
        cluster.pod_groups.set_group(PodGroup.from_raw(raw))
    except NotFound:
        pass  # it waits for it
    except KubeError as error:
        return [f"PodGroup {pod.group} cannot be read: {error}"]
    return sentences(cluster, pod)


def sentences(cluster: ClusterState, pod: PodView) -> list[str]:
    """What the pod's gang waits for, and with how many others it is placed."""
    cluster.pod_groups.set_pod(pod)
    gang = gang_of(cluster, pod)
    if gang is None:
        return []
    if isinstance(gang, NotReady):
        return [f"{gang.message[:1].upper()}{gang.message[1:]}"]
    waiting = f"{len(gang.members)} pods of PodGroup {pod.group} that wait"
    return [f"Of the {waiting}, {gang.needed} are placed at once, or none is. What follows is about this pod alone"]
