"""One template's view of the cluster during one cycle: which nodes are feasible, and how good they are.

Its first pod has every plugin look at all nodes. For its siblings only the rows that have changed since are looked at
again: within a cycle nothing happens to the cluster but the cycle's own placements.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from concerto.api.podreservation import ReservationKey
from concerto.api.score_arguments import MissingMetrics
from concerto.scheduling.framework import Filter, Query
from concerto.scheduling.missing_metrics import settle, stand_in, too_few_are_measured
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows

_FILLED: tuple[MissingMetrics, ...] = ("LeastScore", "Abstain")
_SHOWN: tuple[MissingMetrics, ...] = ("LeastScore",)
"""Rules whose filled in score is shown as the plugin's: under Abstain it is the other nodes'."""
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
        abstentions: feasible nodes of which each score lacked its metrics at the first look.
        by_allocation: whether at the last look too few nodes were measured for every score by load, so that requests
            decided in their place.
    """

    def __init__(self, query: Query, profile: Profile, touched: Sequence[int]) -> None:
        self.query = query
        self._profile = profile
        self._touched = touched
        self._seen = len(touched)
        self._changing = tuple(f for f in profile.filters if not f.unaffected_by_placements)
        self._local = tuple((s, float(w)) for s, w in profile.scores if not (s.needs_normalising or s.needs_telemetry))
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
        self._known = np.ones((len(self._whole), size), dtype=np.bool_)  # of which nodes they have metrics
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
        failed = self._without_metrics(candidates)
        self.by_allocation = bool(failed) and all(s.name in failed for s, _ in self._whole if s.needs_telemetry)
        for (_, weight), given in zip(self._whole, self._given(candidates, failed)):
            weighted, weights = self._add(weighted, weights, given, weight)
        # A profile that compares nodes by requests in a way of its own needs no other
        if self.by_allocation and not any(s.by_requests for s, _ in self._profile.scores):
            strategy = self._profile.settings.load.requests_strategy
            for plugin, weight in self._whole:
                if plugin.name in failed and plugin.missing_metrics != "Requests":
                    by_requests = stand_in(plugin, strategy).score(self.query, slice(0, len(weights)))
                    weighted, weights = self._add(weighted, weights, by_requests, weight)
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
        """What each score gives these rows, 0 to 100; NaN where it abstains, and where requests decide for it."""
        candidates = self._candidates()
        failed = self._without_metrics(candidates)
        whole = iter(self._given(candidates, failed, _SHOWN))
        return {
            plugin.name: next(whole)[rows]
            if plugin.needs_normalising or plugin.needs_telemetry
            else plugin.score(self.query, rows)
            for plugin, _ in self._profile.scores
        }

    def _given(
        self, candidates: Bools, failed: Collection[str], fills: Collection[MissingMetrics] = _FILLED
    ) -> list[Floats]:
        """By row, the scores that look at all rows or need telemetry, with missing ones filled in by these rules."""
        given = []
        for (plugin, _), raw in zip(self._whole, self._raw):
            scores = plugin.normalise(self.query, raw) if plugin.needs_normalising else raw
            if plugin.name in failed and plugin.missing_metrics != "Requests":
                scores = np.full_like(raw, np.nan)
            elif self._abstained and plugin.needs_telemetry and plugin.missing_metrics in fills:
                scores = settle(scores, candidates, plugin.missing_metrics)
            given.append(scores)
        return given

    def _without_metrics(self, candidates: Bools) -> Collection[str]:
        """Names of the scores that have metrics of too few candidates."""
        if not self._abstained:
            return ()
        by_load = self._profile.settings.load.min_measured_percent
        return frozenset(
            plugin.name
            for (plugin, _), known, raw in zip(self._whole, self._known, self._raw)
            if plugin.needs_telemetry
            and too_few_are_measured(
                known & ~np.isnan(raw), candidates, by_load if "load" in plugin.needs_telemetry else 0
            )
        )

    def _count_abstentions(self) -> None:
        for (plugin, _), known in zip(self._whole, self._known):
            missing = int(np.count_nonzero(~known & self.feasible))
            if missing and plugin.needs_telemetry:
                self.abstentions[plugin.name] = missing

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
        for raw, known, (scorer, _) in zip(self._raw, self._known, self._whole):
            scores = scorer.score(self.query, rows)
            raw[rows] = np.where(mask, scores, np.nan)
            if scorer.needs_telemetry:
                known[rows] = scorer.knows(self.query, rows)
            self._abstained |= bool(np.isnan(scores[mask]).any() or not known[rows][mask].all())

    def _add(self, weighted: Floats, weights: Floats, scores: Floats, weight: float) -> tuple[Floats, Floats]:
        """One more score; where it abstains, neither sum grows."""
        if not self._abstained:
            return weighted + scores * weight, weights + weight
        given = ~np.isnan(scores)
        return weighted + np.where(given, scores, 0.0) * weight, weights + given * weight
