"""Room for pods that a forecast asks for, held before they are made (`spec.prediction.reserveCapacity`).

One standing PodReservation for each rise: the pods that the rise makes use it up, and what they do not use is given up
after the horizon, when it was wrong. What is used up or over is removed with the next rise, or with its PredictiveHPA.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.predictivehpa import PredictiveHPA
from concerto.api.selectors import LabelSelector
from concerto.api.timestamps import parse_timestamp
from concerto.kube import Conflict, KubeError, NotFound, Object, Session
from concerto.kube.references import build_owner_reference
from concerto.kube.resources import POD_RESERVATIONS, PREDICTIVE_HPAS

logger = logging.getLogger(__name__)

OWNER_LABEL = "concerto.dev/predictivehpa"
_OVER = ("Consumed", "Expired")
_PATIENCE_SECONDS, _LOOK_SECONDS = 2.0, 0.1
_MAX_SECONDS = 5.0


def build_reservation(
    spec: PredictiveHPA, selector: LabelSelector, *, count: int, horizon_seconds: float, now: float
) -> Object:
    """The reservation for one rise.

    Args:
        spec: whose target rises.
        selector: of the target's pods.
        count: pods that the rise adds.
        horizon_seconds: by when they will be ready; the reservation expires after twice that.
        now: seconds; the name is made of it, so that a create whose outcome is unknown can be repeated.
    """
    expressions: list[dict[str, Any]] = []
    for requirement in selector.requirements or ():
        expression: dict[str, Any] = {"key": requirement.key, "operator": requirement.operator}
        if requirement.values:
            expression["values"] = list(requirement.values)
        expressions.append(expression)
    suffix = f"-forecast-{int(now)}"
    return {
        "apiVersion": POD_RESERVATIONS.api_version,
        "kind": POD_RESERVATIONS.kind,
        "metadata": {
            "name": _cut(spec.name, 253 - len(suffix)) + suffix,
            "namespace": spec.namespace,
            "labels": {OWNER_LABEL: _cut(spec.name, 63)},
            "ownerReferences": [build_owner_reference(PREDICTIVE_HPAS, spec.name, spec.uid)],
        },
        "spec": {
            "podSelector": {"matchExpressions": expressions},
            "count": min(count, 1000),
            "ttlSeconds": max(1, math.ceil(2 * horizon_seconds)),
        },
    }


def _cut(name: str, length: int) -> str:
    """A name that ends as names and labels may."""
    return name[:length].rstrip("-.")


async def reserve(session: Session, reservation: Object, *, now: float) -> str | None:
    """Hold the room, and remove what earlier rises left behind; returns what went wrong, if anything did.

    Returns once the scheduler has handled the reservation, so that the pods of the rise can use it. A rise does not
    wait for long, nor for its reservation to succeed: pods without reserved room are better than no pods.
    """
    try:
        async with asyncio.timeout(_MAX_SECONDS):
            return await _reserve(session, reservation, now)
    except TimeoutError:
        return f"the API server does not answer within {_MAX_SECONDS:g} s"


async def _reserve(session: Session, reservation: Object, now: float) -> str | None:
    namespace = reservation["metadata"]["namespace"]
    try:
        await session.create(POD_RESERVATIONS.path(namespace), reservation)
    except Conflict:
        pass  # it is there already
    except KubeError as error:
        return str(error)
    path = POD_RESERVATIONS.path(namespace, reservation["metadata"]["name"])
    wrong: str | None = f"no scheduler has handled it within {_PATIENCE_SECONDS:g} s: is Concerto's running?"
    for _ in range(round(_PATIENCE_SECONDS / _LOOK_SECONDS)):
        try:
            if status := (await session.get(path)).get("status") or {}:
                wrong = _not_held(status)
                break
        except KubeError as error:
            return str(error)
        await asyncio.sleep(_LOOK_SECONDS)
    selector = f"{OWNER_LABEL}={reservation['metadata']['labels'][OWNER_LABEL]}"
    try:
        listed = await session.list(POD_RESERVATIONS.path(namespace), label_selector=selector)
        owner = reservation["metadata"]["ownerReferences"][0]["uid"]
        for old in listed["items"]:
            # Long names share their first letters
            if owner not in {o["uid"] for o in old["metadata"].get("ownerReferences") or ()}:
                continue
            if _is_over(old, now):
                meta = old["metadata"]
                await session.delete(POD_RESERVATIONS.path(namespace, meta["name"]), uid=meta["uid"])
    except (NotFound, Conflict):
        pass  # deleted or changed meanwhile
    except KubeError as error:
        logger.warning("PodReservations of %s in %s cannot be tidied up: %s", selector, namespace, error)
    return wrong


def _not_held(status: Mapping[str, Any]) -> str | None:
    """Why room is not reserved, from the reservation's condition; None if it is."""
    if status.get("phase") != "Pending":
        return None
    ready = find_condition(status.get("conditions"), "Ready") or {}
    return str(ready.get("message", "it is pending"))


def _is_over(reservation: Object, now: float) -> bool:
    """Whether it is used up or expired, or should be and no scheduler has updated it."""
    if (reservation.get("status") or {}).get("phase") in _OVER:
        return True
    created, ttl = reservation["metadata"].get("creationTimestamp"), (reservation.get("spec") or {}).get("ttlSeconds")
    return created is not None and ttl is not None and now - parse_timestamp(created) > ttl
