"""What the API server answers, as documents and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from concerto.kube.errors import ApiError, OutcomeUnknown, api_error
from concerto.kube.request_bodies import Object
from concerto.kube.transport import MAX_REFUSAL_BYTES, Answer, Outgoing

Decode = Callable[[bytes], Any]
"""Makes a document of JSON.

Raises:
    ValueError: it is not JSON.
"""


def document_of(answer: Answer, outgoing: Outgoing, decode: Decode) -> Object:
    """The document in the answer to a request.

    Raises:
        ApiError: the request is refused.
        OutcomeUnknown: the answer is not JSON.
    """
    if answer.status >= 300:
        raise refusal_of(answer)
    try:
        document = decode(answer.payload) if answer.payload else {}
    except ValueError as error:
        raise OutcomeUnknown(f"{outgoing}: the answer is not JSON ({answer.payload[:80]!r})") from error
    return document if isinstance(document, dict) else {"value": document}


def refusal_of(answer: Answer) -> ApiError:
    """The error that an answer with a status of 300 or more stands for."""
    try:
        body = orjson.loads(answer.payload) if len(answer.payload) <= MAX_REFUSAL_BYTES else None
    except ValueError:
        body = None
    status = body if isinstance(body, dict) else None
    text = answer.payload[:MAX_REFUSAL_BYTES].decode(errors="replace")
    return api_error(answer.status, status, text, answer.retry_after_seconds)
