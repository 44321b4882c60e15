"""One template's view of the cluster during one cycle: which nodes are feasible, and how good they are.

Its first pod has every plugin look at all nodes. For its siblings only the rows are looked at again whose answers have
changed since: within a cycle nothing happens to the cluster but the cycle's own placements.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, ReservationKey
from concerto.api.score_arguments import MissingMetrics
from concerto.scheduling.framework import NO_ROWS, Filter, Plugin, Query, Reach, union
from concerto.scheduling.missing_metrics import settle, stand_in, too_few_are_measured
from concerto.scheduling.nominated_room import refusal_beside
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from concerto.scheduling.state.columns import Bools, Floats, Ints, Rows
from concerto.scheduling.state.what_if import RowWhatIf

_FILLED: tuple[MissingMetrics, ...] = ("LeastScore", "Abstain")
_SHOWN: tuple[MissingMetrics, ...] = ("LeastScore",)
"""Rules whose filled in score is shown as the plugin's: under Abstain it is the other nodes'."""
NEUTRAL = 50.0
"""Score of a node on which every score plugin abstains: neither the best nor the worst."""

Placement = tuple[PodView | None, int]
"""A pod that the cycle has placed and its row; without a pod, a row that has changed in another way."""


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


class Feasibility:
    """Which rows the filters let pass.

    Args:
        query: the first pod of the template.
        filters: the profile's.

    Attributes:
        filters: those that concern the pod, with what they prepared, in order.
        feasible: by row, whether every filter lets it pass.
    """

    def __init__(self, query: Query, filters: Iterable[Filter]) -> None:
        self.filters = [(f, state) for f in filters if (state := f.prepare(query)) is not None]
        self._by_row = [(f, state) for f, state in self.filters if f.reach is Reach.ROW]
        self._by_domain = [(f, state) for f, state in self.filters if f.reach is Reach.DOMAIN]
        every = slice(0, query.cluster.size)
        self._fixed: Bools = query.cluster.nodes.exists[every].copy()
        for plugin, state in self.filters:
            if plugin.reach is Reach.NOWHERE:
                self._fixed &= plugin.check(state, every) == 0
        self._passes = [plugin.check(state, every) == 0 for plugin, state in self._by_domain]
        self._cluster = query.cluster
        nominated = query.cluster.nominations.of_priority(query.pod.priority) if query.cluster.nominations else {}
        row_of = query.cluster.row_of
        self._nominated = {row_of[node]: pods for node, pods in nominated.items() if node in row_of}
        self.feasible: Bools = self._fixed.copy()
        self._look(every)

    @property
    def may_grow(self) -> bool:
        """Whether a placement may let more nodes pass than before."""
        return bool(self._by_domain or self._nominated)

    def update(self, placements: Sequence[Placement], rows: Ints) -> Ints:
        """Look again after these placements, on these rows; returns other rows that pass now or do not any more."""
        again = self._nominated_rows_of(placements)
        for (plugin, state), passes in zip(self._by_domain, self._passes):
            asked = rows_to_ask(plugin, state, placements)
            if len(asked):
                passes[asked] = plugin.check(state, asked) == 0
                again = union(again, asked)
        if len(again):
            before = self.feasible[again]
            self._look(again)
            again = again[self.feasible[again] != before]
        self._look(rows)
        return again

    def _look(self, rows: Rows) -> None:
        mask = self._fixed[rows] if not isinstance(rows, slice) else self._fixed[rows].copy()
        for plugin, state in self._by_row:
            mask &= plugin.check(state, rows) == 0
        for passes in self._passes:
            mask &= passes[rows]
        self.feasible[rows] = mask
        for row, pods in self._nominated.items():
            if self.feasible[row] and (isinstance(rows, slice) or row in rows):
                waiting = [pod for pod in pods if not self._cluster.is_placed(pod.uid)]
                self.feasible[row] = self._takes_beside(row, waiting)

    def _nominated_rows_of(self, placements: Sequence[Placement]) -> Ints:
        """Rows on which room was kept for pods that the cycle has placed since, there or elsewhere."""
        if not self._nominated:
            return NO_ROWS
        node_of, row_of = self._cluster.nominations.node_of, self._cluster.row_of
        nodes = (node_of(pod.uid) for pod, _ in placements if pod is not None)
        rows = {row_of[node] for node in nodes if node in row_of}
        return np.array(sorted(rows & self._nominated.keys()), dtype=np.int64)

    def _takes_beside(self, row: int, nominated: Sequence[PodView]) -> bool:
        return not (nominated and refusal_beside(RowWhatIf(self._cluster, row), row, self.filters, nominated))

    def takes_nominated(self, pod: PodView, row: int) -> bool:
        """Whether the row takes a pod that is nominated for it, beside the others that go before it there."""
        pods = self._cluster.nominations.beside(pod, self._cluster.names[row])
        if any(plugin.check(state, np.array([row]))[0] for plugin, state in self.filters):
            return False
        return self._takes_beside(row, pods)


class Evaluation:
    """Feasible nodes and their scores for one kind of pod.

    Args:
        query: its first pod.
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
        self._raw = np.full((len(self._whole), size), np.nan)  # of the others, as `normalise` takes them
        self._known = np.ones((len(self._whole), size), dtype=np.bool_)  # of which nodes they have metrics
        self._score_local(slice(0, size))
        for index in range(len(self._whole)):
            self._score_whole(index, slice(0, size))
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
        """Look again at the rows whose answers have changed."""
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
        changed = self._filters.update(placements, rows)
        if len(changed):
            rows = union(rows, changed)
        local = rows
        for plugin, _, state in self._local:
            local = union(local, rows_to_ask(plugin, state, placements))
        self._score_local(local)
        for index, (plugin, _, state) in enumerate(self._whole):
            self._score_whole(index, union(rows, rows_to_ask(plugin, state, placements)))

    def totals(self) -> Floats:
        """By row, the weighted mean of its scores, 0 to 100; -inf where the pod can't go."""
        weighted, weights = self._weighted, self._weights
        candidates = self._candidates()
        failed = self._without_metrics(candidates)
        self.by_allocation = bool(failed) and all(s.name in failed for s, _, _ in self._whole if s.needs_telemetry)
        all_given = self._last_given = self._given(candidates, failed)
        self._deciding = len(self._local) + len(all_given) - sum(given is None for given in all_given)
        for (_, weight, _), given in zip(self._whole, all_given):
            if given is not None:
                weighted, weights = self._add(weighted, weights, given, weight)
        # A profile that compares nodes by requests in a way of its own needs no other
        if self.by_allocation and not any(s.by_requests for s, _ in self._profile.scores):
            strategy = self._profile.settings.load.requests_strategy
            for plugin, weight, _ in self._whole:
                if plugin.name in failed and plugin.missing_metrics != "Requests":
                    by_requests = stand_in(plugin, strategy).score(self.query, slice(0, len(weights)))
                    weighted, weights = self._add(weighted, weights, by_requests, weight)
        if self._abstained or not self._deciding:
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

    def best_if_nominated(self, pod: PodView) -> tuple[int, float] | None:
        """The row that the pod is nominated for and its score, if it takes the pod; nothing else counts then."""
        cluster = self.query.cluster
        row = cluster.row_of.get(cluster.nominations.node_of(pod.uid))
        if row is None or not self._filters.takes_nominated(pod, row):
            return None
        self.feasible[row] = True  # for the pod itself; it is looked at again once the pod is there
        score = float(self.totals()[row])
        return None if score == -np.inf else (row, score)

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
        """What each score gave these rows in `totals`, 0 to 100; NaN where it abstains or requests decide for it."""
        shown = {plugin.name: np.full(len(rows), np.nan) for plugin, _ in self._profile.scores}
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
        for (plugin, _, state), raw in zip(self._whole, self._raw):
            scores = plugin.normalise(state, raw) if plugin.needs_normalising else raw
            if plugin.name in failed and plugin.missing_metrics != "Requests":
                scores = np.full_like(raw, np.nan)
            elif scores is not None and self._abstained and plugin.needs_telemetry and plugin.missing_metrics in fills:
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
        size = len(self.query.basis[rows])
        weighted, weights = np.zeros(size), np.zeros(size)
        for scorer, weight, state in self._local:
            scores = scorer.score(state, rows)
            self._abstained |= bool(np.isnan(scores).any())
            weighted, weights = self._add(weighted, weights, scores, weight)
        self._weighted[rows], self._weights[rows] = weighted, weights

    def _score_whole(self, index: int, rows: Rows) -> None:
        scorer, _, state = self._whole[index]
        mask = self.feasible[rows]
        scores = scorer.score(state, rows)
        self._raw[index][rows] = np.where(mask, scores, np.nan)
        known = self._known[index]
        if scorer.needs_telemetry:
            known[rows] = scorer.knows(self.query, rows)
        self._abstained |= bool(np.isnan(scores[mask]).any() or not known[rows][mask].all())

    def _add(self, weighted: Floats, weights: Floats, scores: Floats, weight: float) -> tuple[Floats, Floats]:
        """One more score; where it abstains, neither sum grows."""
        if not self._abstained:
            return weighted + scores * weight, weights + weight
        given = ~np.isnan(scores)
        return weighted + np.where(given, scores, 0.0) * weight, weights + given * weight


def rows_to_ask(plugin: Plugin, state: Any, placements: Iterable[Placement]) -> Ints:
    """The rows whose answers of a plugin with reach DOMAIN have changed by these placements."""
    rows = NO_ROWS
    if plugin.reach is Reach.DOMAIN:
        for pod, row in placements:
            if pod is not None:
                rows = union(rows, plugin.add_pod(state, pod, row))
    return rows
