"""What was measured of the pods of a kind, as sums: they merge by addition, in any order, exactly.

The natural share of a kind is ``work / held``: cores that a pod takes while it holds its place, waiting for a CPU left
out. Contention adds as much to a pod's life as to the time its tasks are stalled, so the share is the same on an empty
node and on an overloaded one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

MAX_SUM = 1e30
"""Largest sum that is read: squares of bytes over all pods of a cluster stay below."""
_MIN_HELD_SECONDS = 0.2
SHOWN_CORE_SECONDS = 0.1
"""CPU time from which a running pod's load shows: less may be its start alone."""
SHOWN_SECONDS = 5.0
"""Time after which a running pod that has used less has shown that it uses little."""
FORGET_PER_POD = 1.0 / 64
"""Part of what was known of a kind that each further pod of it replaces: a cost that changes is followed."""
HALF_LIFE_SECONDS = 7 * 86400.0
"""Age at which evidence counts half: a nightly job is remembered, last year's is not."""


@dataclass(frozen=True, slots=True)
class PodMeasurement:
    """One pod, measured while it ran.

    Attributes:
        work: CPU time it has had, core-seconds.
        held: seconds for which it held its place (from its start, image pulls and teardown included) without those in
            which its tasks waited for a CPU.
        life: seconds from its start to its end, or to now.
        memory: most memory it has held, bytes.
        ended: whether it is over; else it still runs.
        recent: cores that it has used of late, stalls left out (``recent_share``).
        started: CPU time that its start and end cost its node beside that, core-seconds.
        peak_work: its CPU time, each part of it times the cores that it used then, stalls left out.
    """

    work: float
    held: float
    life: float
    memory: float
    ended: bool
    recent: float = 0.0
    started: float = 0.0
    peak_work: float = 0.0

    @property
    def shown(self) -> bool:
        """Whether its load has shown."""
        return self.recent > 0.0 or self.held >= SHOWN_SECONDS

    @property
    def plausible(self) -> bool:
        """Whether a pod can have been measured so: finite, not negative, not held for longer than it lived."""
        return (
            0.0 <= self.work < math.inf
            and 0.0 <= self.held <= self.life * 1.001 + 1e-3
            and 0.0 <= self.life < math.inf
            and 0.0 <= self.memory < math.inf
            and 0.0 <= self.recent < math.inf
            and 0.0 <= self.started < math.inf
            and 0.0 <= self.peak_work < math.inf
        )


def recent_share(before: PodMeasurement, now: PodMeasurement) -> float:
    """Cores that a pod has used since it was last measured, stalls left out; as before if it was stalled throughout.

    0 until its load had shown when it was last measured: an interval in which it began to work says little.
    """
    if before.work < SHOWN_CORE_SECONDS:
        return 0.0
    held = now.held - before.held
    return (now.work - before.work) / held if held > _MIN_HELD_SECONDS else before.recent


class KindSums(NamedTuple):
    """Sums over pods, each weighted by how much of it is remembered.

    Attributes:
        ended: pods that have ended.
        work: their CPU time, core-seconds.
        peak_work: the same, each part of it times the cores that a pod used then. Over ``work`` it is what one uses
            while it computes.
        held: seconds for which they held a place, stalls left out.
        life: seconds for which they lived.
        memory: the sum of the most memory that each held, bytes.
        memory_squared: the sum of its squares.
        started: CPU time that their starts and ends cost their nodes beside ``work``.
        running: pods that run and whose load shows.
        running_work: their CPU time so far.
        running_held: seconds for which they have held a place so far, stalls left out.
        running_memory: the most memory that each has held so far, summed.
        max_memory: the most memory that one of them held or holds, bytes.
        max_running_work: CPU time of the one that has had most: it shows best what is still to come of the others.
        max_running_held: seconds for which that one has held its place so far, stalls left out.
        max_running_recent: cores that one of them has used of late at most, stalls left out.
    """

    ended: float = 0.0
    work: float = 0.0
    peak_work: float = 0.0
    held: float = 0.0
    life: float = 0.0
    memory: float = 0.0
    memory_squared: float = 0.0
    started: float = 0.0
    running: float = 0.0
    running_work: float = 0.0
    running_held: float = 0.0
    running_memory: float = 0.0
    max_memory: float = 0.0
    max_running_work: float = 0.0
    max_running_held: float = 0.0
    max_running_recent: float = 0.0

    @property
    def of_ended_pods(self) -> bool:
        """Whether pods have ended, so that these say what one costs."""
        return self.ended > 1e-3 and self.held > 0.0

    @property
    def of_running_pods(self) -> bool:
        """Whether pods run whose load shows."""
        return self.running > 0.0 and self.running_held > 0.0

    @classmethod
    def of_ended(cls, pod: PodMeasurement) -> Self:
        """The sums of one pod that has ended."""
        return cls(
            ended=1.0,
            work=pod.work,
            peak_work=pod.peak_work,
            held=pod.held,
            life=pod.life,
            memory=pod.memory,
            memory_squared=pod.memory**2,
            started=pod.started,
            max_memory=pod.memory,
        )

    @classmethod
    def of_running(cls, pod: PodMeasurement) -> Self:
        """The sums of one pod that runs."""
        return cls(
            running=1.0,
            running_work=pod.work,
            running_held=pod.held,
            running_memory=pod.memory,
            max_running_work=pod.work,
            max_running_held=pod.held,
            max_running_recent=pod.recent,
            max_memory=pod.memory,
        )

    def plus(self, other: KindSums) -> KindSums:
        """Both together."""
        ours = (self.max_running_work, self.max_running_held)
        most = self if ours >= (other.max_running_work, other.max_running_held) else other
        # One by one: a loop over the fields takes more than twice as long
        return KindSums(
            self.ended + other.ended,
            self.work + other.work,
            self.peak_work + other.peak_work,
            self.held + other.held,
            self.life + other.life,
            self.memory + other.memory,
            self.memory_squared + other.memory_squared,
            self.started + other.started,
            self.running + other.running,
            self.running_work + other.running_work,
            self.running_held + other.running_held,
            self.running_memory + other.running_memory,
            max(self.max_memory, other.max_memory),
            most.max_running_work,
            most.max_running_held,
            max(self.max_running_recent, other.max_running_recent),
        )

    def scaled(self, factor: float) -> KindSums:
        """The same evidence at another weight; what is a maximum stays, and so does what runs now."""
        return KindSums(*(v * factor if i < _FADING else v for i, v in enumerate(self)))

    def only_ended(self) -> Self:
        """Without the pods that run."""
        ended = self._asdict()
        kept = {name: value for name, value in ended.items() if name in FIELDS[:_FADING]}
        return type(self)(**kept, max_memory=self.max_memory if self.ended else 0.0)

    def without(self, other: KindSums) -> KindSums:
        """What is left of the pods that have ended when others are taken off; nothing falls below 0."""
        left = [max(0.0, ours - theirs) for ours, theirs in zip(self[:_FADING], other[:_FADING])]
        return KindSums(*left)._replace(max_memory=self.max_memory)

    def after(self, seconds: float) -> KindSums:
        """As it counts that many seconds later."""
        return self.scaled(0.5 ** (max(0.0, seconds) / HALF_LIFE_SECONDS))

    def plus_ended(self, pod: PodMeasurement) -> KindSums:
        """One more pod has ended."""
        return self.scaled(1.0 - FORGET_PER_POD).plus(KindSums.of_ended(pod))

    def to_list(self, digits: int = 4) -> list[float]:
        """As they are published: numbers rounded to significant digits, zeros at the end left out.

        They have the order of ``FIELDS`` but for ``peak_work``, which comes last. In its place is a 0: agents of former
        versions publish squares of CPU time there, which would be taken for pods that compute on all CPUs.
        """
        numbers = [_significant(v, digits) for v in (*self[:PEAK_WORK], 0.0, *self[PEAK_WORK + 1 :], self.peak_work)]
        while numbers and not numbers[-1]:
            numbers.pop()
        return numbers

    @classmethod
    def from_list(cls, numbers: Sequence[float]) -> Self:
        """The reverse of ``to_list``; a table of a former version does not say what ``peak_work`` is.

        Raises:
            ValueError: more numbers than are published, or one that is negative, not finite, or larger than any sum can
                be.
        """
        if len(numbers) > PUBLISHED:
            raise ValueError(f"{len(numbers)} numbers, expected at most {PUBLISHED}")
        if any(not 0.0 <= n <= MAX_SUM for n in numbers):
            raise ValueError(f"a sum is not between 0 and {MAX_SUM:g}")
        *fields, peak_work = (*map(float, numbers), *[0.0] * (PUBLISHED - len(numbers)))
        return cls(*fields)._replace(peak_work=peak_work)


FIELDS = KindSums._fields
PEAK_WORK = FIELDS.index("peak_work")
PUBLISHED = len(FIELDS) + 1
"""Numbers that an entry of a published table has at most."""
_FADING = FIELDS.index("running")


def _significant(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
