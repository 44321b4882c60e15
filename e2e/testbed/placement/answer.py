"""What a scheduler says of a pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Scores = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Answer:
    """One of three: a node, a reason why no node will do as it is, or that the pod is not looked at yet.

    Attributes:
        node: the node that the pod is placed on; empty without one.
        message: why it finds no node, in the words of its condition PodScheduled; empty if it finds one.
        waits: whether it is not looked at, because of its scheduling gates.
        nominated: the node on which pods are evicted for it; empty if none are.
        victims: those pods, as ``namespace/name``, the ones that are being deleted already among them.
        scores: by plugin and feasible node, 0 to 100, where they are known; a plugin that does not concern the pod, or
            gives all nodes the same, may be left out.
    """

    node: str = ""
    message: str = ""
    waits: bool = False
    nominated: str = ""
    victims: frozenset[str] = frozenset()
    scores: Scores = field(default_factory=dict, compare=False, repr=False)
