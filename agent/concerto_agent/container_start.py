"""Which CPUs a container is created with, where the runtime asks before it creates one. No I/O.

The set is the one that cgroup files would get a moment later, so that there is nothing left to correct. Where a
container takes over its pod's set (kubelet's policy ``none``), nothing is said of containers of unbound pods: their
pod's cgroup is right before they are there, and a set of their own could be too wide for it when it is written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from concerto_agent.cpusets import Grant, KubeletRule, Numbers, PodCgroups

StartResult = Literal["Bound", "Shared", "Inherited", "LeftToKubelet", "Unknown"]
"""Bound: the CPUs of the pod's binding. Shared: those of pods without one. Inherited: what its pod's cgroup has, or
what kubelet asks for. LeftToKubelet: kubelet's static CPU manager assigned CPUs to it. Unknown: its pod's cgroup is not
there, or what kubelet decides is not known."""


@dataclass(frozen=True)
class NewContainer:
    """A container that is about to be created, or that kubelet updates.

    Attributes:
        pod_uid: its pod.
        name: as in the pod's spec.
        asked: CPUs that kubelet asks for; empty where it leaves them open.
        exists: it was created before. With an update the runtime then writes the set again that it remembers, unless
            it is given another.
    """

    pod_uid: str
    name: str
    asked: Numbers = frozenset()
    exists: bool = False


@dataclass(frozen=True)
class StartCpus:
    """What a container is created with.

    Attributes:
        result: why.
        cpus: CPUs; empty: they stay as they are without us.
        mems: memory nodes, likewise.
    """

    result: StartResult
    cpus: Numbers = frozenset()
    mems: Numbers = frozenset()


def choose_start_cpus(
    pod: PodCgroups,
    container: NewContainer,
    grants: Mapping[str, Grant],
    rule: KubeletRule,
    blocked: Collection[str],
) -> StartCpus:
    """The cpuset of a container whose pod's cgroups are as the grants say.

    Args:
        pod: its pod's cgroups.
        container: the container.
        grants: all grants of the node, by pod UID.
        rule: kubelet's.
        blocked: UIDs of bound pods whose CPUs others can't be moved from: these pods do not get them yet.
    """
    if not rule.known:
        return StartCpus("Unknown")
    if container.asked in rule.exclusive.get(container.pod_uid, ()):
        return StartCpus("LeftToKubelet")
    own, shared = pod.cpusets[pod.path], rule.shared_by_default(pod.limit.effective_cpus)
    inherited = StartCpus("Inherited")
    if container.exists and not container.asked:
        cpus = shared if rule.containers_only else own.effective_cpus
        inherited = StartCpus("Inherited", cpus, frozenset() if rule.mems else own.effective_mems)
    grant = None if container.pod_uid in blocked else grants.get(container.pod_uid)
    if grant is not None and (not grant.claim.containers or container.name in grant.claim.containers):
        chosen = StartCpus("Bound", grant.claim.cpus, frozenset() if rule.mems else pod.memory_of(grant.claim))
    else:
        # Not even the CPUs that its own pod keeps: they are for other containers of the pod
        kept = frozenset[int]().union(*(each.kept for each in grants.values()))
        if grant is None and not (kept and rule.containers_only):
            return inherited
        chosen = StartCpus("Shared", shared - kept, inherited.mems)
    # v1 refuses a container whose set is not within its pod's, and kubelet would have to start it again. A pod's set
    # is made wider for containers that its binding is not for when they have cgroups: before they start
    fits = chosen.cpus <= own.effective_cpus and chosen.mems <= own.effective_mems
    return chosen if chosen.cpus and fits else inherited
