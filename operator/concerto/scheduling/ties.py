"""Which of several equally good nodes is taken. Pure."""

from __future__ import annotations

import numpy as np

from concerto.scheduling.framework import Query
from concerto.scheduling.missing_metrics import stand_in
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.columns import Ints


def break_tie(ties: Ints, query: Query, profile: Profile, generator: np.random.Generator) -> int:
    """One of the rows.

    A score of risks is the same for all nodes without a risk. Beside it, requests decide among them, as in upstream's
    example, where NodeResourcesFit stays enabled (docs/references.md, "Load-aware scores"). Then ``spec.tieBreaking``
    decides.
    """
    if len(ties) > 1 and not any(score.by_requests for score, _ in profile.scores):
        for score, _ in profile.scores:
            if score.ties_by_requests:
                by_requests = stand_in(score, query.settings.load.requests_strategy).score(query, ties)
                ties = ties[by_requests == by_requests.max()]
    if len(ties) == 1:
        return int(ties[0])
    if query.settings.tie_breaking == "FirstByName":
        return int(ties[np.argmin(query.cluster.rows.name_ranks()[ties])])
    return int(ties[generator.integers(len(ties))])
