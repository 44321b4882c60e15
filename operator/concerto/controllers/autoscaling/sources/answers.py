"""A metrics API may answer anything: only the object that asked gets the error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from concerto.autoscaling.pods import MetricError
from concerto.kube import KubeError

LARGEST_BYTES = 32 * 2**20
"""Of an answer: 40,000 pods of one namespace. More is a fault, and would cost the operator its memory."""

NOT_OF_THIS_FORM = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError)
"""What reading JSON of another form than was thought ends with, beside ValueError."""

_WORDS = 500


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
        raise MetricError(f"unable to fetch metrics from {api} API: {str(error)[:_WORDS]}") from error
    except NOT_OF_THIS_FORM as error:
        what = f"its answer is not of that API's form ({type(error).__name__}: {str(error)[:_WORDS]})"
        raise MetricError(f"unable to fetch metrics from {api} API: {what}") from error
