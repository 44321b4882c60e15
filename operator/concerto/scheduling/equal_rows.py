"""Equally good rows: pods with one signature take them in turn, without another evaluation of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from concerto.scheduling.feasibility import Feasibility, Placement
from concerto.scheduling.framework import Query, Score
from concerto.scheduling.rounding import share, shares
from concerto.scheduling.state.columns import Floats, Ints


class EqualRows:
    """Rows that were best for a pod, and that are still the best ones for the next pods with its signature.

    One score decides: each row gets its own number as a share of the greatest number. So a placement changes only the
    score of its row, as long as another row has the greatest number. Once none has it, the rows that have the greatest
    share of the next number follow. A row from here is one that another evaluation of all nodes would give.

    Args:
        rows: the rows, in the order in which ties are broken.
        score: their score, 0 to 100.
        decides: the score that decides, and its state.
        greatest: the greatest number, and by row the numbers, which are changed.

    Attributes:
        score: see above.
    """

    def __init__(
        self, rows: list[int], score: float, decides: tuple[Score, Any], greatest: tuple[float, Floats]
    ) -> None:
        self.score = score
        self._rows = rows
        self._decides = decides
        self._greatest, self._numbers = greatest
        self._with_greatest = int(np.count_nonzero(self._numbers[rows] == self._greatest))
        self._taken: list[int] = []
        self._explained = 0  # of the rows that are taken, those that placements were compared with

    def take(self, row: int) -> None:
        """The row is taken."""
        self._rows.remove(row)
        self._note_taken(row)

    def _note_taken(self, row: int) -> None:
        self._taken.append(row)
        self._with_greatest -= self._numbers[row] == self._greatest
        self._numbers[row] = np.nan

    def next(self, query: Query, generator: np.random.Generator) -> int | None:
        """The row for the next pod, which counts as taken; None if all nodes have to be evaluated."""
        score, state = self._decides
        last = self._taken[-1]
        if self._rows and self._with_greatest:
            number = float(score.score(state, slice(last, last + 1))[0])
            if not share(number, self._greatest) < self.score:
                return None
        elif not self._follow(query):
            return None
        by_name = query.settings.tie_breaking == "FirstByName"
        row = self._rows.pop(0 if by_name else int(generator.integers(len(self._rows))))
        self._note_taken(row)
        return row

    def _follow(self, query: Query) -> bool:
        """Go on with the rows that are best now; False if more has to be looked at."""
        plugin, state = self._decides
        greatest = plugin.greatest(state, self._numbers)
        if greatest is None:
            return False
        given = shares(self._numbers, greatest)
        best = share(greatest, greatest)
        if not (shares(plugin.score(state, np.array(self._taken)), greatest) < best).all():
            return False  # a row that was taken may be among the best
        self.score, self._greatest = best, greatest
        self._rows = _in_order(np.flatnonzero(given == best), query)
        self._with_greatest = int(np.count_nonzero(self._numbers[self._rows] == greatest))
        return True

    def explain(self, placements: Sequence[Placement], seen: int) -> bool:
        """Whether the placements from number ``seen`` on are just those of pods that took rows here."""
        since = [row for _, row in placements[seen + self._explained :]]
        if since != self._taken[self._explained :]:
            return False
        self._explained = len(self._taken)
        return True


def equal_rows(
    ties: Ints, filters: Feasibility, query: Query, scores: Sequence[tuple[Score, Any, Floats, Floats | None]]
) -> EqualRows | None:
    """The rows for pods with the query's signature; None if all nodes have to be evaluated for them.

    Args:
        ties: the best rows.
        filters: which rows are feasible.
        query: the pod.
        scores: plugin, its state, its numbers by row, and these from 0 to 100: None where the score decides nothing.
    """
    deciding = [(plugin, state, raw, given) for plugin, state, raw, given in scores if given is not None]
    if len(deciding) != 1 or query.reservation is not None or any(plugin.ties_by_requests for plugin, *_ in scores):
        return None
    if not (filters.ignores_alike and all(plugin.ignores_alike(state) for plugin, state, *_ in scores)):
        return None
    plugin, state, raw, given = deciding[0]
    numbers = np.where(filters.feasible, raw, np.nan)
    greatest = plugin.greatest(state, numbers)
    if greatest is None or given is None:
        return None
    return EqualRows(_in_order(ties, query), float(given[ties[0]]), (plugin, state), (greatest, numbers))


def _in_order(ties: Ints, query: Query) -> list[int]:
    """Equally good rows in the order of `break_tie`."""
    if query.settings.tie_breaking == "FirstByName":
        ties = ties[np.argsort(query.cluster.rows.name_ranks()[ties], kind="stable")]
    rows: list[int] = ties.tolist()
    return rows
