"""WorkloadAware: the node has CPUs for a pod with a workload type. Source: docs/references.md, "CPU placement"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from concerto.api.cpulist import format_cpu_list
from concerto.api.podreservation import Assignment, Pin
from concerto.capacity.kinds.cost import cpu_in_words
from concerto.pinning.topology import bits
from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Codes, Ints, Rows
from concerto.scheduling.state.cpus import InvalidPinningRequest, Workload, workload_of

_INVALID, _UNKNOWN, _AVOIDED, _TOO_FEW, _REQUESTED, _NOT_INSTALLED, _NOT_PINNING = range(1, 8)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks of nodes' CPUs.

    Attributes:
        query: the pod and its cluster.
        workload: threads and their kind, or what is wrong with the pod's labels.
    """

    query: Query
    workload: Workload | InvalidPinningRequest


def ask(query: Query) -> Asked | None:
    """What the pod asks under its profile; None for pods without a workload type."""
    workload = workload_of(query.pod, query.settings.workload_aware)
    return None if workload is None else Asked(query, workload)


class WorkloadAware(FilterDefaults):
    """The allocator finds CPUs for the pod's threads there. Pods without a workload type are not concerned."""

    name: ClassVar[str] = "WorkloadAware"
    refusals: ClassVar[tuple[str, ...]] = (
        "pod has labels that name no workload",
        "node(s) had no NodeCPUTopology",
        "node(s) had an agent that did not prepare a pod's CPUs in time",
        "node(s) had too few free CPUs",
        "node(s) had too few CPUs that no other pod requests",
        "node(s) can't give the pod CPUs of its own, as the operator runs without --controllers=pinning (install "
        "manifests/components/pinning, or remove the pod's label concerto.dev/workload-type)",
        "node(s) had an agent that runs without --pinning",
    )
    resolvable: ClassVar[frozenset[int]] = frozenset({_TOO_FEW, _REQUESTED})
    requeue_on: ClassVar[Change] = Change.NODE | Change.CPUS

    def prepare(self, query: Query) -> Asked | None:
        """The workload that the pod's labels name."""
        return ask(query)

    def check(self, state: Asked, rows: Rows) -> Codes:
        """Rows pass whose CPUs are known and have room, and whose agents answer."""
        names, asked = state.query.names(rows), state.workload
        if isinstance(asked, InvalidPinningRequest):
            return np.full(len(names), _INVALID, dtype=np.int8)
        codes: Codes = np.array([self._check_one(state, name, asked) for name in names], dtype=np.int8)
        codes[(codes == 0) & ~self._leaves_requests(state.query, asked, rows)] = _REQUESTED
        return codes

    @staticmethod
    def _check_one(state: Asked, name: str, asked: Workload) -> int:
        cpus = state.query.cluster.cpus
        if not cpus.is_pinning(name):
            return _NOT_PINNING
        if cpus.place(name, asked) is not None:
            return _AVOIDED if cpus.is_avoided(name) else 0
        if not cpus.is_known(name):
            return _UNKNOWN if cpus.followed else _NOT_INSTALLED
        return _AVOIDED if cpus.is_avoided(name) else _TOO_FEW

    @staticmethod
    def _leaves_requests(query: Query, asked: Workload, rows: Rows) -> Bools:
        """Whether the CPUs that the pod would keep from others are not needed for the requests of the others."""
        cluster = query.cluster
        kept = np.array(
            [1000 * cluster.cpus.exclusive_count(name, asked) for name in query.names(rows)], dtype=np.int64
        )
        free = cluster.resources.free(("cpu",), rows)[0] - cluster.exclusive.beyond_requests[rows]
        enough: Bools = kept <= np.maximum(free, query.pod.shape.requests.get("cpu", 0))
        return enough

    def no_node_helps(self, state: Asked) -> bool:
        """The pod's labels name no workload, or no pod gets CPUs of its own on any node."""
        return isinstance(state.workload, InvalidPinningRequest) or not state.query.cluster.cpus.followed

    def reasons(self, state: Asked, rows: Ints, codes: Codes) -> Mapping[str, int]:
        """What is wrong with the pod; or no topology, a silent agent, no room for so many threads."""
        asked = state.workload
        if isinstance(asked, InvalidPinningRequest):
            cost = state.query.cost
            if not asked.lacks_request or cost is None or not cost.known:
                return {asked.problem: len(rows)}
            return {f"{asked.problem} (pods of its kind use {cpu_in_words(cost.share)} on average)": len(rows)}
        threads = "a best-effort pod" if asked.kind == "best-effort" else f"{asked.threads} {asked.kind} threads"
        sentences = {
            _UNKNOWN: self.refusals[_UNKNOWN - 1],
            _AVOIDED: self.refusals[_AVOIDED - 1],
            _TOO_FEW: f"node(s) had too few free CPUs for {threads}",
            _REQUESTED: (f"node(s) had too few CPUs that no other pod requests, to give {threads} CPUs of their own"),
            _NOT_INSTALLED: self.refusals[_NOT_INSTALLED - 1],
            _NOT_PINNING: self.refusals[_NOT_PINNING - 1],
        }
        counts = np.bincount(codes, minlength=_NOT_PINNING + 1).tolist()
        return {sentence: counts[code] for code, sentence in sentences.items() if counts[code]}

    def reserve(self, state: Asked, assignment: Assignment) -> Assignment:
        """With the CPUs that the pod gets there; its binding has its name, as a pod has one at most."""
        assert isinstance(state.workload, Workload), "no node passes for a request that is not valid"
        placement = state.query.cluster.cpus.place(assignment.node, state.workload)
        assert placement is not None, "the filter let the node pass"
        cpus, mems = format_cpu_list(bits(placement.cpus)), format_cpu_list(placement.mems)
        return replace(assignment, pin=Pin(cpus, mems, placement.level, assignment.name))
