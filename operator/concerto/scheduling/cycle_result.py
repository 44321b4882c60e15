"""What a scheduling cycle decides: placements, and pods without a node."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podgroup import GroupKey
from concerto.api.podreservation import Assignment
from concerto.scheduling.evaluation import Evaluation, Ranked
from concerto.scheduling.reasons import Diagnosis
from concerto.scheduling.state.measured_capacity import MEASURED

RANKED = 3
"""Nodes whose scores a decision keeps."""


@dataclass(frozen=True)
class Decision:
    """A pod and where it goes; assumed in the cluster already.

    Attributes:
        pod: the pod.
        assignment: the placement, as it is to be stored.
        score: the node's weighted score, 0 to 100.
        feasible: how many nodes were feasible.
        top: the node and the next best ones, with the scores that each plugin gave them.
        by_allocation: whether too few nodes were measured for every score by load, so that requests decided instead.
    """

    pod: PodView
    assignment: Assignment
    score: float
    feasible: int
    top: tuple[Ranked, ...] = ()
    by_allocation: bool = False


@dataclass
class Failure:
    """Why pods of one signature found no node.

    Attributes:
        alike: the signature, and what else decides their answers.
        diagnosis: why.
        evaluation: what it was found out by; None after an error.
        error: what went wrong in a plugin.
    """

    alike: Hashable
    diagnosis: Diagnosis
    evaluation: Evaluation | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class Unschedulable:
    """A pod for which there is no node now, and why; alike pods share one diagnosis.

    Attributes:
        pod: the pod.
        diagnosis: why.
        always_considered: whether nodes are drained for it. It is then among the heads of every cycle; a cycle without
            it would give those nodes away.
        error: what went wrong in a plugin; None where filters refused every node.
    """

    pod: PodView
    diagnosis: Diagnosis
    always_considered: bool = False
    error: Exception | None = None


@dataclass
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: placements, in the order in which they were decided; at most the limit.
        unschedulable: pods without a node. The first ones of a gang that was not placed stand for all of its pods.
        has_more: whether it stopped before it had looked at all pods: at the limit of decisions, or out of time.
        out_of_time: whether it stopped because its time was over.
        put_off: whether pods are being counted for one that waits, which is to be looked at in the next cycle.
        abstentions: by (scheduler name, plugin), nodes of which it lacked metrics; a node counts once
            for each signature.
        look_again_at: when a node may be given the work of a pod that is without a node now, seconds since the epoch,
            though nothing else has changed; infinity if that is not what such pods wait for.
        look_again_at_gangs: gangs for which looking took too long, and when they may be looked at again, seconds since
            the epoch.
        postponed: a pod of a gang for which there was no room or time left; it is to be the first of the next cycle.
        held_until: until when room is held for a gang, seconds since the epoch; infinity if none holds any.
        released: whether room was held until now, so that pods that found none may find some.
        gangs: what became of each gang that was looked at: None, or why none of its pods was placed.
        turns: by priority, the namespace of the last pod that was looked at (``queue.Queue.note_turns``).
    """

    decisions: list[Decision] = field(default_factory=list)
    unschedulable: list[Unschedulable] = field(default_factory=list)
    has_more: bool = False
    out_of_time: bool = False
    put_off: bool = False
    abstentions: Counter[tuple[str, str]] = field(default_factory=Counter)
    look_again_at: float = math.inf
    look_again_at_gangs: dict[GroupKey, float] = field(default_factory=dict)
    postponed: PodView | None = None
    held_until: float = math.inf
    released: bool = False
    gangs: dict[GroupKey, Diagnosis | None] = field(default_factory=dict)
    turns: dict[int, str] = field(default_factory=dict)


def build_assignment(pod: PodView, evaluation: Evaluation, row: int) -> Assignment:
    """The placement of the pod on the node of that row, without what filters give it there."""
    query, cluster = evaluation.query, evaluation.query.cluster
    rows = slice(row, row + 1)
    measured = query.basis[row] == MEASURED
    cost = cluster.kinds.recorded(query.cost, row) if measured and query.cost is not None else None
    available = query.capacity(rows) if measured else query.pods_by_requests(rows)
    node = cluster.names[row]
    return Assignment(
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        node=node,
        basis="Capacity" if measured else "Requests",
        node_capacity_resource_version=cluster.ledger.nodes.resource_version(node),
        available=float(available[0]),
        reservation=query.reservation if query.reserved[row] > 0 else None,
        cost=cost,
        pod_group=pod.group if query.starts_together else "",
    )


def build_decision(pod: PodView, evaluation: Evaluation, row: int, score: float) -> Decision:
    """The decision to place the pod on the node of that row, by the query that the evaluation answers.

    Args:
        pod: the pod.
        evaluation: of pods like it.
        row: of the node.
        score: the node's weighted score, 0 to 100.
    """
    return Decision(
        pod,
        evaluation.reserve(build_assignment(pod, evaluation, row)),
        score,
        int(np.count_nonzero(evaluation.feasible)),
        evaluation.top(row, RANKED),
        evaluation.by_allocation,
    )
