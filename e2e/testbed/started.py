"""What is started where a `with` begins, and stopped where it ends."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Started:
    """Base of what has `start` and `stop`."""

    def start(self) -> None:
        """Start it."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
