"""Large pods: those that use at least half a node by themselves, and far more than the node's other pods.

Capacity counts pods, and that means something only while pods are more or less alike. A pod of four threads among pods
of one makes the mean of both say nothing about either. Such a pod is found by the CPU time it has had, which nothing
hides: a multiple of what a completed pod of the node has taken on the mean. It is then no longer one of the pods that
the control law averages over (slots.py); what it would take without the others is taken off the node instead.

Carico knows one kind of pod and names that a limitation (section 5.9; docs/references.md). Size alone makes no pod
large: where all pods are large, they are alike.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TIMES_THE_MEAN = 2.5
"""CPU time of a pod over the mean of the completed ones from which it is not one of them."""
_LEAST_SHARE = 0.5
"""Share of the node that it would take. Smaller pods share a node in time, whatever they take in all."""
_RECENT_SECONDS = 2.0
_WEIGHT = 0.2
_MOST_FOR_GOOD = 0.5
_SLOW_SECONDS = 20.0
_LEAST_SHARE_LATER = 0.25
"""Share below which one that was named is large no more: it was busy for a while, as services are that start."""
_LONG_SECONDS = 60.0
"""After so long a large pod is believed to stay for good."""
_IDLE = (0.0, 0.0)
"""Share of the node that a pod has and wants which has used none of late."""


class LargePods:
    """The large pods of N nodes.

    Attributes:
        count: (N,) large pods.
        share: (N,) share of the node's CPUs that they use.
        wanted: (N,) share that they would use if nobody else ran, at most 1.
        passing: (N,) whether one of them may be expected to end.
    """

    def __init__(self, n_nodes: int) -> None:
        """None."""
        self.count: Floats = np.zeros(n_nodes)
        self.share: Floats = np.zeros(n_nodes)
        self.wanted: Floats = np.zeros(n_nodes)
        self.passing = np.zeros(n_nodes, dtype=np.bool_)
        self._since: list[dict[str, float]] = [{} for _ in range(n_nodes)]
        self._used: list[dict[str, float]] = [{} for _ in range(n_nodes)]
        self._ended: Floats = np.full(n_nodes, np.nan)  # mean CPU time of the pods that have ended
        self._at: Floats = np.full(n_nodes, np.nan)
        self._gone: Floats = np.zeros(n_nodes)  # pods that have ended since
        self._gone_seconds: Floats = np.zeros(n_nodes)  # what they had had when they were last read
        self._rates: list[dict[str, tuple[float, float]]] = [{} for _ in range(n_nodes)]
        self._slow: list[dict[str, float]] = [{} for _ in range(n_nodes)]  # what large ones want, over longer
        self._large: list[dict[str, float]] = [{} for _ in range(n_nodes)]

    def of(self, node: int) -> Mapping[str, float]:
        """The node's large pods: UID to the share of the node that each wants."""
        return self._large[node]

    def ended(self, node: int, uid: str) -> bool:
        """A counted pod of the node has ended; whether it was a large one."""
        seconds = self._used[node].pop(uid, 0.0)
        if self._large[node].pop(uid, None) is not None:
            self._sum(node)
            return True
        self._gone[node] += 1.0
        self._gone_seconds[node] += seconds
        return False

    def saw(self, node: int, used: Mapping[str, float], taken: float, load: float, now: float) -> None:
        """The CPU time that the node's pods have had so far.

        Args:
            node: index of the node.
            used: by UID of the pods counted, since they began; fractions of the node times seconds. Of a pod that is
                missing nothing is known, and it counts as an ordinary one.
            taken: CPU time that all of its pods have had since this was last called, likewise. What those that are
                there have not had of it, those that have ended have had since they were last read.
            load: runnable threads per CPU of late: what a pod gets is that much less than what it wants.
            now: monotonic seconds.
        """
        elapsed = float(now - self._at[node])
        before, self._used[node], self._at[node] = self._used[node], dict(used), now
        weight = min(1.0, elapsed / _RECENT_SECONDS) if elapsed > 0.0 else 0.0
        contended, known, rates, had_there = max(load, 1.0), self._rates[node], {}, 0.0
        for uid, seconds in used.items():  # of every pod of every node once a second
            was, last = before.get(uid), known.get(uid, _IDLE)
            if was == seconds and last == _IDLE:
                rates[uid] = _IDLE
                continue
            had = max(0.0, seconds - (was or 0.0))
            had_there += had
            rate = had / elapsed if weight and was is not None else 0.0
            rate_before, wants_before = last
            wants = min(1.0, rate * contended)
            rates[uid] = (rate_before + weight * (rate - rate_before), wants_before + weight * (wants - wants_before))
        self._rates[node] = rates
        if gone := self._gone[node]:
            of_each = (self._gone_seconds[node] + max(0.0, taken - had_there)) / gone
            mean, weight_of_gone = self._ended[node], 1.0 - (1.0 - _WEIGHT) ** gone
            self._ended[node] = of_each if np.isnan(mean) else mean + weight_of_gone * (of_each - mean)
            self._gone[node] = self._gone_seconds[node] = 0.0
        # Before a pod has completed the mean is NaN, and no time is above it
        above = float(_TIMES_THE_MEAN * self._ended[node])
        many = {uid for uid, seconds in used.items() if seconds > above}
        if not many and not self._large[node]:
            return
        weight, slow = (min(1.0, elapsed / _SLOW_SECONDS) if elapsed > 0.0 else 0.0), self._slow[node]
        slow = {uid: slow[uid] + weight * (rates[uid][1] - slow[uid]) for uid in slow.keys() & self._large[node] & many}
        self._large[node] = large = {
            uid: rates[uid][1]
            for uid in used
            if uid in many and (rates[uid][1] >= _LEAST_SHARE or slow.get(uid, 0.0) >= _LEAST_SHARE_LATER)
        }
        self._slow[node] = {uid: slow.get(uid, rates[uid][1]) for uid in large}
        self._since[node] = {uid: self._since[node].get(uid, now) for uid in large}
        self.passing[node] = any(now - at < _LONG_SECONDS for at in self._since[node].values())
        self._sum(node)

    def _sum(self, node: int) -> None:
        """What its large pods come to."""
        large, rates = self._large[node], self._rates[node]
        if not large:
            self.passing[node] = False
        self.count[node] = len(large)
        self.share[node] = min(1.0, sum(rates[uid][0] for uid in large))
        wanted = min(1.0, sum(large.values()))
        # Others have to run beside what stays for good
        self.wanted[node] = wanted if self.passing[node] else min(wanted, _MOST_FOR_GOOD)
