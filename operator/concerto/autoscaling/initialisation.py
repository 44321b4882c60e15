"""How long a target's pods wait for a node, and how long they take from there to Ready, without outliers.

Both times are learned apart, because a longer start-up belongs to the pods and a longer wait to the cluster.

McNaughton averages over all pods that were ever ready, and names outliers as the weakness of that. Here the latest few
count, and of them those near the median. Source: McNaughton, 4.2.1 (docs/references.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from concerto.api.pod import PodView


@dataclass(frozen=True)
class InitialisationSettings:
    """How it is learned.

    Attributes:
        default_seconds: before the first pod was seen to become ready.
        remembered: pods that count, the latest.
        trim: a time further from the median than so many median deviations is an outlier.
        fresh: so many pods of a new revision have to be seen before the old one is forgotten.
        longest_seconds: a pod that becomes ready later than this after it was bound has been ready before: its node
            was away, or it was restarted. It bounds the horizon as well, as for `spec.prediction.horizon`.
        longest_wait_seconds: a pod that waited longer for a node waited for capacity that the cluster did not have. To
            look further ahead then would only add pods that wait, so its wait does not count.
    """

    default_seconds: float = 60.0
    remembered: int = 20
    trim: float = 3.0
    fresh: int = 3
    longest_seconds: float = 3600.0
    longest_wait_seconds: float = 600.0


@dataclass(frozen=True)
class Initialisation:
    """What has been learned.

    Attributes:
        seconds: durations of the latest pods, oldest first.
        revision: of the pods they are of.
        before: durations of the revision before, until this one has enough of its own.
        learned_until: pods that became ready up to this time have been counted.
        waits: seconds from creation to binding of the latest pods, of any revision, oldest first.
    """

    seconds: tuple[float, ...] = ()
    revision: str = ""
    before: tuple[float, ...] = ()
    learned_until: float = 0.0
    waits: tuple[float, ...] = ()

    def typical(self, settings: InitialisationSettings) -> float:
        """The mean of what is near the median, of this revision or, until it is known, of the one before."""
        known = self.seconds if len(self.seconds) >= settings.fresh or not self.before else self.before
        return min(_typical(known, settings), settings.longest_seconds) if known else settings.default_seconds

    def typical_wait(self, settings: InitialisationSettings) -> float:
        """The same of the waits for a node; 0 where none is known."""
        return min(_typical(self.waits, settings), settings.longest_wait_seconds) if self.waits else 0.0

    def ahead(self, settings: InitialisationSettings) -> float:
        """Seconds from a pod's creation to Ready, as far as they are typical."""
        return min(self.typical_wait(settings) + self.typical(settings), settings.longest_seconds)

    def learn(self, pods: Iterable[PodView], settings: InitialisationSettings) -> Initialisation:
        """With the pods that became ready since.

        A pod that is ready for the second time seems slow. It is left out where the first time was seen,
        or where that is longer than any start. Else it is an outlier, or, if all pods do that, the time after which
        pods can take load.
        """
        news = sorted(
            (
                pod
                for pod in pods
                if pod.is_ready and pod.ready_since > self.learned_until and pod.first_ready in (None, pod.ready_since)
            ),
            key=lambda pod: pod.ready_since,
        )
        known = self
        for pod in news:
            if pod.revision != known.revision:
                kept = known.seconds if len(known.seconds) >= settings.fresh else known.before
                known = replace(known, seconds=(), revision=pod.revision, before=kept)
            took = max(pod.ready_since - pod.bound_at, 0.0)
            if took > settings.longest_seconds:
                continue
            seconds = (*known.seconds, took)[-settings.remembered :]
            waits = (*known.waits, *_wait_of(pod, settings))[-settings.remembered :]
            known = replace(known, seconds=seconds, learned_until=pod.ready_since, waits=waits)
        return known


def _wait_of(pod: PodView, settings: InitialisationSettings) -> tuple[float, ...]:
    """Its wait for a node; empty where that is not known, as with a scheduling gate, which is no wait for a node."""
    if pod.scheduled_at is None or pod.was_gated:
        return ()
    wait = max(pod.scheduled_at - pod.created, 0.0)
    return () if wait > settings.longest_wait_seconds else (wait,)


def _typical(seconds: Sequence[float], settings: InitialisationSettings) -> float:
    """The mean of what is near the median."""
    middle = median(seconds)
    deviation = median(abs(s - middle) for s in seconds)
    near = [s for s in seconds if abs(s - middle) <= max(settings.trim * deviation, 1.0)]
    return sum(near) / len(near)
