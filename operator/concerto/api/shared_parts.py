"""Holds equal parts of many objects once: the pods of one workload differ in their names, nodes and times alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

# Measured with CPython 3.11 (tests/api/test_shared_parts.py)
_PART_BYTES = 200
_COLLECTION_BYTES = 184
_VALUE_BYTES = 60


class SharedParts:
    """Gives equal JSON values back as one and the same, as long as it remembers them.

    What it remembers is bounded in bytes of memory. When that is used up, what has not been asked for since the last
    time that it was used up is forgotten: objects that hold such a value keep it, and the next equal value is another
    one.
    """

    def __init__(self, max_bytes: int = 16 * 2**20, max_part_bytes: int = 16 * 2**10) -> None:
        """Nothing is remembered yet.

        Args:
            max_bytes: memory for what is remembered, at most twice as much for a while.
            max_part_bytes: a value whose JSON is longer is not remembered: hardly another object has it.
        """
        self._max_bytes = max_bytes
        self._max_part_bytes = max_part_bytes
        self._bytes = 0
        self._recent: dict[bytes, Any] = {}
        self._earlier: dict[bytes, Any] = {}

    def read(self, text: bytes, decode: Callable[[bytes], Any] = orjson.loads) -> Any:
        """The value of this JSON text. Nobody may change it from now on.

        Args:
            text: the same value always has the same text, as an API server writes it.
            decode: makes the value of the text, always the same one.

        Raises:
            ValueError: the text is not JSON.
        """
        found = self._recent.get(text)
        return self._remembered(text, decode(text)) if found is None else found

    def share(self, obj: dict[str, Any]) -> dict[str, Any]:
        """Replace the maps and lists in each section of the object (``metadata``, ``spec``, ``status``) by shared ones.

        The object is changed. None of the shared values may be changed by anybody from then on.
        """
        for section in obj.values():
            if isinstance(section, dict):
                for key, value in section.items():
                    if isinstance(value, (dict, list)):
                        section[key] = self._shared(value)
        return obj

    def _shared(self, value: Any) -> Any:
        try:
            text = orjson.dumps(value)
        except orjson.JSONEncodeError:  # nested too deeply
            return value
        found = self._recent.get(text)
        # orjson's bytes have room for more at their end; a copy has not
        return self._remembered(bytes(memoryview(text)), value) if found is None else found

    def _remembered(self, text: bytes, value: Any) -> Any:
        if len(text) > self._max_part_bytes:
            return value
        taken = _memory(text)
        if self._bytes + taken > self._max_bytes:
            self._earlier, self._recent, self._bytes = self._recent, {}, 0
        self._bytes += taken
        return self._recent.setdefault(text, self._earlier.get(text, value))


def _memory(text: bytes) -> int:
    """Bytes that a part takes with its text, at most. A short value takes 30 times as much as its text."""
    # A str takes up to 4 bytes for each of its characters if one of them is not ASCII
    width = 1 if text.isascii() and b"\\u" not in text else 4
    return (
        _PART_BYTES
        + (1 + width) * len(text)
        + _COLLECTION_BYTES * (text.count(b"{") + text.count(b"["))
        + _VALUE_BYTES * (text.count(b",") + text.count(b":"))
    )
