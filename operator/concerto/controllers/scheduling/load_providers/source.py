"""What a source of load is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from concerto.controllers.runtime.http_source import SourceError
from concerto.scheduling.state.provided_load import Series

__all__ = ["Answer", "Source", "SourceError"]


@dataclass(frozen=True)
class Answer:
    """What a source said when it was asked once.

    Attributes:
        series: what it measured.
        failed: what it was asked and did not answer, with the reason.
    """

    series: tuple[Series, ...]
    failed: Mapping[str, SourceError] = field(default_factory=dict)


class Source(Protocol):
    """Something that measures nodes and can be asked."""

    async def fetch(self) -> Answer:
        """Ask, within the profile's timeout.

        Raises:
            SourceError: there is nothing to be had at all.
        """
        ...

    async def close(self) -> None:
        """Give up connections."""
        ...
