"""ImageLocality: nodes that have the pod's images already. Source: kube-scheduler's plugin of that name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from concerto.scheduling.framework import Query, Reach, ScoreDefaults
from concerto.scheduling.state.columns import Floats, Rows

_MIB = 1024 * 1024
_MIN_BYTES = 23 * _MIB
"""Below it, an image is pulled so fast that it does not matter."""
_MAX_BYTES_PER_IMAGE = 1000 * _MIB


@dataclass(frozen=True)
class Images:
    """What the pod's images are worth.

    Attributes:
        bytes_by_row: size of those that are on the row, each times the part of all nodes that have it: a new image
            does not draw all pods to the few nodes that have it.
        count: how many images the pod has.
    """

    bytes_by_row: Floats
    count: int


class ImageLocality(ScoreDefaults):
    """From 0 for less than 23 MiB of the pod's images to 100 for 1000 MiB of each."""

    name: ClassVar[str] = "ImageLocality"
    reach: ClassVar[Reach] = Reach.NOWHERE

    def prepare(self, query: Query) -> Images | None:
        """Sizes by row; pods of whose images no node has enough are not concerned."""
        cluster = query.cluster
        total, nodes = np.zeros(cluster.size), max(1, len(cluster.nodes.views))
        for image in query.pod.images:
            sizes = cluster.images.sizes(image, cluster.size)
            if sizes is not None:
                total += np.floor(sizes * (cluster.images.nodes_with(image) / nodes))
        return Images(total, len(query.pod.images)) if (total > _MIN_BYTES).any() else None

    def score(self, state: Images, rows: Rows) -> Floats:
        """In kube-scheduler's integers."""
        most = _MAX_BYTES_PER_IMAGE * state.count
        clamped = np.clip(state.bytes_by_row[rows], _MIN_BYTES, most)
        score: Floats = np.floor(100.0 * (clamped - _MIN_BYTES) / (most - _MIN_BYTES))
        return score
