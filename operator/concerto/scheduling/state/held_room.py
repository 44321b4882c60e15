"""Whose turn it is to hold room: gangs that wait for room while smaller pods take each piece that comes free. Pure.

One gang at a time holds room, so that two gangs never hold a half each. It holds for a bounded time, after which all
others have as much time to themselves. A namespace whose gangs have held room in vain waits twice as long each time.
"""

from __future__ import annotations

from dataclasses import dataclass

from concerto.api.podgroup import GroupKey
from concerto.scheduling.state.doubling_waits import DoublingWaits


@dataclass(frozen=True)
class HeldRoomSettings:
    """How long room is held.

    Attributes:
        patience_seconds: how long a gang waits for room before it holds what there is.
        hold_seconds: how long it holds room at most, and how long nobody does after it held room in vain.
        max_wait_seconds: longest time for which a namespace whose gangs have held room in vain holds none. As long
            after the end of a wait, the next wait is the first again.
    """

    patience_seconds: float = 5.0
    hold_seconds: float = 30.0
    max_wait_seconds: float = 3600.0


class HeldRoom:
    """The turn of one gang after another.

    Attributes:
        holder: the gang that holds room; None if none does.
        until: when its turn ends, seconds since the epoch.
    """

    def __init__(self, settings: HeldRoomSettings | None = None) -> None:
        self.holder: GroupKey | None = None
        self.until = 0.0
        self._settings = settings = settings or HeldRoomSettings()
        self._waits_since: dict[GroupKey, float] = {}
        self._rest_until = 0.0
        # Namespaces whose gangs have held room in vain
        self._in_vain: DoublingWaits[str] = DoublingWaits(2.0 * settings.hold_seconds, settings.max_wait_seconds)

    def ask(self, key: GroupKey, now: float) -> bool:
        """A gang finds room for some of its pods only; returns whether it holds that room for now."""
        since = self._waits_since.setdefault(key, now)
        if self.holder is not None:
            return self.holder == key
        settings = self._settings
        may = now - since >= settings.patience_seconds and not self._in_vain.waits(key[0], now)
        if not may or now < self._rest_until:
            return False
        self.holder, self.until = key, now + settings.hold_seconds
        return True

    def is_overdue(self, now: float) -> bool:
        """Whether the holder's time is over, and `end_overdue` has not been called since."""
        return self.holder is not None and now >= self.until

    def end_overdue(self, now: float) -> bool:
        """Returns whether a turn has ended in vain."""
        if self.holder is None or now < self.until:
            return False
        self._in_vain.begin(self.holder[0], now)
        self._rest_until = now + self._settings.hold_seconds
        self.holder = None
        return True

    def placed(self, key: GroupKey) -> None:
        """The gang has found nodes."""
        if self.holder == key:
            self.holder = None
            self._in_vain.forget(key[0])
        self._waits_since.pop(key, None)

    def pass_on(self, key: GroupKey) -> None:
        """The gang would not fit whatever other pods end, so it holds nothing, and another gang may; it waits anew."""
        self._waits_since.pop(key, None)
        if self.holder == key:
            self.holder = None

    def gone(self, key: GroupKey) -> None:
        """The gang does not wait for room any more; if it holds some, its turn ends with the next cycle, in vain."""
        self._waits_since.pop(key, None)
        if self.holder == key:
            self.until = 0.0
