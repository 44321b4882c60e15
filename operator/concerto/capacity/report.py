"""What the pipeline reports of N nodes after each batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from concerto.api.nodecapacity import CapacityMode

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

MODES: tuple[CapacityMode, ...] = ("Warmup", "Quiet", "Slots")
"""The modes that the codes in ``CapacityReport.mode`` stand for."""
WARMUP, QUIET, SLOTS = range(3)

WARMUP_BATCHES = 3
"""Batches to fold before a node's numbers are more than a first guess (docs/references.md, "Capacity signal")."""


@dataclass(frozen=True)
class CapacityReport:
    """The state of N nodes after a batch. The arrays belong to the report: nothing changes them later.

    A node without a valid sample in the batch (``fresh`` False) keeps the numbers of the batch before.

    Attributes:
        now: the time passed to ``fold``, seconds.
        fresh: (N,) whether this batch holds a valid sample of the node. Only then is there something new to publish.
        batches: (N,) batches folded so far.
        mode: (N,) index into MODES.
        capacity: (N,) pods it can take now on top of ``pods``, in [-pods, allocatable - pods]; below 0 by how many pods
            it runs too many.
        room: (N,) pods it could take one after the other, by what is believed of the node; at least ``capacity``.
        signal: (N,) capacity signal k.
        baseline: (N,) signal without pods, b.
        per_pod_cost: (N,) signal units one pod takes, c: before allowances capacity is k / c, or b / c - n.
        usage: (N, m) smoothed y; NaN for a resource that was never measured.
        non_pod: (N, m) usage outside of pods in this batch; NaN where it is unknown.
        base: (N, m) estimated usage without pods.
        cost: (N, m) estimated usage one pod adds.
        settle_time: (N,) seconds after which a new pod's load shows, as learned.
        pods: (N,) n.
        young: (N,) pods younger than ``settle_time``.
        over_provision: (N,) allowance contained in ``capacity``.
        large: the large pods of each node, UID to the share of the node's CPUs that the pod wants.
        demand: (N,) mean tasks that ran or waited for a CPU during the batch, per CPU.
        demand_source: (N,) index into DEMAND_SOURCES: how ``demand`` was measured.
        pods_wanting: (N,) mean pods over some ten seconds that computed, or waited for a CPU altogether, per CPU; NaN
            if unknown.
        cpu_used: (N,) CPU utilisation over the same time; NaN if unknown.
        pod_share: (N,) share of the node's CPUs that one regular pod takes while it lives.
        window: (N,) pods that the node should run, by the control law.
        tokens: (N,) pods that may start now by the law's pace; NaN while unknown.
        spare: (N,) share of the node's CPUs that is left for regular pods.
        system_cpu: (N,) share of the node's CPUs that it takes for itself; NaN while unknown.
        cpu_for_pods: (N,) CPU time that it took for pods' starts and ends so far, share of its CPUs times seconds.
        reject: (N,) Pronto's reject-job signal.
        local_moments: (N, m, m) second moment of the node's own model. This is published, not the merged view.
        samples: (N, m) valid samples in this batch.
        dropped: (N, m) samples dropped since the start: not finite, or outside [0, 1].
    """

    now: float
    fresh: Bools
    batches: Ints
    mode: Ints
    capacity: Floats
    room: Floats
    signal: Floats
    baseline: Floats
    per_pod_cost: Floats
    usage: Floats
    non_pod: Floats
    base: Floats
    cost: Floats
    settle_time: Floats
    pods: Ints
    young: Ints
    over_provision: Floats
    large: tuple[Mapping[str, float], ...]
    demand: Floats
    demand_source: Ints
    pods_wanting: Floats
    cpu_used: Floats
    pod_share: Floats
    window: Floats
    tokens: Floats
    spare: Floats
    system_cpu: Floats
    cpu_for_pods: Floats
    reject: Bools
    local_moments: Floats
    samples: Ints
    dropped: Ints
