"""Stored placement records of the operator: which of their assignments are still outstanding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from concerto.api.podreservation import ReservationKey


@dataclass(slots=True)
class _Record:
    outstanding: set[str]
    consumed: Mapping[str, ReservationKey]


class PlacementRecords:
    """Records by name, and the record that each outstanding pod belongs to."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._record_of: dict[str, str] = {}

    def outstanding(self) -> Iterable[str]:
        """UIDs of the pods that some record waits for."""
        return self._record_of

    def open(self, name: str, outstanding: set[str], consumed: Mapping[str, ReservationKey]) -> None:
        """A record is stored.

        Args:
            name: its name.
            outstanding: UIDs of the pods that it waits for.
            consumed: reservations that its pods used a unit of, by UID.
        """
        self._records[name] = _Record(outstanding, consumed)
        for uid in outstanding:
            # A pod that is decided again is over for the record before; after a restart both records are found
            self.resolve(uid)
            self._record_of[uid] = name

    def resolve(self, uid: str) -> None:
        """The pod is not outstanding any more."""
        name = self._record_of.pop(uid, None)
        if name is not None:
            self._records[name].outstanding.discard(uid)

    def closable(self, is_pending: Callable[[ReservationKey, str], bool]) -> list[str]:
        """Names of the records without outstanding pods, each use of a reservation of which is in its status.

        Args:
            is_pending: whether a pod's use of a reservation is not in its status yet.
        """
        return [
            name
            for name, record in self._records.items()
            if not record.outstanding and not any(is_pending(key, uid) for uid, key in record.consumed.items())
        ]

    def close(self, name: str) -> None:
        """The record has been deleted."""
        record = self._records.pop(name, None)
        for uid in record.outstanding if record is not None else ():
            self._record_of.pop(uid, None)
