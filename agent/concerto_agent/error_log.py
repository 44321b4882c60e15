"""Errors that last: each is logged once, and not at every look."""

from __future__ import annotations

import logging

_MAX_REMEMBERED = 1000


class ErrorLog:
    """Logs what goes wrong with something when it begins, and when it changes.

    Errors of the system and of values are logged by their message; any other is an error of ours, and logged with its
    traceback.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Nothing has gone wrong yet."""
        self._log = log
        self._known: dict[str, str] = {}

    def note(self, what: str, error: Exception) -> None:
        """This has gone wrong."""
        text = f"{type(error).__name__}: {error}"
        if self._known.get(what) == text:
            return
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        self._known[what] = text
        expected = isinstance(error, OSError | ValueError)
        self._log.error("%s: %s", what, text, exc_info=None if expected else error)

    def forget(self, what: str) -> None:
        """It goes well now."""
        self._known.pop(what, None)
