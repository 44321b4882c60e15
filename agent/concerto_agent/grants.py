"""Which claims a node honours: the operator's rule, held once more where it counts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from concerto.api.cpulist import format_cpu_list
from concerto.api.nodecputopology import CPUTopology
from concerto.api.podcpubinding import BindingKey
from concerto_agent.cpusets import Claim, Grant, KubeletRule, Numbers, Refusal


def resolve(
    claims: Iterable[Claim], topology: CPUTopology, rule: KubeletRule, limits: Mapping[str, Numbers] | None = None
) -> tuple[dict[str, Grant], dict[BindingKey, Refusal]]:
    """Which claims go together, from the oldest to the youngest: the operator's rule, held once more where it counts.

    The operator grants nothing twice, but its statuses reach a node one after the other.

    Args:
        claims: of the node.
        topology: of the node.
        rule: kubelet's.
        limits: CPUs of the cgroups above the pods', by pod UID; empty or None: not known, so all of the node.

    Returns:
        The grants by pod UID, and why the others have no grant.
    """
    if not rule.known:
        text = "kubelet's cpu_manager_state can't be read, so any cpuset could be kubelet's: set --kubelet-state."
        return {}, {claim.key: Refusal("KubeletUnknown", text) for claim in claims}
    grants: dict[str, Grant] = {}
    refusals: dict[BindingKey, Refusal] = {}
    kubelets = rule.all_exclusive
    for_pods = frozenset[int]().union(*limits.values()) if limits else topology.cpus
    shared = (topology.cpus & for_pods) - kubelets
    for claim in sorted(claims, key=lambda c: (c.created, *c.key)):
        kept = topology.closure(claim.cpus, claim.level)
        refusal = _refusal(claim, kept, grants, topology.cpus, kubelets, rule)
        has = (limits or {}).get(claim.pod_uid, for_pods)
        if refusal is None and not claim.cpus & has:
            # On v2 the pod would get all that there is, with what is kept for others
            text = f"Pods of this node have CPUs {format_cpu_list(has)} and none of CPUs {format_cpu_list(claim.cpus)}"
            text += ": the cgroup above the pod's is kept off these. Bind the pod to others."
            refusal = Refusal("CPUsNotForPods", text)
        if refusal is None and kept and not shared - kept:
            refusal = Refusal("SharedPoolEmpty", "No CPU of the node would be left for pods without a binding.")
        if refusal is None:
            grants[claim.pod_uid] = Grant(claim, kept)
            shared -= kept
        else:
            refusals[claim.key] = refusal
    return grants, refusals


def _refusal(
    claim: Claim, kept: Numbers, grants: Mapping[str, Grant], online: Numbers, kubelets: Numbers, rule: KubeletRule
) -> Refusal | None:
    if missing := claim.cpus - online:
        return Refusal("CPUsGone", f"CPUs {format_cpu_list(missing)} are no longer online on this node.")
    if claim.pod_uid in rule.exclusive:
        text = "kubelet's static CPU manager has assigned CPUs to the pod and controls its containers."
        return Refusal("KubeletConflict", text)
    if met := (claim.cpus | kept) & kubelets:
        text = f"CPUs {format_cpu_list(met)} are held by pods of kubelet's static CPU manager."
        return Refusal("KubeletExclusive", text)
    for other in grants.values():
        if other.claim.pod_uid == claim.pod_uid or kept & other.claim.cpus or other.kept & claim.cpus:
            name = "/".join(other.claim.key)
            return Refusal("Conflict", f"The older PodCPUBinding {name} still holds some of these CPUs on the node.")
    return None
