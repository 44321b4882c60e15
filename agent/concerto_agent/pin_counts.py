"""Numbers of a node's pins, for its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from concerto_agent.container_start import StartResult
from concerto_agent.cpuset_writer import CpusetWriter
from concerto_agent.cpusets import Claim, Refusal
from concerto_agent.runtime_plugin import RuntimePlugin

PinState = Literal["Applied", "Waiting", "NotApplied", "Refused"]
"""Applied: all containers have the CPUs. Waiting: no container runs, or not looked at yet. NotApplied: the pod or
others can't be moved. Refused: the binding is not applied on this node."""


_NONE_CREATED = dict.fromkeys(get_args(StartResult), 0)


@dataclass(frozen=True)
class PinCounts:
    """The pins of a node.

    Attributes:
        cpus: number of online CPUs by pool (``status.pools`` of NodeCPUTopology); empty where they can't be read.
        pods: number of bound pods by `PinState`.
        repairs: pods whose cpusets somebody else had changed and that were set again, since the start.
        late: pods whose containers ran on other CPUs when their binding came, since the start.
        created: number of containers that the runtime created, by what NRI gave them, since the start; 0 of each where
            NRI is not used.
        registrations: times that the runtime took the plugin, since the start.
    """

    cpus: Mapping[str, int]
    pods: Mapping[str, int]
    repairs: int
    late: int = 0
    created: Mapping[str, int] = field(default_factory=_NONE_CREATED.copy)
    registrations: int = 0


def count_pins(
    cpusets: CpusetWriter, claims: Iterable[Claim], online: frozenset[int], plugin: RuntimePlugin | None = None
) -> PinCounts:
    """The numbers as they are now.

    Args:
        cpusets: what was written.
        claims: the validated bindings of the node.
        online: the node's CPUs; empty where they can't be read.
        plugin: of the container runtime; None: it is not asked.
    """
    pools = cpusets.held().pools(online, cpusets.kubelet_exclusive)
    cpus = {
        "allocated": len(pools.allocated),
        "kept": len(pools.kept),
        "kubeletExclusive": len(pools.kubelet_exclusive),
        "shared": len(pools.shared),
    }
    states = Counter(dict.fromkeys(get_args(PinState), 0))
    states.update(_state(cpusets, claim) for claim in claims)
    counts = PinCounts(cpus if online else {}, states, cpusets.repairs, cpusets.late)
    if plugin is None:
        return counts
    return replace(counts, created=_NONE_CREATED | plugin.created, registrations=plugin.registrations)


def _state(cpusets: CpusetWriter, claim: Claim) -> PinState:
    standing = cpusets.standing(claim)
    if standing is None:
        return "Waiting"
    if isinstance(standing, Refusal):
        return "Refused"
    outcome = standing[1]
    if outcome.intruder or outcome.error:
        return "NotApplied"
    if outcome.cpus is None or (outcome.exact and not outcome.started):
        return "Waiting"
    return "Applied" if outcome.exact else "NotApplied"
