"""The cost of one more pod of a kind, estimated from what was measured of it or, where that is little, its groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from concerto.api.pod_kind import Kind, is_endless
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.kinds.table import Table

Basis = Literal["Ended", "Running", "Guess"]

PRIOR_SHARE = 1.0
"""Cores that a pod is taken to use while nothing is known of any pod like it."""
MIN_RUNNING_SHARE = 0.3
"""Cores that a pod is taken to use at least while only running pods show what pods like it use."""
_MAY_WAIT_SECONDS = 60.0
"""Seconds for which pods may wait before they compute: what they have used in a longer time counts for more."""
_MARGIN = 0.3
"""What is added to the share of pods that have only begun to run, as part of it."""
_MARGIN_SECONDS = 30.0
_FEW = 5.0
"""Pods that must have ended before their mean work is taken for what the next one costs."""
_MEMORY_DEVIATIONS = 2.0
_MAX_PEAK = 1024.0
"""Cores that a pod uses while it computes, at most: beside much larger numbers a float has no place for others."""
_OWN = 2
"""Groups of a kind before those of its images: the kind, and its workload with those that are called alike."""
_LIKE = 4
"""Groups of a kind whose pods are like it: the kind, its workload, its images in the namespace, its images."""
_PRIOR_WEIGHT = (0.5, 0.5, 0.5, 0.25)
"""By group, pods of evidence that the next wider group counts for."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a pod of a kind takes.

    Attributes:
        share: cores, while it holds its place; stalls left out, what the node does to start and end it included.
        work: CPU time over its life, core-seconds; None if it runs without end, or nobody knows.
        held: seconds for which it holds a place on a node that does not stall it; None as for ``work``.
        memory: bytes; None where unknown.
        pods: pods that this is known from.
        basis: whether pods like it have ended, are running, or nothing is known.
        variance: of the cores that the pod itself uses while it holds its place, cores squared; None where unknown.
        started: CPU time that its start and end cost its node beside ``work``, core-seconds; 0 where unknown.
    """

    share: float
    work: float | None
    held: float | None
    memory: float | None
    pods: float
    basis: Basis
    variance: float | None = None
    started: float = 0.0

    @property
    def known(self) -> bool:
        """Whether any pod like it has shown its load."""
        return self.basis != "Guess"


def significant(value: float, digits: int = 2) -> float:
    """The number as people want it, so that a text with it does not change with every pod that is measured."""
    return float(f"{value:.{digits}g}")


def cpu_in_words(cores: float) -> str:
    """Such as ``340m`` or ``1.5``, to two digits."""
    rounded = significant(cores)
    return f"{rounded:g}" if rounded >= 1.0 else f"{significant(1000.0 * cores):g}m"


def memory_in_words(amount: float) -> str:
    """Such as ``20Mi`` or ``1.5Gi``, to two digits."""
    return f"{significant(amount / 2**20):g}Mi" if amount < 2**30 else f"{significant(amount / 2**30):g}Gi"


UNKNOWN = Cost(PRIOR_SHARE, None, None, None, 0.0, "Guess")


def groups_of(kind: Kind) -> tuple[str, ...]:
    """Keys of the groups that say what a pod of the kind costs: entries of others make no difference."""
    return kind.keys[:_LIKE]


def deciding_groups(table: Table, kind: Kind) -> tuple[str, ...]:
    """Of the kind itself and its workload, the keys of the entries that `estimate` reads beside those of its images."""
    own = [(key, sums) for key in kind.keys[:_OWN] if (sums := table.get(key)) is not None]
    if not own or kind.endless:  # pods that run count as if they had ended, at one time or another
        return tuple(key for key, _ in own)
    if any(sums.of_ended_pods for key in groups_of(kind) if (sums := table.get(key)) is not None):
        return tuple(key for key, sums in own if sums.of_ended_pods)
    return tuple(key for key, sums in own if sums.of_running_pods)[:1]


def without_groups(kind: Kind, others: Collection[str]) -> Kind:
    """The kind as `estimate` sees it if there are no entries of it and its workload but for these."""
    own = (key if key in others else "" for key in kind.keys[:_OWN])
    return Kind((*own, *kind.keys[_OWN:_LIKE]), kind.endless)


def estimate(table: Table, kind: Kind) -> Cost:
    """The cost of one more pod of the kind."""
    groups = [table.get(key) for key in groups_of(kind)]
    if ended := _that_ended(groups):
        if kind.endless:
            lasting = (None if sums is None else _with_lasting(sums) for sums in groups[:_OWN])
            ended = _that_ended([*lasting, *groups[_OWN:]])
        return _from_ended(ended, kind)
    running = next((s for s in groups if s is not None and s.of_running_pods), None)
    return UNKNOWN if running is None else _from_running(running, kind.endless)


def _that_ended(groups: Sequence[KindSums | None]) -> list[tuple[KindSums, float]]:
    """Groups of which pods have ended, from the narrowest to the widest, with the weight of the next wider one."""
    return [(s, w) for s, w in zip(groups, _PRIOR_WEIGHT) if s is not None and s.of_ended_pods]


def _with_lasting(sums: KindSums) -> KindSums:
    """Pods that run without end count as if they had ended, once they have run for a minute on average.

    They may run for years, and meanwhile pods of other workloads with the same images end, which cost something else.
    While many more of them have just started, one that has run for a minute stands for all the minutes that they ran.
    """
    pods, work, held, memory = sums.running, sums.running_work, sums.running_held, sums.running_memory
    if not pods or held < _MAY_WAIT_SECONDS * pods:
        if sums.max_running_held < _MAY_WAIT_SECONDS:
            return sums
        pods = held / _MAY_WAIT_SECONDS
        work, memory = held * sums.max_running_work / sums.max_running_held, pods * sums.max_memory
    if not pods:
        return sums
    # How much running pods differ in memory is not known: the next one is to have room for as much as the largest has
    largest = max(0.0, sums.max_memory - memory / pods) / _MEMORY_DEVIATIONS
    return sums._replace(
        ended=sums.ended + pods,
        work=sums.work + work,
        peak_work=_peak(sums) * (sums.work + work),
        held=sums.held + held,
        memory=sums.memory + memory,
        memory_squared=sums.memory_squared + memory**2 / pods + largest**2 * pods,
    )


def _peak(sums: KindSums) -> float:
    """Cores that pods use while they compute; 0 where unknown."""
    return min(sums.peak_work / max(sums.work, 1e-9), _MAX_PEAK)


def _from_ended(groups: list[tuple[KindSums, float]], kind: Kind) -> Cost:
    share = own_share = work = started = held = memory = deviation = peak = 0.0
    pods = 0.0
    for sums, weight in reversed(groups):  # from the widest group to the kind itself
        mean_work, mean_held, mean_memory = sums.work / sums.ended, sums.held / sums.ended, sums.memory / sums.ended
        spread = math.sqrt(max(0.0, sums.memory_squared / sums.ended - mean_memory**2))
        part = 1.0 if not pods else sums.ended / (sums.ended + weight)
        share += part * ((sums.work + sums.started) / sums.held - share)
        own_share += part * (sums.work / sums.held - own_share)
        work += part * (mean_work - work)
        started += part * (sums.started / sums.ended - started)
        if its_own := _peak(sums):
            peak += (part if peak else 1.0) * (its_own - peak)
        held += part * (mean_held - held)
        memory += part * (mean_memory - memory)
        deviation += part * (spread - deviation)
        pods = max(pods, sums.ended)
    own = groups[0][0]
    if own.ended < _FEW:
        work = max(work, own.max_running_work)
    memory = min(memory + _MEMORY_DEVIATIONS * deviation, max(own.max_memory, memory))
    # One that uses p cores for a part of the time, and none for the rest
    variance = own_share * max(0.0, peak - own_share) if peak else None
    cost = Cost(share, work, held, memory, pods, "Ended", variance, started)
    return replace(cost, work=None, held=None) if kind.endless else cost


def _from_running(sums: KindSums, endless: bool) -> Cost:
    if endless:
        held = sums.running_held / sums.running
        margin = 1.0 + _MARGIN * math.exp(-held / _MARGIN_SECONDS)
        share = margin * sums.running_work / sums.running_held
        return Cost(share, None, None, sums.max_memory, sums.running, "Running")
    # What a pod uses of late is the most that it may come to use over its life, and what it has used so far the least
    so_far = (1.0 + _MARGIN) * sums.max_running_work / max(sums.max_running_held, 1e-3)
    # Pods that wait for longer than any start takes are idle, for example until a signal from outside ends them
    at_least = MIN_RUNNING_SHARE * min(1.0, _MAY_WAIT_SECONDS / max(sums.max_running_held, 1e-3))
    share = max(at_least, so_far, sums.max_running_recent)
    return Cost(share, 2.0 * sums.max_running_work, None, sums.max_memory, sums.running, "Running")


def costliest(table: Table, most: int = 10) -> tuple[dict[str, str], ...]:
    """The kinds that take most CPU, in words for people: who, cores, CPU seconds, memory, evidence."""
    kinds = sorted((k for k in table if "/" in k and "@" in k), key=lambda k: (-_taken(table[k]), k))
    return tuple(_in_words(table, key) for key in kinds[:most])


def _taken(sums: KindSums) -> float:
    return sums.work + sums.running_work


def _in_words(table: Table, key: str) -> dict[str, str]:
    pods = key.partition("@")[0]
    cost = estimate(table, Kind((key,), is_endless(key)))
    words = {"pods": pods, "cores": f"{cost.share:.3g}", "evidence": f"{cost.pods:.0f}"}
    if cost.work is not None:
        words["cpuSeconds"] = f"{cost.work:.3g}"
    if cost.memory is not None:
        words["memory"] = f"{cost.memory / 2**20:.0f}Mi"
    return words
