"""Pods that have ended, and whose use a window of their node still contains."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from concerto.scheduling.state.provided_load import Floats, Ints

_MAX_KEPT = 10_000
"""Of more, those that ended first are forgotten: what they used is then taken to be used still."""


class EndedPods:
    """By slot: the row, when the pod began and ended, and the terms of its prediction.

    Attributes:
        row: by slot.
        terms: by term and slot; 0 in slots that are free.
    """

    def __init__(self, terms: int) -> None:
        """None has ended. A prediction has so many terms."""
        self.row: Ints = np.zeros(0, dtype=np.int64)
        self.terms: Floats = np.zeros((terms, 0))
        self._since: Floats = np.zeros(0)
        self._until: Floats = np.zeros(0)
        self._slot_of: OrderedDict[str, int] = OrderedDict()  # by UID, in the order of ends
        self._free: list[int] = []

    def add(self, uid: str, row: int, span: tuple[float, float], terms: Floats) -> None:
        """A pod has ended.

        Args:
            uid: its UID.
            row: of its node.
            span: when it began and ended, seconds.
            terms: of its prediction.
        """
        self.withdraw(uid)
        if len(self._slot_of) >= _MAX_KEPT:
            self.withdraw(next(iter(self._slot_of)))
        if not self._free:
            self._grow()
        slot = self._slot_of[uid] = self._free.pop()
        self.row[slot] = row
        self._since[slot], self._until[slot] = span
        self.terms[:, slot] = terms

    def withdraw(self, uid: str) -> None:
        """The pod is there again, or is forgotten."""
        slot = self._slot_of.pop(uid, None)
        if slot is not None:
            self.terms[:, slot] = 0.0
            self._free.append(slot)

    def vacate(self, row: int) -> None:
        """The row stands for another node from now on."""
        for uid in [uid for uid, slot in self._slot_of.items() if self.row[slot] == row]:
            self.withdraw(uid)

    def forget_ended_before(self, time: float) -> None:
        """Pods that no window contains any more."""
        while self._slot_of:
            uid, slot = next(iter(self._slot_of.items()))
            if self._until[slot] >= time:
                return
            self.withdraw(uid)

    def share(self, ends: Floats, covered: Floats) -> Floats:
        """The part of its node's window that contains a pod, 0 to 1, by slot in the last axis.

        Args:
            ends: of the windows by slot, seconds.
            covered: their lengths.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            length = np.minimum(self._until, ends) - np.maximum(self._since, ends - covered)
            share: Floats = np.clip(length / covered, 0.0, 1.0)
        return np.nan_to_num(share)

    def _grow(self) -> None:
        size = len(self.row)
        more = max(256, size)
        self.row = np.pad(self.row, (0, more))
        self._since = np.pad(self._since, (0, more))
        self._until = np.pad(self._until, (0, more))
        self.terms = np.pad(self.terms, [(0, 0), (0, more)])
        self._free.extend(range(size + more - 1, size - 1, -1))
