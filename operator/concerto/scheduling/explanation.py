"""Why there: what each filter and each score says of every node for one pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.cycle import query_for
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.framework import Filter
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.measured_capacity import BY_REQUESTS, MEASURED


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
        by_allocation: whether metrics of so few nodes are known that requests decide in the place of load.
    """

    node: str
    refused_by: str
    reason: str
    basis: str
    total: float | None
    scores: dict[str, float | None]
    by_allocation: bool = False


def explain(cluster: ClusterState, pod: PodView, profile: Profile, now: float) -> list[NodeVerdict]:
    """What a cycle would see now, best node first, then those that are refused, each by name.

    Args:
        cluster: the cluster without the pod; only read.
        pod: the pod, as if it waited.
        profile: its profile.
        now: seconds since the epoch.
    """
    query = query_for(cluster, pod, profile, now)
    template = Evaluation(query, profile, ())
    totals = template.totals()
    rows = np.flatnonzero(cluster.nodes.exists[: cluster.size])
    by_plugin = template.by_plugin(rows)
    basis = {int(MEASURED): "Capacity", int(BY_REQUESTS): "Requests"}
    verdicts = []
    for i, row in enumerate(rows):
        refused_by, reason = "", ""
        if not template.feasible[row]:
            refused_by, reason = _refusal(template.filters, row)
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
                template.by_allocation,
            )
        )
    return sorted(verdicts, key=lambda v: (v.total is None, -(v.total or 0.0), v.node))


def _refusal(filters: Iterable[tuple[Filter, Any]], row: np.int64) -> tuple[str, str]:
    rows = np.array([row])
    for plugin, state in filters:
        codes = plugin.check(state, rows)
        if codes[0]:
            return plugin.name, ", ".join(plugin.reasons(state, rows, codes))
    return "", ""
