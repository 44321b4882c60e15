"""A metrics API may answer anything: only the object that asked gets the error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from concerto.autoscaling.pods import MetricError
from concerto.controllers.runtime.http_source import printable
from concerto.controllers.runtime.page_decoding import decode_foreign_list
from concerto.kube import KubeError, Session
from concerto.kube.reflector import in_turns

LARGEST_BYTES = 32 * 2**20
"""Of an answer: 40,000 pods of one namespace. More is a fault, and would cost the operator its memory."""

NOT_OF_THIS_FORM = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What reading JSON of another form than was thought ends with, beside ValueError."""

_WORDS = 500
_ITEMS_A_TURN = 100
"""Items that are decoded and read before others get their turns: all of 32 MiB would hold the loop for seconds."""


@contextmanager
def understanding(api: str) -> Iterator[None]:
    """Turn errors of an answer into a MetricError.

    Args:
        api: for example ``custom metrics``.

    Raises:
        MetricError: the API does not answer, or not in its form.
    """
    try:
        yield
    except (KubeError, ValueError) as error:
        # An error page may be long, and this message stands in conditions
        raise MetricError(f"unable to fetch metrics from {api} API: {_quoted(error)}") from error
    except NOT_OF_THIS_FORM as error:
        what = f"its answer is not of that API's form ({type(error).__name__}: {_quoted(error)})"
        raise MetricError(f"unable to fetch metrics from {api} API: {what}") from error


def _quoted(error: Exception) -> str:
    return printable(str(error)[:_WORDS])


async def items_of(
    session: Session, path: str, params: Mapping[str, str] | None = None, *, timeout_seconds: float
) -> AsyncIterator[Any]:
    """The items of the list that a metrics API answers, of any form; others get their turns meanwhile.

    Raises:
        KubeError: there is no answer, or it is not JSON, or too large.
        Exception: it is not a list (one of `NOT_OF_THIS_FORM`).
    """
    answer = await session.get_foreign(
        path, params=params, timeout_seconds=timeout_seconds, max_bytes=LARGEST_BYTES, decode=decode_foreign_list
    )
    async for item in in_turns(answer.get("items") or (), _ITEMS_A_TURN):
        yield item
