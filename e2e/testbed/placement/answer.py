"""What a scheduler says of a pod."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """One of three: a node, a reason why no node will do, or that the pod is not looked at yet.

    Attributes:
        node: the node that the pod is placed on; empty without one.
        message: why it finds no node, in the words of its condition PodScheduled; empty if it finds one.
        waits: whether it is not looked at, because of its scheduling gates.
    """

    node: str = ""
    message: str = ""
    waits: bool = False
