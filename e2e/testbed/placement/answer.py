"""What a scheduler says of a pod."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One of three: a node, a reason why no node will do as it is, or that the pod is not looked at yet.

    Attributes:
        node: the node that the pod is placed on; empty without one.
        message: why it finds no node, in the words of its condition PodScheduled; empty if it finds one.
        waits: whether it is not looked at, because of its scheduling gates.
        nominated: the node on which pods are evicted for it; empty if none are.
        victims: those pods, as ``namespace/name``, the ones that are being deleted already among them.
    """

    node: str = ""
    message: str = ""
    waits: bool = False
    nominated: str = ""
    victims: frozenset[str] = frozenset()
