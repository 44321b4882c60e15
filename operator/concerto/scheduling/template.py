"""One template's view of the cluster during one cycle: which nodes are feasible, and how good they are.

Its first pod has every plugin look at all nodes. For its siblings only the rows that have changed since are looked at
again: within a cycle nothing happens to the cluster but the cycle's own placements.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from concerto.api.podreservation import ReservationKey
from concerto.scheduling.plugin import Filter, Query
from concerto.scheduling.profile import Profile
from concerto.scheduling.snapshot import Bools, Floats, Ints, Rows, Snapshot

NEUTRAL = 50.0
"""Score of a node on which every score plugin abstains: neither the best nor the worst."""


def reserved(snapshot: Snapshot, reservation: ReservationKey | None) -> Floats:
    """By row, the units that a standing reservation holds."""
    units = np.zeros(snapshot.size)
    for node, held in snapshot.ledger.held_for(reservation).items() if reservation is not None else ():
        units[snapshot.row_of[node]] = held
    return units


class Template:
    """Feasible nodes and their scores for one kind of pod.

    Args:
        query: its first pod.
        profile: filters and scores.
        reservation: the standing reservation that holds units for it.
        touched: rows that the cycle has placed pods on, in order; the cycle appends to it.
    """

    def __init__(
        self, query: Query, profile: Profile, reservation: ReservationKey | None, touched: Sequence[int]
    ) -> None:
        self.query = query
        self.reservation = reservation
        self._profile = profile
        self._touched = touched
        self._seen = len(touched)
        self._changing = tuple(f for f in profile.filters if not f.fixed)
        self._local = tuple((s, float(w)) for s, w in profile.scores if not s.normalised)
        self._normalised = tuple((s, float(w)) for s, w in profile.scores if s.normalised)
        size = query.snapshot.size
        self.feasible = query.snapshot.exists[:size].copy()
        self._abstained = False
        self._weighted = np.zeros(size)  # over the local scores, weight times score, and weights
        self._weights = np.zeros(size)
        self._raw = np.full((len(self._normalised), size), np.nan)  # the others, as `normalise` takes them
        self._look(slice(0, size), profile.filters)

    def update(self) -> None:
        """Look again at the rows that have changed."""
        if self._seen < len(self._touched):
            rows = np.array(sorted(set(self._touched[self._seen :])), dtype=np.int64)
            self._seen = len(self._touched)
            if self.reservation is not None:
                self.query.reserved[rows] = reserved(self.query.snapshot, self.reservation)[rows]
            self._look(rows, self._changing)

    def totals(self) -> Floats:
        """By row, the weighted mean of its scores, 0 to 100; -inf where the pod can't go."""
        weighted, weights = self._weighted, self._weights
        for (plugin, weight), raw in zip(self._normalised, self._raw):
            scores = plugin.normalise(self.query, raw)
            weighted, weights = self._add(weighted, weights, scores, weight)
        if self._abstained:
            means = np.divide(weighted, weights, out=np.full_like(weighted, NEUTRAL), where=weights > 0)
        else:
            means = weighted / weights
        return np.where(self._candidates(), means, -np.inf)

    def best(self, generator: np.random.Generator) -> tuple[int, float] | None:
        """The row to take and its score, None if there is none; of several best ones as tie-breaking says."""
        totals = self.totals()
        greatest = totals.max(initial=-np.inf)
        if greatest == -np.inf:
            return None
        ties: Ints = np.flatnonzero(totals == greatest)
        if len(ties) == 1:
            row = ties[0]
        elif self._profile.settings.tie_breaking == "FirstByName":
            row = ties[np.argmin(self.query.snapshot.name_ranks()[ties])]
        else:
            row = ties[generator.integers(len(ties))]
        return int(row), float(greatest)

    def _candidates(self) -> Bools:
        """The feasible nodes; if a standing reservation holds a unit for the pod on some of them, those alone."""
        if self.reservation is not None and (with_unit := self.feasible & (self.query.reserved > 0)).any():
            return with_unit
        return self.feasible

    def _look(self, rows: Rows, filters: Sequence[Filter]) -> None:
        mask = self.feasible[rows]
        for plugin in filters:
            mask &= plugin.feasible(self.query, rows)
        self.feasible[rows] = mask
        if self._local:
            weighted, weights = np.zeros(len(mask)), np.zeros(len(mask))
            for scorer, weight in self._local:
                scores = scorer.score(self.query, rows)
                self._abstained |= bool(np.isnan(scores).any())
                weighted, weights = self._add(weighted, weights, scores, weight)
            self._weighted[rows], self._weights[rows] = weighted, weights
        for raw, (scorer, _) in zip(self._raw, self._normalised):
            scores = scorer.score(self.query, rows)
            self._abstained |= bool(np.isnan(scores[mask]).any())
            raw[rows] = np.where(mask, scores, np.nan)

    def _add(self, weighted: Floats, weights: Floats, scores: Floats, weight: float) -> tuple[Floats, Floats]:
        """One more score; where it abstains, neither sum grows."""
        if not self._abstained:
            return weighted + scores * weight, weights + weight
        given = ~np.isnan(scores)
        return weighted + np.where(given, scores, 0.0) * weight, weights + given * weight
