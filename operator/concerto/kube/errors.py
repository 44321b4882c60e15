"""What can go wrong with a request: small exceptions that carry the API server's own message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_RETRY_AFTER_SECONDS = 300.0
"""API servers ask for up to 32 s; what a broken proxy asks for must not put a client to sleep for days."""


class KubeError(Exception):
    """Anything that this package raises."""


class ConfigError(KubeError):
    """No usable way to reach a cluster was found; the message says what was looked for."""


class Unreachable(KubeError):
    """The API server could not be reached; what was asked for has not happened, or can safely be asked again."""


class OutcomeUnknown(KubeError):
    """The request may or may not have been carried out: read the object back before deciding anything."""


class TooLarge(KubeError):
    """The answer is larger than the caller takes."""


class ApiError(KubeError):
    """The API server refused.

    Attributes:
        status: HTTP status code.
        reason: CamelCase reason of the API's Status object, such as ``AlreadyExists``.
        message: of the Status object.
        retry_after: seconds that the server asks to wait, at most `MAX_RETRY_AFTER_SECONDS`, or None.
        details: the Status object's details (causes with their fields), perhaps empty.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_SECONDS)
        self.details: Mapping[str, Any] = details or {}


class Unauthorized(ApiError):
    """401: the credentials are missing, expired or wrong."""


class Forbidden(ApiError):
    """403: refused by RBAC, by admission, or because the namespace is terminating."""


class NotFound(ApiError):
    """404: no such object, or no such kind (yet)."""


class Conflict(ApiError):
    """409: it exists already, or has changed since, or a precondition does not hold."""


class Gone(ApiError):
    """410: the resourceVersion or continue token asked for is too old."""


class Invalid(ApiError):
    """422: the schema or a validation rule refuses the object."""


class TooManyRequests(ApiError):
    """429: asked too often; also an eviction that a disruption budget forbids."""


class ServerError(ApiError):
    """5xx: the API server or its storage is in trouble."""


def seconds_asked(error: BaseException) -> float:
    """For how long the API server asks not to send the request again; 0 if it does not ask for that."""
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def api_error(
    status: int, body: Mapping[str, Any] | None, text: str = "", retry_after: float | None = None
) -> ApiError:
    """The exception for a refusal.

    Args:
        status: HTTP status code, or the ``code`` of a Status object that came inside a watch.
        body: the Status object, if the answer held one.
        text: what the answer held instead (a proxy's page, say); only its beginning is kept.
        retry_after: seconds from the ``Retry-After`` header.
    """
    body = body or {}
    details = body.get("details") or {}
    if retry_after is None and details.get("retryAfterSeconds"):
        retry_after = float(details["retryAfterSeconds"])
    kind = _BY_STATUS.get(status) or (ServerError if status >= 500 else ApiError)
    message = body.get("message") or text[:500].strip() or "no message"
    return kind(status, body.get("reason") or "Unknown", message, retry_after, details)
