"""One template's view of the cluster during one cycle: which nodes are feasible, and how good they are.

Its first pod has every plugin look at all nodes. For its siblings only the rows that have changed since are looked at
again: within a cycle nothing happens to the cluster but the cycle's own placements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from concerto.api.podreservation import ReservationKey
from concerto.scheduling.framework import Filter, Query
from concerto.scheduling.plugins.registry import BY_ALLOCATION
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows

NEUTRAL = 50.0
"""Score of a node on which every score plugin abstains: neither the best nor the worst."""


def reserved(cluster: ClusterState, reservation: ReservationKey | None) -> Floats:
    """By row, the units that a standing reservation holds."""
    units = np.zeros(cluster.size)
    for node, held in cluster.ledger.reservations.held_by(reservation).items() if reservation is not None else ():
        units[cluster.row_of[node]] = held
    return units


@dataclass(frozen=True, slots=True)
class Ranked:
    """A feasible node and why it stands where it does.

    Attributes:
        node: its name.
        score: its weighted score, 0 to 100.
        by_plugin: (plugin, score) for each that did not abstain.
    """

    node: str
    score: float
    by_plugin: tuple[tuple[str, float], ...]


class Evaluation:
    """Feasible nodes and their scores for one kind of pod.

    Args:
        query: its first pod.
        profile: filters and scores.
        touched: rows that the cycle has placed pods on, in order; the cycle appends to it.

    Attributes:
        feasible: by row, whether every filter lets it pass.
        abstentions: feasible nodes on which each score abstained for want of a metric, at the first look.
        by_allocation: whether at the last look every score by load abstained everywhere, so that requests stood in for
            it.
    """

    def __init__(self, query: Query, profile: Profile, touched: Sequence[int]) -> None:
        self.query = query
        self._profile = profile
        self._touched = touched
        self._seen = len(touched)
        self._changing = tuple(f for f in profile.filters if not f.unaffected_by_placements)
        self._local = tuple((s, float(w)) for s, w in profile.scores if not (s.needs_normalising or s.needs_telemetry))
        self._metric_scores = frozenset(s.name for s, _ in profile.scores if s.needs_telemetry)
        # A profile that has its own idea of requests needs nobody's in its place
        knows_requests = any(s.by_requests for s, _ in profile.scores)
        self._stand_in_weight = 0.0 if knows_requests else float(sum(w for s, w in profile.scores if s.needs_telemetry))
        self._whole = tuple((s, float(w)) for s, w in profile.scores if s.needs_normalising or s.needs_telemetry)
        size = query.cluster.size
        self.feasible = query.cluster.nodes.exists[:size].copy()
        self.abstentions: dict[str, int] = {}
        self.by_allocation = False
        self._totals: Floats = np.zeros(0)
        self._abstained = not profile.scores
        self._weighted = np.zeros(size)  # over the local scores, weight times score, and weights
        self._weights = np.zeros(size)
        self._raw = np.full((len(self._whole), size), np.nan)  # of the others, as `normalise` takes them
        self._look(slice(0, size), profile.filters)
        self._count_abstentions()

    def update(self) -> None:
        """Look again at the rows that have changed."""
        if self._seen < len(self._touched):
            rows = np.array(sorted(set(self._touched[self._seen :])), dtype=np.int64)
            self._seen = len(self._touched)
            if self.query.reservation is not None:
                self.query.reserved[rows] = reserved(self.query.cluster, self.query.reservation)[rows]
            self._look(rows, self._changing)

    def totals(self) -> Floats:
        """By row, the weighted mean of its scores, 0 to 100; -inf where the pod can't go."""
        weighted, weights = self._weighted, self._weights
        candidates = self._candidates()
        self.by_allocation = self._abstained and bool(self._metric_scores)
        for (plugin, weight), raw in zip(self._whole, self._raw):
            scores = plugin.normalise(self.query, raw) if plugin.needs_normalising else raw
            if self._abstained and plugin.needs_telemetry:
                self.by_allocation &= bool(np.isnan(scores[candidates]).all())
                scores = _neutral(scores)
            weighted, weights = self._add(weighted, weights, scores, weight)
        if self.by_allocation and self._stand_in_weight:
            by_requests = BY_ALLOCATION.score(self.query, slice(0, len(weights)))
            weighted, weights = self._add(weighted, weights, by_requests, self._stand_in_weight)
        if self._abstained:
            means = np.divide(weighted, weights, out=np.full_like(weighted, NEUTRAL), where=weights > 0)
        else:
            means = weighted / weights
        self._totals = np.where(candidates, means, -np.inf)
        return self._totals

    def best(self, generator: np.random.Generator) -> tuple[int, float] | None:
        """The best row and its score, or None; tie-breaking chooses among equal ones."""
        totals = self.totals()
        greatest = totals.max(initial=-np.inf)
        if greatest == -np.inf:
            return None
        ties: Ints = np.flatnonzero(totals == greatest)
        if len(ties) == 1:
            row = ties[0]
        elif self._profile.settings.tie_breaking == "FirstByName":
            row = ties[np.argmin(self.query.cluster.rows.name_ranks()[ties])]
        else:
            row = ties[generator.integers(len(ties))]
        return int(row), float(greatest)

    def top(self, chosen: int, count: int) -> tuple[Ranked, ...]:
        """The chosen row and the next best ones as `best` saw them, with what each plugin that had a say gave them.

        Of a profile with one score there is nothing to tell apart, and nothing is computed.
        """
        if len(self._profile.scores) < 2:
            return ()
        totals = self._totals.copy()
        totals[chosen] = np.inf
        others = min(count, len(totals))
        rows: Ints = np.argpartition(totals, -others)[-others:]
        rows = rows[np.argsort(-totals[rows])]
        rows = rows[self._totals[rows] > -np.inf]
        names = self.query.cluster.names
        by_plugin = self.by_plugin(rows)
        return tuple(
            Ranked(
                names[row],
                float(self._totals[row]),
                tuple((name, float(s[i])) for name, s in by_plugin.items() if not np.isnan(s[i])),
            )
            for i, row in enumerate(rows)
        )

    def by_plugin(self, rows: Ints) -> dict[str, Floats]:
        """What each score gives these rows, 0 to 100; NaN where it abstains."""
        given = {}
        whole = iter(self._raw)
        for plugin, _ in self._profile.scores:
            if plugin.needs_normalising:
                given[plugin.name] = plugin.normalise(self.query, next(whole))[rows]
            else:
                given[plugin.name] = next(whole)[rows] if plugin.needs_telemetry else plugin.score(self.query, rows)
        return given

    def _count_abstentions(self) -> None:
        if not self._abstained:
            return
        rows = np.flatnonzero(self.feasible)
        for name, scores in self.by_plugin(rows).items():
            missing = int(np.count_nonzero(np.isnan(scores)))
            if missing and name in self._metric_scores:
                self.abstentions[name] = missing

    def _candidates(self) -> Bools:
        """The feasible nodes; if a standing reservation holds a unit for the pod on some of them, those alone."""
        if self.query.reservation is not None and (with_unit := self.feasible & (self.query.reserved > 0)).any():
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
        for raw, (scorer, _) in zip(self._raw, self._whole):
            scores = scorer.score(self.query, rows)
            self._abstained |= bool(np.isnan(scores[mask]).any())
            raw[rows] = np.where(mask, scores, np.nan)

    def _add(self, weighted: Floats, weights: Floats, scores: Floats, weight: float) -> tuple[Floats, Floats]:
        """One more score; where it abstains, neither sum grows."""
        if not self._abstained:
            return weighted + scores * weight, weights + weight
        given = ~np.isnan(scores)
        return weighted + np.where(given, scores, 0.0) * weight, weights + given * weight


def _neutral(scores: Floats) -> Floats:
    """The mean of the others where a metric is missing, so that a node gains and loses nothing by it.

    Left out of its mean instead, a node that nobody measures would stand by its other scores alone, and on a busy
    cluster, where scores by load are low, draw all pods.
    """
    missing = np.isnan(scores)
    return scores if missing.all() else np.where(missing, scores[~missing].mean(), scores)
