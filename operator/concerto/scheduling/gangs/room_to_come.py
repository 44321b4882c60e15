"""Rows on which a gang holds room for those of its pods that find none yet. Pure.

Room comes free in pieces. Smaller pods take each piece that is too small for a pod of the gang, unless all that the
pod needs is held before it is free.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from concerto.api.pod import PodView
from concerto.scheduling.evaluation import Evaluation
from concerto.scheduling.gangs.gang import MAX_PODS
from concerto.scheduling.gangs.trial import Trial
from concerto.scheduling.state.columns import Floats, Ints
from concerto.scheduling.state.resources import PODS


class RoomToCome:
    """The choice of rows for the pods of one gang. Each pod has to be assumed on its row before the next one is chosen.

    Args:
        trial: the gang's pods that are assumed.

    Attributes:
        never_fit: pods that no node would take if all pods but the gang's left it, as far as is known.
    """

    def __init__(self, trial: Trial) -> None:
        self.never_fit = 0
        self._trial = trial
        self._alike: Hashable = None
        self._left: Floats = np.zeros(0)  # by row, pods like it that there is room for: negative where some is missing
        self._most: Ints = np.zeros(0, dtype=np.int64)  # by row, pods like it for which the node is large enough
        self._ever_fits = False  # whether one alone would fit on any row

    def row_for(self, pod: PodView, alike: Hashable, evaluation: Evaluation) -> int | None:
        """The row which the least has to leave before the pod fits; None if it would fit nowhere.

        Args:
            pod: the pod.
            alike: the same for pods with the same answers.
            evaluation: of such pods; no node is feasible.
        """
        if self._alike != alike or evaluation.may_grow:
            evaluation.update()
            self._alike = alike
            self._find(pod, evaluation)
        left = np.where(self._most > 0, self._left, -np.inf)
        row = int(left.argmax())
        if left[row] == -np.inf:
            # What others of the gang take may be missing only because of the order, and pods to come may mend the rest
            waits = pod.shape.affinity or pod.shape.hard_spread or pod.volumes
            self.never_fit += not (self._ever_fits or waits)
            return None
        self._left[row] -= 1.0
        self._most[row] -= 1
        return row

    def _find(self, pod: PodView, evaluation: Evaluation) -> None:
        query, resources = evaluation.query, evaluation.query.cluster.resources
        rows = slice(0, query.cluster.size)
        self._left = query.capacity(rows).copy()
        self._most = np.full(query.cluster.size, MAX_PODS)
        ever_fits = self._most > 0
        for resource, amount in ((PODS, 1), *((name, amount) for name, amount in pod.requests.items() if amount)):
            self._left = np.fmin(self._left, resources.free((resource,), rows)[0] / amount)
            of_gang = np.zeros_like(self._most)
            for member, row in self._trial:
                of_gang[row] += 1 if resource == PODS else member.requests.get(resource, 0)
            self._most = np.minimum(self._most, (resources.allocatable(resource, rows) - of_gang) // amount)
            ever_fits &= resources.allocatable(resource, rows) >= amount
        for plugin, state in evaluation.filters:
            codes = plugin.check(state, rows)
            ever_fits &= np.isin(codes, [0, *plugin.resolvable])
            mended = list(plugin.resolvable) if plugin.by_amount else []
            self._most[~np.isin(codes, [0, *mended])] = 0
        self._ever_fits = bool(ever_fits.any())
