"""Bind one pod to one node, and know how it ended.

The binding subresource is a compare-and-set: the API server lets a pod be bound once, and only the one whose UID is
sent. So a POST may be repeated *to the same node* until its outcome is known; a pod is decided afresh only after a
definite answer. A timeout is not a failure, and a 409 may mean "already ours".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from concerto.api.pod import PodView
from concerto.api.pod_end import TERMINAL
from concerto.kube import ApiError, NotFound, Object, Session
from concerto.kube.confirmed_writes import NotWritten, OnFailure, WriteSettings, write_until_known
from concerto.kube.resources import PODS


class BindResult(Enum):
    """How a binding ended."""

    BOUND = "bound"  # to the node we chose
    GONE = "gone"  # the pod was deleted, ended, or replaced by another of its name
    ELSEWHERE = "elsewhere"  # somebody else bound it, to another node
    REFUSED = "refused"  # the API server refused; the message says why


@dataclass(frozen=True)
class BindOutcome:
    """The end of a binding and the API server's sentence about it."""

    result: BindResult
    message: str = ""


@dataclass(frozen=True)
class BinderSettings:
    """How a binding is tried.

    Attributes:
        timeout_seconds: for one POST. Shorter than lease duration minus renew deadline (5 s), so that no binding of a
            leader that lost its Lease can be carried out after a successor has begun to decide.
        first_backoff_seconds: wait before the second attempt; doubles each time.
        max_backoff_seconds: the doubling ends there.
        give_up_after_seconds: when a pod that is known to be unbound is no longer tried, to be decided afresh. While
            the outcome is unknown the binding is repeated for ever.
    """

    timeout_seconds: float = 4.0
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    give_up_after_seconds: float = 60.0


def build_binding(namespace: str, name: str, uid: str, node: str) -> Object:
    """The body of a binding POST; the UID makes it fail for any other pod of that name."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"namespace": namespace, "name": name, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


async def bind(
    session: Session,
    pod: PodView,
    node: str,
    settings: BinderSettings | None = None,
    *,
    may_write: Callable[[], bool] = lambda: True,
    on_failure: OnFailure = lambda failure, seconds: None,
) -> BindOutcome:
    """Bind the pod, repeating until the outcome is known (for as long as the API server is away).

    Args:
        session: the way to the API server.
        pod: the pod; one of the same name with another UID is never bound.
        node: where to.
        settings: timeouts and backoff.
        may_write: whether this process still leads; see `write_until_known`.
        on_failure: given each failed attempt that is repeated.
    """
    settings = settings or BinderSettings()
    path = PODS.path(pod.namespace, pod.name, "binding")
    body = build_binding(pod.namespace, pod.name, pod.uid, node)

    async def write() -> BindOutcome:
        await session.request("POST", path, body=body, timeout_seconds=settings.timeout_seconds, attempts=1)
        return BindOutcome(BindResult.BOUND)

    try:
        return await write_until_known(
            write,
            lambda: _read_back(session, pod, node),
            may_write=may_write,
            on_failure=on_failure,
            name="binding",
            settings=WriteSettings(
                settings.first_backoff_seconds, settings.max_backoff_seconds, settings.give_up_after_seconds
            ),
        )
    except NotFound as error:
        return BindOutcome(BindResult.GONE, error.message)
    except ApiError as error:
        # Known to be unbound, and refused. With a conflict it is being deleted, or has scheduling gates again
        return BindOutcome(BindResult.REFUSED, error.message)
    except NotWritten as error:
        return BindOutcome(BindResult.REFUSED, str(error))


async def _read_back(session: Session, pod: PodView, node: str) -> BindOutcome | None:
    """What the pod itself shows; None when it exists and is unbound."""
    try:
        found = await session.get(PODS.path(pod.namespace, pod.name))
    except NotFound as error:
        return BindOutcome(BindResult.GONE, error.message)
    if found["metadata"]["uid"] != pod.uid:
        return BindOutcome(BindResult.GONE, "another pod has its name now")
    bound_to = found.get("spec", {}).get("nodeName")
    if bound_to == node:
        return BindOutcome(BindResult.BOUND)
    if bound_to:
        return BindOutcome(BindResult.ELSEWHERE, f"bound to {bound_to} by another scheduler")
    if found.get("status", {}).get("phase") in TERMINAL:
        return BindOutcome(BindResult.GONE, "it has ended")
    return None
