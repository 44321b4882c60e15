"""Lasting errors: each is logged once, and not again at every check."""

from __future__ import annotations

import logging

_MAX_REMEMBERED = 1000


class ErrorLog:
    """Logs an error of a subject when it begins, and when its message changes.

    OSError and ValueError are logged by their message. Any other is a bug, and logged with its traceback.
    """

    def __init__(self, log: logging.Logger) -> None:
        """Errors go to ``log``."""
        self._log = log
        self._known: dict[str, str] = {}

    def note(self, what: str, error: Exception) -> None:
        """The subject has failed with this error."""
        text = f"{type(error).__name__}: {error}"
        if self._known.get(what) == text:
            return
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        self._known[what] = text
        expected = isinstance(error, OSError | ValueError)
        self._log.error("%s: %s", what, text, exc_info=None if expected else error)

    def forget(self, what: str) -> None:
        """The subject works now; its next error is logged."""
        self._known.pop(what, None)
