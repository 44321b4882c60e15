"""The part of protobuf's wire format that NRI takes: numbers (varints) and length-delimited fields. No I/O.

The agent reads a dozen fields of NRI and writes ten. The package `protobuf` would need a description of all messages
around them, and memory on every node, for what these functions do. Source: the page "Encoding" of protobuf.dev.
"""

from __future__ import annotations

_MAX_VARINT_BYTES = 10
_MASK = (1 << 64) - 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SHORT_KEYS = frozenset(number << 3 | _BYTES for number in range(1, 16))
"""Of fields with bytes, those that take one byte."""
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class WireError(ValueError):
    """These bytes are not what the other side may send."""


class Fields:
    """The fields of one message. Of a field that is not repeated the last value counts; what is absent is empty."""

    def __init__(self, data: bytes, wanted: frozenset[int] | None = None) -> None:
        """Split a message into its fields; fields within fields are looked at when they are asked for.

        Args:
            data: the message.
            wanted: fields to keep, of which alone may be asked; None: all. The rest is skipped: a container has as many
                arguments and variables as its author likes, and nobody asks for them.

        Raises:
            WireError: the bytes are not a message.
        """
        self._wanted = wanted
        self._values: dict[int, int | bytes] = {}
        skipped = frozenset[int]() if wanted is None else _SHORT_KEYS - {number << 3 | _BYTES for number in wanted}
        end = len(data)
        at = _skip(data, 0, skipped)
        while at < end:
            key, at = _read_varint(data, at)
            number, kind = key >> 3, key & 7
            if not number:
                raise WireError("a field has number 0")
            value, size = 0, _FIXED_BYTES.get(kind)
            if size is None:
                if kind not in (_BYTES, _VARINT):
                    raise WireError(f"field {number} has wire type {kind}")
                value, at = _read_varint(data, at)
                size = value if kind == _BYTES else 0
            if size > end - at:
                raise WireError("a field is cut off")
            if (wanted is None or number in wanted) and kind not in _FIXED_BYTES:
                self._values[number] = data[at : at + size] if kind == _BYTES else value
            at = _skip(data, at + size, skipped)
        if at > end:
            raise WireError("a field is cut off")

    def _last(self, field: int) -> int | bytes | None:
        if self._wanted is not None and field not in self._wanted:
            raise KeyError(f"field {field} was skipped")
        return self._values.get(field)

    def number(self, field: int) -> int:
        """An unsigned number, or 0.

        Raises:
            WireError: the field is of another type.
        """
        value = self._last(field)
        if isinstance(value, bytes):
            raise WireError(f"field {field} is not a number")
        return value or 0

    def data(self, field: int) -> bytes:
        """Bytes, or none.

        Raises:
            WireError: the field is of another type.
        """
        value = self._last(field)
        if isinstance(value, int):
            raise WireError(f"field {field} is not of bytes")
        return value or b""

    def text(self, field: int) -> str:
        """A string, or "".

        Raises:
            WireError: the field is of another type, or is not UTF-8.
        """
        try:
            return self.data(field).decode()
        except UnicodeDecodeError as error:
            raise WireError(f"field {field} is not UTF-8") from error

    def message(self, *path: int, wanted: frozenset[int] | None = None) -> Fields:
        """The message in a field, or in a field of a message in a field; without fields where it is missing.

        Args:
            path: fields, each of the message in the one before.
            wanted: fields of the last one to keep; None: all.

        Raises:
            WireError: a field on the way is of another type, or its bytes are not a message.
        """
        found = self
        for position, field in enumerate(path, 1):
            after = path[position : position + 1]
            found = Fields(found.data(field), frozenset(after) if after else wanted)
        return found


def number(field: int, value: int) -> bytes:
    """A field with a number from 0 to 2**64 - 1; 0 is left out, as proto3 does."""
    return _varint(field << 3 | _VARINT) + _varint(value) if value else b""


def text(field: int, value: str) -> bytes:
    """A field with a string; an empty one is left out."""
    return message(field, value.encode()) if value else b""


def message(field: int, *parts: bytes) -> bytes:
    """A field with a message of these fields, or with bytes; it is there even if they are empty."""
    data = b"".join(parts)
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _skip(data: bytes, at: int, keys: frozenset[int]) -> int:
    """Where the first field begins that is not one of bytes, fewer than 128, with one of these keys of one byte.

    Behind the end if the last one is cut off.
    """
    last = len(data) - 1
    while at < last and data[at] in keys and (size := data[at + 1]) < 0x80:
        at += 2 + size
    return at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for position in range(_MAX_VARINT_BYTES):
        if at + position >= len(data):
            raise WireError("a number is cut off")
        byte = data[at + position]
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value & _MASK, at + position + 1
    raise WireError("a number is too long")


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
