"""Bind one pod to one node, and know how it ended.

The binding subresource is a compare-and-set: the API server lets a pod be bound once, and only the one whose UID is
sent. So a POST may be said again *to the same node* until its outcome is known; a pod is decided afresh only after a
definite answer. A timeout is not a failure, and a 409 may mean "already ours".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from concerto.kube import ApiError, KubeError, NotFound, Object, Session, TooManyRequests
from concerto.kube.resources import PODS


class BindResult(Enum):
    """How a binding ended."""

    BOUND = "bound"  # to the node we chose
    GONE = "gone"  # the pod was deleted, ended, or replaced by another of its name
    ELSEWHERE = "elsewhere"  # somebody else bound it, to another node
    REFUSED = "refused"  # the API server will not have it; the message says why


@dataclass(frozen=True)
class BindOutcome:
    """The end of a binding and what was said about it."""

    result: BindResult
    message: str = ""


@dataclass(frozen=True)
class BinderSettings:
    """How a binding is tried.

    Attributes:
        timeout_seconds: for one POST. Shorter than lease duration minus renew deadline (5 s), so that no binding of a
            leader that lost its Lease can be carried out after a successor has begun to decide.
        first_backoff_seconds: wait before the second attempt; doubles each time.
        longest_backoff_seconds: no wait is longer.
        give_up_after_seconds: when a pod that is known to be unbound is not tried any further, to be decided afresh.
            While nothing is known it is tried for ever.
    """

    timeout_seconds: float = 4.0
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 5.0
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
    namespace: str,
    name: str,
    uid: str,
    node: str,
    settings: BinderSettings | None = None,
    *,
    may_write: Callable[[], bool] = lambda: True,
) -> BindOutcome:
    """Bind the pod, repeating until the outcome is known (for as long as the API server is away).

    Args:
        session: the way to the API server.
        namespace: the pod's.
        name: the pod's.
        uid: the pod's; a pod of the same name with another UID is never bound.
        node: where to.
        settings: timeouts and backoff.
        may_write: whether this process still leads. A process that was stopped for a while (SIGSTOP, a paused machine)
            wakes up anywhere, so it is asked before each POST; once it says no, nothing is sent and nothing returned.
    """
    settings = settings or BinderSettings()
    path = PODS.path(namespace, name, "binding")
    body = build_binding(namespace, name, uid, node)
    backoff = settings.first_backoff_seconds
    began = time.monotonic()
    while True:
        refusal: ApiError | None = None
        wait = backoff
        if not may_write():
            await asyncio.Event().wait()
        try:
            await session.request("POST", path, body=body, timeout_seconds=settings.timeout_seconds, attempts=1)
            return BindOutcome(BindResult.BOUND)
        except NotFound as error:
            return BindOutcome(BindResult.GONE, error.message)
        except TooManyRequests as error:
            wait = max(wait, error.retry_after or 0.0)
        except ApiError as error:
            # A conflict may mean "already ours", and any other refusal may be that of a second attempt
            refusal = error
        except KubeError:
            pass  # outcome unknown, or unreachable
        try:
            outcome = await _read_back(session, namespace, name, uid, node)
        except KubeError:
            pass  # nothing can be learned now: say it again
        else:
            if outcome is not None:
                return outcome
            if refusal is not None:
                # Known to be unbound, and refused. With a conflict it is being deleted, or has scheduling gates again
                return BindOutcome(BindResult.REFUSED, refusal.message)
            if time.monotonic() - began > settings.give_up_after_seconds:
                return BindOutcome(BindResult.REFUSED, "the API server did not take the binding in time")
        await asyncio.sleep(wait)
        backoff = min(backoff * 2, settings.longest_backoff_seconds)


async def _read_back(session: Session, namespace: str, name: str, uid: str, node: str) -> BindOutcome | None:
    """What the pod itself says; None when it is there and unbound."""
    try:
        pod = await session.get(PODS.path(namespace, name))
    except NotFound as error:
        return BindOutcome(BindResult.GONE, error.message)
    if pod["metadata"]["uid"] != uid:
        return BindOutcome(BindResult.GONE, "another pod has its name now")
    bound_to = pod.get("spec", {}).get("nodeName")
    if bound_to == node:
        return BindOutcome(BindResult.BOUND)
    if bound_to:
        return BindOutcome(BindResult.ELSEWHERE, f"bound to {bound_to} by somebody else")
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return BindOutcome(BindResult.GONE, "it has ended")
    return None
