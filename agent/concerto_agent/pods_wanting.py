"""How many of the node's pods want a CPU: those that compute, and those that wait for one altogether. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from concerto_agent.pod_reader import PodReading

_Wanted = tuple[float, float]  # seconds in which a pod computed, and in which its tasks waited and none ran


class PodsWanting:
    """Adds up, over the node's counted pods, CPU time and the time in which none of a pod's waiting tasks ran.

    A pod of many threads counts as what it computes: that they wait for each other is no sign that pods do. So does a
    pod with a CPU limit, as its pressure does not tell what its own quota holds back from what others take.
    """

    def __init__(self, is_limited: Callable[[str], bool]) -> None:
        """Nothing is known before the second `read`; ``is_limited`` says by UID which pods have a CPU limit."""
        self._is_limited = is_limited
        self._before: dict[str, _Wanted] = {}  # of each pod, when last read
        self._read_at: float | None = None
        self._of_ended = 0.0  # seconds since then, of pods that have ended

    def read(self, readings: Mapping[str, PodReading], started_at: Mapping[str, float], now: float) -> float | None:
        """Pods that wanted a CPU since the read before, on average; None if that is unknown.

        Args:
            readings: of counted pods, by UID.
            started_at: when they started, monotonic seconds, by UID.
            now: monotonic seconds.
        """
        wanted = {uid: seconds for uid, each in readings.items() if (seconds := _wanted(each)) is not None}
        since, of_ended = self._read_at, self._of_ended
        grown = sum(self._grown(uid, seconds, started_at.get(uid, now)) for uid, seconds in wanted.items())
        self._before, self._read_at, self._of_ended = wanted, now, 0.0
        if since is None or now <= since or len(wanted) < len(readings):
            return None
        return (grown + of_ended) / (now - since)

    def ended(self, uid: str, reading: PodReading, started_at: float) -> None:
        """A pod's last reading; it started at ``started_at``, monotonic seconds."""
        wanted = _wanted(reading)
        if wanted is not None:
            self._of_ended += self._grown(uid, wanted, started_at)
            self._before[uid] = wanted  # a container of it may be started again before the next read

    def _grown(self, uid: str, wanted: _Wanted, started_at: float) -> float:
        # What a pod wanted before the last read is unknown, unless it did not exist then
        is_new = self._read_at is not None and started_at >= self._read_at
        before = self._before.get(uid, (0.0, 0.0) if is_new else wanted)
        computed, held_up = (max(0.0, now - then) for now, then in zip(wanted, before))
        # A limit may come or go meanwhile: what it held back until then does not count at once
        return computed if self._is_limited(uid) else computed + held_up


def _wanted(reading: PodReading) -> _Wanted | None:
    return None if reading.held_up_seconds is None else (reading.cpu_seconds, reading.held_up_seconds)
