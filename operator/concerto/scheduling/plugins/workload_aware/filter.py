"""WorkloadAware: the node has CPUs for a pod with a workload type. Source: docs/references.md, "CPU placement"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import FilterDefaults, Query
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.columns import Bools, Ints, Rows
from concerto.scheduling.state.cpus import InvalidPinningRequest, Workload


class WorkloadAware(FilterDefaults):
    """The allocator finds CPUs for the pod's threads there. Pods without a workload type are never asked about."""

    name: ClassVar[str] = "WorkloadAware"
    for_pinned_pods: ClassVar[bool] = True
    requeue_on: ClassVar[Change] = Change.NODE | Change.CPUS

    def feasible(self, query: Query, rows: Rows) -> Bools:
        """Rows whose CPUs are known and have room, and whose agents answer."""
        names = query.names(rows)
        asked, cpus = query.workload, query.cluster.cpus
        if asked is None:
            return np.ones(len(names), dtype=np.bool_)
        if isinstance(asked, InvalidPinningRequest):
            return np.zeros(len(names), dtype=np.bool_)
        placeable = np.array(
            [not cpus.is_avoided(name) and cpus.place(name, asked) is not None for name in names], dtype=np.bool_
        )
        return placeable & self._leaves_requests(query, rows)

    @staticmethod
    def _leaves_requests(query: Query, rows: Rows) -> Bools:
        """Whether the CPUs that the pod would keep from others are not needed for the requests of the others."""
        asked, cluster = query.workload, query.cluster
        assert isinstance(asked, Workload)
        kept = np.array(
            [1000 * cluster.cpus.exclusive_count(name, asked) for name in query.names(rows)], dtype=np.int64
        )
        free = cluster.resources.free(("cpu",), rows)[0] - cluster.exclusive.beyond_requests[rows]
        enough: Bools = kept <= np.maximum(free, query.pod.shape.requests.get("cpu", 0))
        return enough

    def reasons(self, query: Query, rows: Ints) -> Mapping[str, int]:
        """What is wrong with the pod; or no topology, a silent agent, no room."""
        asked, cpus = query.workload, query.cluster.cpus
        names = query.names(rows)
        if isinstance(asked, InvalidPinningRequest):
            return {asked.problem: len(names)}
        assert asked is not None, "pods without a workload type are let pass everywhere"
        threads = "a best-effort pod" if asked.kind == "best-effort" else f"{asked.threads} {asked.kind} threads"
        found: Counter[str] = Counter()
        for name in names:
            if not cpus.is_known(name):
                found["node(s) had no NodeCPUTopology"] += 1
            elif cpus.is_avoided(name):
                found["node(s) had an agent that did not prepare a pod's CPUs in time, or runs without --pinning"] += 1
            elif cpus.place(name, asked) is None:
                found[f"node(s) had too few free CPUs for {threads}"] += 1
            else:
                found[f"node(s) had too few CPUs that no other pod requests, to give {threads} CPUs of their own"] += 1
        return found
