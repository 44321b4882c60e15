"""What the parts of one controller share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from concerto.controllers.runtime.metrics import Metrics
from concerto.kube import Session
from concerto.kube.events import EventRecorder


@dataclass(frozen=True)
class Context:
    """What every part of a controller is given.

    Attributes:
        session: the way to the API server.
        namespace: the operator's own.
        recorder: where events go.
        metrics: where outcomes are counted.
        clock: seconds since the epoch, never jumping.
        may_write: whether this process still leads; asked immediately before a write that only the leader may send.
    """

    session: Session
    namespace: str
    recorder: EventRecorder
    metrics: Metrics
    clock: Callable[[], float]
    may_write: Callable[[], bool] = lambda: True
