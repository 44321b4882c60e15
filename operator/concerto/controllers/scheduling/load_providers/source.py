"""What a source of load is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from concerto.scheduling.state.provided_load import Series

_LONGEST_MESSAGE = 500


class SourceError(Exception):
    """A source gave no answer.

    Its message may quote whatever the source said, so it is cut, and holds nothing that a terminal would obey.

    Attributes:
        reason: why, in one CamelCase word that never changes its meaning.
    """

    def __init__(self, reason: str, message: str) -> None:
        text = message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 1]}…"
        super().__init__("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))
        self.reason = reason


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
