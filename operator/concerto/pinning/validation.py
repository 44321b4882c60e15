"""Which of the bindings of a node hold their CPUs: a function of the objects alone, so that a restart changes nothing.

Bindings are looked at from the oldest to the youngest; each that can be had beside those before it is Validated. What
an older one is edited to can take CPUs from a younger one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from concerto.api.cpulist import format_cpu_list
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.podcpubinding import BindingKey, Level, PodCPUBinding, ResourceStatus
from concerto.pinning.conflicts import Claim, conflict, shared_pool
from concerto.pinning.memory import MemoryNodes
from concerto.pinning.topology import TopologyIndex, bits, to_mask

_MAX_NAMED = 32
"""No more numbers are written one by one: a message is for people."""
_LEVEL_NAMES: dict[Level, str] = {"Core": "core", "Socket": "socket", "NUMA": "memory node"}


@dataclass(frozen=True)
class BoundPod:
    """The pod that a binding names.

    Attributes:
        uid: its UID.
        node: where it is; empty while it is on no node.
        static: whether kubelet runs it from a file of the node.
        memory_bytes: its memory limit, else its request; 0 without either.
        containers: names of its containers, init containers among them; None where they are not known.
        hugepages: its huge pages, bytes by resource (``hugepages-2Mi``).
    """

    uid: str
    node: str
    static: bool = False
    memory_bytes: int = 0
    containers: frozenset[str] | None = None
    hugepages: Mapping[str, int] = field(default_factory=dict)

    @property
    def memory_needs(self) -> dict[str, int]:
        """Memory and huge pages, bytes by resource."""
        return {"memory": self.memory_bytes, **self.hugepages}


@dataclass(frozen=True)
class Verdict:
    """How a binding stands.

    Attributes:
        status: ``resourceStatus``.
        reason: why, CamelCase.
        message: why, and what to do.
        node: the pod's node; empty while it has none.
        pod_uid: the pod's UID; empty without a pod.
        cpus: the CPUs it holds, as a list; empty unless Validated.
        mems: the memory nodes that its memory comes from, as a list; empty where it is not bound.
        loses_to: the older binding that is in the way.
    """

    status: ResourceStatus
    reason: str
    message: str
    node: str = ""
    pod_uid: str = ""
    cpus: str = ""
    mems: str = ""
    loses_to: BindingKey | None = None


def judge_unplaced(binding: PodCPUBinding, pod: BoundPod | None) -> Verdict:
    """The verdict on a binding whose pod is on no node: it holds nothing."""
    name = f"{binding.namespace}/{binding.pod_name}"
    if pod is None:
        text = f"There is no pod {name} that is pending or running; the binding holds no CPUs until there is one."
        return Verdict("PodNotFound", "PodNotFound", text)
    return Verdict("Pending", "PodNotScheduled", f"Pod {name} has no node yet.", pod_uid=pod.uid)


def judge_node(
    name: str, node: NodeCPUTopology | None, bindings: Iterable[tuple[PodCPUBinding, BoundPod]]
) -> dict[BindingKey, Verdict]:
    """The verdicts on all bindings whose pods are on a node.

    Args:
        name: the node's.
        node: its topology; None without a NodeCPUTopology.
        bindings: all of them, in any order, each with its pod.
    """
    ordered = sorted(bindings, key=lambda each: each[0].age_order)
    if node is None or node.topology is None:
        text = f"NodeCPUTopology {name} has no status that can be used: is the agent of the node running?"
        text += " If it is, the operator's log says what is wrong with the status."
        return {b.key: Verdict("NodeTopologyNotFound", "NoTopology", text, name, pod.uid) for b, pod in ordered}
    index, online = TopologyIndex.build(node.topology), node.topology.cpus
    held: list[tuple[PodCPUBinding, Claim]] = []
    memory = MemoryNodes(node.topology)
    verdicts: dict[BindingKey, Verdict] = {}
    for binding, pod in ordered:
        # First what takes little time: a node may have thousands of bindings, with CPUs that no node has
        if (verdict := _impossible(online, node, binding, pod)) is not None:
            verdicts[binding.key] = verdict
            continue
        claim = Claim(to_mask(binding.cpus), binding.level)
        mems = index.mems(claim.cpus)
        fits = binding.memory != "None" and not memory.too_small_for(mems, pod.memory_needs)
        verdict = _refusal(index, node, binding, claim, held, pod)
        if verdict is None and binding.memory == "Bind" and not fits:
            verdict = Verdict(
                "CPUSetAllocationFailed", "MemoryTooSmall", _too_small(memory, mems, pod, node.name), name, pod.uid
            )
        if verdict is None:
            held.append((binding, claim))
            text = f"CPUSet {brackets(binding.cpus)}, MemSet {brackets(mems if fits else ())}"
            if fits:
                memory.hold(mems, pod.memory_needs)
            elif binding.memory == "Prefer":
                text += f" (not bound: {_too_small(memory, mems, pod, node.name)})"
                mems = frozenset()
            else:
                mems = frozenset()
            verdict = Verdict(
                "Validated", "Validated", f"CPU binding is validated: {text}", name, pod.uid,
                format_cpu_list(binding.cpus), format_cpu_list(mems),
            )  # fmt: skip
        verdicts[binding.key] = verdict
    return verdicts


def _too_small(memory: MemoryNodes, mems: frozenset[int], pod: BoundPod, node: str) -> str:
    gib = 2**30
    resource = memory.too_small_for(mems, pod.memory_needs)
    what = "" if resource == "memory" else f" of {resource}"
    return (
        f"{pod.memory_needs[resource] / gib:.1f} GiB{what} do not fit memory nodes {brackets(mems)} of node {node}, "
        f"where {memory.free(mems, resource) / gib:.1f} GiB are free beside other bound pods"
    )


def _impossible(online: frozenset[int], node: NodeCPUTopology, binding: PodCPUBinding, pod: BoundPod) -> Verdict | None:
    """Why the binding holds nothing, whatever other bindings there are."""
    if pod.static:
        text = (
            f"Pod {binding.namespace}/{binding.pod_name} is a static pod, which kubelet runs from a file "
            "under another UID, so it can't be pinned. Delete this binding, and reserve CPUs for the pod "
            "with spec.reservedCPUs of the NodeCPUTopology."
        )
        return Verdict("Failed", "StaticPod", text, node.name, pod.uid)
    if pod.containers is not None and (unknown := binding.containers - pod.containers):
        text = (
            f"spec.containers names {', '.join(sorted(unknown)[:_MAX_NAMED])}, and pod "
            f"{binding.namespace}/{binding.pod_name} has containers {', '.join(sorted(pod.containers)[:_MAX_NAMED])}."
        )
        return Verdict("Failed", "ContainersNotFound", text, node.name, pod.uid)
    if missing := binding.cpus - online:
        text = f"CPUs {brackets(missing)} are not in NodeCPUTopology {node.name}"
        if node.topology and (offline := missing & node.topology.offline):
            text += f" (switched off: {format_cpu_list(offline)})"
        text += ": bind the pod to CPUs that are."
        return Verdict("InvalidCPUSet", "CPUsNotFound", text, node.name, pod.uid)
    return None


def _refusal(
    index: TopologyIndex,
    node: NodeCPUTopology,
    binding: PodCPUBinding,
    claim: Claim,
    held: list[tuple[PodCPUBinding, Claim]],
    pod: BoundPod,
) -> Verdict | None:
    def refuse(status: ResourceStatus, reason: str, message: str, loses_to: PodCPUBinding | None = None) -> Verdict:
        return Verdict(status, reason, message, node.name, pod.uid, loses_to=loses_to.key if loses_to else None)

    whole = claim.cpus | index.closure(claim.cpus, claim.level)
    if reserved := whole & to_mask(node.pools.reserved):
        text = f"CPUs {brackets(bits(reserved))} of node {node.name} are reserved and never assigned to a pod"
        if not reserved & claim.cpus:
            text += f", nor is a {_LEVEL_NAMES[binding.level]} that they are part of"
        return refuse("InvalidCPUSet", "CPUsReserved", text + ".")
    exclusive = to_mask(node.pools.kubelet_exclusive)
    if met := whole & exclusive:
        text = f"CPUs {brackets(bits(met))} of node {node.name} are held by pods of kubelet's static CPU manager."
        return refuse("CPUSetAllocationFailed", "KubeletExclusive", text)
    for other, its in held:
        if other.pod_name == binding.pod_name and other.namespace == binding.namespace:
            text = f"PodCPUBinding {_name(other)} is older and binds the same pod: delete one of the two."
            return refuse("Failed", "PodBoundTwice", text, other)
        if conflict(index, claim, its):
            met = index.closure(claim.cpus, claim.level) & its.cpus | index.closure(its.cpus, its.level) & claim.cpus
            text = (
                f"CPUs {brackets(bits(met))} of node {node.name} are held by the older PodCPUBinding "
                f"{_name(other)} (exclusiveness {its.level}). This binding is validated again when the older "
                "one is deleted or edited."
            )
            return refuse("CPUSetAllocationFailed", "Conflict", text, other)
    if not shared_pool(index, exclusive, [its for _, its in held] + [claim]) and claim.level != "None":
        text = f"No CPU of node {node.name} would be left for pods without a binding."
        return refuse("CPUSetAllocationFailed", "SharedPoolEmpty", text)
    return None


def _name(binding: PodCPUBinding) -> str:
    return f"{binding.namespace}/{binding.name}"


def brackets(numbers: Iterable[int]) -> str:
    """Numbers as in Stefanakis' events (listing 6.3); more than 32 as ranges."""
    found = sorted(numbers)
    return f"[{' '.join(map(str, found)) if len(found) <= _MAX_NAMED else format_cpu_list(found)}]"
