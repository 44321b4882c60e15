"""Pods of one signature in one cycle: which nodes are feasible, and how good they are.

The first such pod has every plugin look at all nodes. For the others, only the rows are looked at again whose answers
have changed since: within a cycle nothing happens to the cluster but the cycle's own placements.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, ReservationKey
from concerto.api.score_arguments import MissingMetrics
from concerto.scheduling.equal_rows import EqualRows, equal_rows
from concerto.scheduling.feasibility import Feasibility, Placement, rows_to_ask
from concerto.scheduling.framework import Filter, Query, Reach
from concerto.scheduling.missing_metrics import settle, stand_in, too_few_are_measured
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows, compact, union
from concerto.scheduling.ties import break_tie

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


def _ranked(names: Sequence[str], totals: Floats, by_plugin: Mapping[str, Floats]) -> tuple[Ranked, ...]:
    """These nodes with their scores."""
    shown = [(plugin, scores.tolist()) for plugin, scores in by_plugin.items()]  # numpy is slow at single numbers
    given = [tuple((plugin, s[i]) for plugin, s in shown if not math.isnan(s[i])) for i in range(len(names))]
    return tuple(map(Ranked, names, totals.tolist(), given))


def _add(sums: tuple[Floats, Floats], scores: Floats, weight: float, abstained: bool) -> tuple[Floats, Floats]:
    """Weighted sums and weights with one more score; where it abstains, neither grows."""
    weighted, weights = sums
    if not abstained:
        return weighted + scores * weight, weights + weight
    given = ~np.isnan(scores)
    return weighted + np.where(given, scores, 0.0) * weight, weights + given * weight


class Evaluation:
    """Feasible nodes and their scores for pods of one signature.

    Args:
        query: the first such pod.
        profile: filters and scores.
        placements: what the cycle has placed, in order; the cycle appends to it.

    Attributes:
        abstentions: feasible nodes of which each score lacked its metrics at the first look.
        by_allocation: whether at the last look too few nodes were measured for every score by load, so that requests
            decided in their place.
    """

    def __init__(self, query: Query, profile: Profile, placements: Sequence[Placement]) -> None:
        self.query = query
        self._profile = profile
        self._placements = placements
        self._seen = len(placements)
        self._filters = Feasibility(query, profile.filters)
        scores = [(s, float(w), state) for s, w in profile.scores if (state := s.prepare(query)) is not None]
        self._local = [each for each in scores if not (each[0].needs_normalising or each[0].needs_telemetry)]
        self._whole = [each for each in scores if each[0].needs_normalising or each[0].needs_telemetry]
        size = query.cluster.size
        self.abstentions: dict[str, int] = {}
        self.by_allocation = False
        self._totals: Floats = np.zeros(0)
        self._last_given: list[Floats | None] = []
        self._deciding = 0  # how many scores gave numbers at the last look
        self._abstained = not scores
        self._weighted = np.zeros(size)  # over the local scores, weight times score, and weights
        self._weights = np.zeros(size)
        self._raw = np.full((len(self._whole), size), np.nan)  # of the others, also where the pod can't go
        self._known = np.ones((len(self._whole), size), dtype=np.bool_)  # of which nodes they have metrics
        # Of the others, from 0 to 100, NaN where the pod can't go; only what has changed is computed anew
        self._normalised: list[Floats | None] = [None] * len(self._whole)
        self._stale = [True] * len(self._whole)
        self._equal: EqualRows | None = None
        every = slice(0, size)
        self._score_local(every)
        for index in range(len(self._whole)):
            self._score_whole(index, every)
            self._look_for_abstentions(index, every)
        self._count_abstentions()

    @property
    def feasible(self) -> Bools:
        """By row, whether every filter lets it pass."""
        return self._filters.feasible

    @property
    def filters(self) -> list[tuple[Filter, Any]]:
        """The filters that concern the pod, with what they prepared, in order."""
        return self._filters.filters

    @property
    def may_grow(self) -> bool:
        """Whether a placement may make nodes feasible that were not."""
        return self._filters.may_grow

    def update(self) -> None:
        """Look again at the rows whose answers have changed, unless pods have only taken equal rows since."""
        if self._equal is not None and self._equal.explain(self._placements, self._seen):
            return
        self._look_again()

    def _look_again(self) -> None:
        self._equal = None
        placements = self._placements[self._seen :]
        if not placements:
            return
        self._seen += len(placements)
        if len(placements) == 1:
            rows = np.array([placements[0][1]])
        else:
            rows = np.array(sorted({row for _, row in placements}), dtype=np.int64)
        if self.query.reservation is not None:
            self.query.reserved[rows] = reserved(self.query.cluster, self.query.reservation)[rows]
        turned = self._filters.update(placements, rows)
        for index, (plugin, _, state) in enumerate(self._whole):
            asked = rows if plugin.reach is Reach.ROW else rows_to_ask(plugin, state, placements)
            if len(asked):
                self._score_whole(index, asked)
                self._look_for_abstentions(index, asked)
        if len(turned):
            self._stale = [True] * len(self._whole)
            for index in range(len(self._whole)):
                self._look_for_abstentions(index, turned)
        local = rows
        for plugin, _, state in self._local:
            local = union(local, rows_to_ask(plugin, state, placements))
        self._score_local(local)

    def totals(self) -> Floats:
        """By row, the weighted mean of its scores, 0 to 100; -inf where the pod can't go."""
        candidates = self._candidates()
        failed = self._without_metrics(candidates)
        self.by_allocation = bool(failed) and all(s.name in failed for s, _, _ in self._whole if s.needs_telemetry)
        all_given = self._last_given = self._given(candidates, failed)
        deciding = [(given, weight) for (_, weight, _), given in zip(self._whole, all_given) if given is not None]
        self._deciding = len(self._local) + len(deciding)
        if len(deciding) == 1 and not (self._local or self._abstained):
            means = deciding[0][0]
        else:
            means = self._means(deciding, failed)
        self._totals = np.where(candidates, means, -np.inf)
        return self._totals

    def _means(self, deciding: Sequence[tuple[Floats, float]], failed: Collection[str]) -> Floats:
        """By row, the weighted mean of all scores.

        Args:
            deciding: the numbers of scores that look at all rows or need telemetry, and the scores' weights.
            failed: names of the scores that have metrics of too few candidates.
        """
        sums = (self._weighted, self._weights)
        for given, weight in deciding:
            sums = _add(sums, given, weight, self._abstained)
        # A profile that compares nodes by requests in a way of its own needs no other
        if self.by_allocation and not any(s.by_requests for s, _ in self._profile.scores):
            strategy = self._profile.settings.load.requests_strategy
            for plugin, weight, _ in self._whole:
                if plugin.name in failed and plugin.missing_metrics != "Requests":
                    by_requests = stand_in(plugin, strategy).score(self.query, slice(0, len(self._weights)))
                    sums = _add(sums, by_requests, weight, self._abstained)
        weighted, weights = sums
        if self._abstained or not self._deciding:
            return np.divide(weighted, weights, out=np.full_like(weighted, NEUTRAL), where=weights > 0)
        return weighted / weights

    def best(self, generator: np.random.Generator) -> tuple[int, float] | None:
        """The best row and its score, or None; `break_tie` chooses among equal ones."""
        if self._equal is not None:
            row = self._equal.next(self.query, generator)
            if row is not None:
                return row, self._equal.score
            self._look_again()
        totals = self.totals()
        greatest = totals.max(initial=-np.inf)
        if greatest == -np.inf:
            return None
        ties: Ints = np.flatnonzero(totals == greatest)
        row = break_tie(ties, self.query, self._profile, generator)
        if len(ties) > 1 and not (self._local or self._abstained):
            scores = [(s, state, self._raw[i], self._last_given[i]) for i, (s, _, state) in enumerate(self._whole)]
            self._equal = equal_rows(ties, self._filters, self.query, scores)
        if self._equal is not None:
            self._equal.take(row)
        return row, float(greatest)

    def best_if_nominated(self, pod: PodView) -> tuple[int, float] | None:
        """The row that the pod is nominated for and its score, if it takes the pod; nothing else counts then."""
        self._look_again()
        cluster = self.query.cluster
        row = cluster.row_of.get(cluster.nominations.node_of(pod.uid))
        if row is None or not self._filters.passes(row) or not self._filters.takes_nominated(pod, row):
            return None
        return self._only(row)

    def best_if_recorded(self, row: int) -> tuple[int, float] | None:
        """The row that a placement record has a pod on and its score; None if anything but measurements is against it.

        By measurements, the pod was decided on when it was recorded.
        """
        self._look_again()
        rows = np.array([row])
        if not self.query.cluster.nodes.exists[row]:
            return None
        if any(not plugin.by_measurement and plugin.check(state, rows)[0] for plugin, state in self.filters):
            return None
        return self._only(row)

    def _only(self, row: int) -> tuple[int, float] | None:
        """The row and its score for the pod itself; it is looked at again once the pod is there."""
        before = self.feasible[row]
        self.feasible[row] = True
        self._stale = [True] * len(self._whole)
        score = float(self.totals()[row])
        if score > -np.inf:
            return row, score
        self.feasible[row] = before
        self._stale = [True] * len(self._whole)
        return None

    def reserve(self, assignment: Assignment) -> Assignment:
        """The assignment, with what each filter gives the pod on its node."""
        for plugin, state in self.filters:
            assignment = plugin.reserve(state, assignment)
        return assignment

    def top(self, chosen: int, count: int) -> tuple[Ranked, ...]:
        """The chosen row and the next best ones as `best` saw them, with what each plugin gave them.

        Where one score decides there is nothing to compare, and nothing is computed.
        """
        if self._deciding < 2:
            return ()
        totals = self._totals.copy()
        totals[chosen] = np.inf
        best = []
        for _ in range(min(count, len(totals))):
            best.append(int(totals.argmax()))
            totals[best[-1]] = -np.inf
        rows: Ints = np.array([row for row in best if self._totals[row] > -np.inf], dtype=np.int64)
        return _ranked(self.query.names(rows), self._totals[rows], self.by_plugin(rows))

    def by_plugin(self, rows: Ints) -> dict[str, Floats]:
        """What each score gave these rows in `totals`, 0 to 100; NaN where it abstains or requests decide for it."""
        shown = dict.fromkeys((plugin.name for plugin, _ in self._profile.scores), np.full(len(rows), np.nan))
        for plugin, _, state in self._local:
            shown[plugin.name] = plugin.score(state, rows)
        # What is filled in for missing metrics differs from what is shown
        all_given = self._last_given
        if self._abstained:
            candidates = self._candidates()
            all_given = self._given(candidates, self._without_metrics(candidates), _SHOWN)
        for (plugin, _, _), given in zip(self._whole, all_given):
            if given is not None:
                shown[plugin.name] = given[rows]
        return shown

    def _given(
        self, candidates: Bools, failed: Collection[str], fills: Collection[MissingMetrics] = _FILLED
    ) -> list[Floats | None]:
        """By row, the scores that look at all rows or need telemetry, with missing ones filled in by these rules.

        None where a score is the same for every node.
        """
        given = []
        for index, (plugin, _, _) in enumerate(self._whole):
            scores = self._from_0_to_100(index)
            if plugin.name in failed and plugin.missing_metrics != "Requests":
                scores = np.full_like(self._raw[index], np.nan)
            elif scores is not None and self._abstained and plugin.needs_telemetry and plugin.missing_metrics in fills:
                scores = settle(scores, candidates, plugin.missing_metrics)
            given.append(scores)
        return given

    def _from_0_to_100(self, index: int) -> Floats | None:
        """By row, what the score gives, NaN where the pod can't go; None if it is the same for every node."""
        if self._stale[index]:
            plugin, _, state = self._whole[index]
            raw = np.where(self.feasible, self._raw[index], np.nan)
            self._normalised[index] = plugin.normalise(state, raw) if plugin.needs_normalising else raw
            self._stale[index] = False
        return self._normalised[index]

    def _without_metrics(self, candidates: Bools) -> Collection[str]:
        """Names of the scores that have metrics of too few candidates."""
        if not self._abstained:
            return ()
        by_load = self._profile.settings.load.min_measured_percent
        return frozenset(
            plugin.name
            for (plugin, _, _), known, raw in zip(self._whole, self._known, self._raw)
            if plugin.needs_telemetry
            and too_few_are_measured(
                known & ~np.isnan(raw), candidates, by_load if "load" in plugin.needs_telemetry else 0
            )
        )

    def _count_abstentions(self) -> None:
        for (plugin, _, _), known in zip(self._whole, self._known):
            missing = int(np.count_nonzero(~known & self.feasible))
            if missing and plugin.needs_telemetry:
                self.abstentions[plugin.name] = missing

    def _candidates(self) -> Bools:
        """The feasible nodes; if a standing reservation holds a unit for the pod on some of them, those alone."""
        if self.query.reservation is not None and (with_unit := self.feasible & (self.query.reserved > 0)).any():
            return with_unit
        return self.feasible

    def _score_local(self, rows: Rows) -> None:
        if not self._local:
            return
        rows = compact(rows)
        size = len(self.query.basis[rows])
        sums = np.zeros(size), np.zeros(size)
        for scorer, weight, state in self._local:
            scores = scorer.score(state, rows)
            self._abstained |= bool(np.isnan(scores).any())
            sums = _add(sums, scores, weight, self._abstained)
        self._weighted[rows], self._weights[rows] = sums

    def _score_whole(self, index: int, rows: Rows) -> None:
        rows = compact(rows)
        scorer, _, state = self._whole[index]
        self._raw[index][rows] = scorer.score(state, rows)
        if scorer.needs_telemetry:
            self._known[index][rows] = scorer.knows(self.query, rows)
        self._stale[index] = True

    def _look_for_abstentions(self, index: int, rows: Rows) -> None:
        if not self._abstained:
            rows = compact(rows)
            given = ~np.isnan(self._raw[index][rows]) & self._known[index][rows]
            self._abstained = not given[self.feasible[rows]].all()
