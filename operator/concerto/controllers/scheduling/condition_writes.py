"""Writes of conditions that are tried again later, and not at once, if the API server failed to store them."""

from __future__ import annotations

import logging

from concerto.kube import ApiError, KubeError, Object, ServerError, Session, TooManyRequests, Unauthorized
from concerto.kube.errors import seconds_asked
from concerto.kube.request_bodies import STRATEGIC_PATCH, Patch

logger = logging.getLogger(__name__)


async def store_condition(session: Session, path: str, patch: Object, *, timeout_seconds: float) -> float | None:
    """Try once to store a condition.

    Args:
        session: the way to the API server.
        path: of the object's status.
        patch: a strategic merge patch whose precondition is the object's UID.
        timeout_seconds: for the write.

    Returns:
        None if that is settled: it is stored, or refused, as the object is gone or another one has its name. Else, as
        the API server may succeed later, for how many seconds it asks not to be asked again; 0 if it does not.
    """
    try:
        body = Patch(STRATEGIC_PATCH, patch)
        await session.request("PATCH", path, body=body, timeout_seconds=timeout_seconds, attempts=1)
    except KubeError as error:
        is_refused = isinstance(error, ApiError) and not isinstance(error, TooManyRequests | ServerError | Unauthorized)
        logger.log(logging.DEBUG if is_refused else logging.INFO, "%s: %s", path, error)
        return None if is_refused else seconds_asked(error)
    return None
