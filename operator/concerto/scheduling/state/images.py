"""Container images that are on nodes already."""

from __future__ import annotations

import numpy as np

from concerto.api.node import NodeView
from concerto.scheduling.state.columns import Floats
from concerto.scheduling.state.pod_index import PodIndex


class ImageIndex(PodIndex):
    """Sizes of images by name and row, from ``status.images`` of Nodes."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[int, int]] = {}
        self._on_row: dict[int, frozenset[str]] = {}

    def sizes(self, image: str, size: int) -> Floats | None:
        """By row (so many), bytes of the image where it is on the node, else 0; None if no node has it."""
        found = self._sizes.get(image)
        if found is None:
            return None
        column = np.zeros(size)
        column[list(found)] = list(found.values())
        return column

    def nodes_with(self, image: str) -> int:
        """How many nodes have the image."""
        return len(self._sizes.get(image, ()))

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node has these images, or is gone."""
        images = {} if node is None else node.images
        for name in self._on_row.pop(row, frozenset()) - images.keys():
            del self._sizes[name][row]
            if not self._sizes[name]:
                del self._sizes[name]
        for name, size in images.items():
            self._sizes.setdefault(name, {})[row] = size
        if images:
            self._on_row[row] = frozenset(images)
