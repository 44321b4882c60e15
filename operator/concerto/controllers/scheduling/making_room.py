"""Pods that room is being made for: what each waits for before others may be evicted for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from concerto.api.doubling import doubled_wait


@dataclass
class _Attempt:
    """The last attempt for one pod.

    Attributes:
        victims: UIDs of the pods that are evicted for it.
        number: how many attempts were made for the pod, with this one.
        ended_at: when the last victim was first known to be gone, or the API server refused; None before.
        over: whether others may be evicted for the pod.
    """

    victims: frozenset[str]
    number: int
    ended_at: float | None = None
    over: bool = False


class MakingRoom:
    """The attempts to make room, by pod.

    Room that was made may not be seen as room: load that is measured rises meanwhile, an admission webhook keeps a
    victim, others take the room. So each further attempt for the same pod waits twice as long as the one before.

    Args:
        settle_seconds: how long after the end of its victims a pod waits for the room that they left; doubles.
        max_settle_seconds: the doubling ends there.
    """

    def __init__(self, settle_seconds: float, max_settle_seconds: float) -> None:
        self._settle, self._max_settle = settle_seconds, max_settle_seconds
        self._attempts: dict[str, _Attempt] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether room was made for the pod, or is being made."""
        return uid in self._attempts

    def begin(self, uid: str, victims: Iterable[str]) -> None:
        """Evict these pods for the pod."""
        before = self._attempts.get(uid)
        self._attempts[uid] = _Attempt(frozenset(victims), 1 if before is None else before.number + 1)

    def stop(self, uid: str, now: float) -> None:
        """Its victims are not evicted, or not all of them."""
        if (attempt := self._attempts.get(uid)) is not None:
            attempt.victims, attempt.ended_at = frozenset(), now

    def forget(self, uid: str) -> None:
        """The pod needs no room any more."""
        self._attempts.pop(uid, None)

    def keep(self, needs_room: Callable[[str], bool]) -> None:
        """Forget the pods that need no room any more."""
        self._attempts = {uid: attempt for uid, attempt in self._attempts.items() if needs_room(uid)}

    def seconds_left(self, uid: str, now: float, is_there: Callable[[str], bool]) -> float:
        """How long nobody else is evicted for the pod: 0 if others may be, infinity while its victims are there."""
        attempt = self._attempts.get(uid)
        if attempt is None or attempt.over:
            return 0.0
        if any(is_there(victim) for victim in attempt.victims):
            return math.inf
        if attempt.ended_at is None:
            attempt.ended_at = now
        wait = doubled_wait(self._settle, self._max_settle, attempt.number - 1)
        left = max(0.0, attempt.ended_at + wait - now)
        attempt.over = not left
        return left

    def end(self, uid: str) -> None:
        """Others may be evicted for the pod now: the node that it was nominated for will not take it."""
        if (attempt := self._attempts.get(uid)) is not None:
            attempt.over = True
