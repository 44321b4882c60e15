"""Why there: what each filter and each score says of every node for one pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.capacity.kinds.cost import cpu_in_words, memory_in_words, significant
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.framework import Filter
from concerto.scheduling.preemption.preemption import Preemption
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import query_for
from concerto.scheduling.reasons import not_named
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.measured_capacity import BY_REQUESTS, MEASURED

_MAX_LOOKS = 100
"""Nodes of which it is found out what preemption would do: some milliseconds each."""


@dataclass(frozen=True)
class NodeVerdict:
    """One node.

    Attributes:
        node: its name.
        refused_by: the first filter that refuses it; empty if it is feasible.
        reason: why that filter does.
        basis: Capacity, Requests or Avoided: what it takes part by.
        total: its weighted score, 0 to 100; None if it is not feasible.
        scores: by plugin; None where it abstains, and where requests decide in its place.
        victims: how many pods of lower priority would have to be evicted for the pod; None if that is no way.
        by_allocation: whether metrics of so few nodes are known that requests decide in the place of load.
        left: CPU and memory that are not committed by what pods cost; empty where pods are counted as units.
    """

    node: str
    refused_by: str
    reason: str
    basis: str
    total: float | None
    scores: dict[str, float | None]
    by_allocation: bool = False
    left: str = ""
    victims: int | None = None


def explain(cluster: ClusterState, pod: PodView, profile: Profile, now: float) -> list[NodeVerdict]:
    """What a cycle would see now, best node first, then those that are refused, each by name.

    Args:
        cluster: the cluster without the pod; only read.
        pod: the pod, as if it waited.
        profile: its profile.
        now: seconds since the epoch.
    """
    query = query_for(cluster, pod, profile, now)
    evaluation = Evaluation(query, profile, ())
    totals = evaluation.totals()
    rows = np.flatnonzero(cluster.nodes.exists[: cluster.size])
    by_plugin = evaluation.by_plugin(rows)
    basis = {int(MEASURED): "Capacity", int(BY_REQUESTS): "Requests"}
    preemption = Preemption(cluster, profile, pod, now)
    looks = count(1)
    verdicts = []
    for i, row in enumerate(rows):
        refused_by, reason = "", ""
        if not evaluation.feasible[row]:
            refused_by, reason = _refusal(evaluation.filters, row, cluster.names[row])
        elif totals[row] == -np.inf:
            refused_by, reason = "Reservation", "a standing reservation holds a unit for the pod elsewhere"
        verdicts.append(
            NodeVerdict(
                cluster.names[row],
                refused_by,
                reason,
                basis.get(int(query.basis[row]), "Avoided"),
                None if refused_by else float(totals[row]),
                {} if refused_by else {n: None if np.isnan(s[i]) else float(s[i]) for n, s in by_plugin.items()},
                evaluation.by_allocation,
                _left(cluster, int(row)) if query.cost is not None and query.basis[row] == MEASURED else "",
                preemption.victims_on(pod, cluster.names[row]) if refused_by and next(looks) <= _MAX_LOOKS else None,
            )
        )
    return sorted(verdicts, key=lambda v: (v.total is None, -(v.total or 0.0), v.node))


def cost_in_words(cluster: ClusterState, pod: PodView) -> str:
    """What the pod is taken to cost, and from how many pods that is known; empty where pods are counted as units."""
    if not (cluster.kinds and pod.counted):
        return ""
    cost = cluster.kinds.cost_of(pod)
    cpu, memory = cpu_in_words(cost.share), memory_in_words(cluster.kinds.loads.memory_of(cost))
    if not cost.known:
        return f"Nothing is known of pods of its kind, so it is taken to use {cpu} CPU and {memory} of memory"
    work = "" if cost.work is None else f", {significant(cost.work):g} core-seconds"
    pods = f"{max(1.0, cost.pods):.0f} pods of its kind that {'have ended' if cost.basis == 'Ended' else 'run'}"
    return f"Takes {cpu} CPU{work} and {memory} of memory, by {pods}"


def _left(cluster: ClusterState, row: int) -> str:
    cpu, memory = cluster.kinds.left(row)
    signs = ["-" if amount < 0 else "" for amount in (cpu, memory)]
    return f"{signs[0]}{cpu_in_words(abs(cpu))} CPU, {signs[1]}{memory_in_words(abs(memory))}"


def _refusal(filters: Iterable[tuple[Filter, Any]], row: np.int64, node: str) -> tuple[str, str]:
    rows = np.array([row])
    filters = list(filters)
    for plugin, state in filters:
        if refusal := plugin.pod_refusal(state):
            return plugin.name, refusal
    for plugin, state in filters:
        names = plugin.named_nodes(state)
        if names is not None and node not in names:
            return plugin.name, not_named(plugin)
    for plugin, state in filters:
        codes = plugin.check(state, rows)
        if codes[0]:
            reason = ", ".join(plugin.reasons(state, rows, codes))
            detail = plugin.detail(state, int(row))
            return plugin.name, f"{reason}: {detail}" if detail else reason
    return "", ""
