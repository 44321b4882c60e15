"""The part of protobuf's wire format that NRI takes: numbers (varints) and length-delimited fields. No I/O.

The agent reads a dozen fields of NRI and writes ten. The package `protobuf` would need a description of all messages
around them, and memory on every node, for what these functions do. Source: the page "Encoding" of protobuf.dev.
"""

from __future__ import annotations

_MAX_VARINT_BYTES = 10
_MASK = (1 << 64) - 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class WireError(ValueError):
    """These bytes are not what the other side may send."""


class Fields:
    """The fields of one message. Of a field that is not repeated the last value counts; what is absent is empty."""

    def __init__(self, data: bytes) -> None:
        """Split a message into its fields; fields within fields are looked at when they are asked for.

        Raises:
            WireError: the bytes are not a message.
        """
        self._values: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(data):
            key, at = _read_varint(data, at)
            number, kind = key >> 3, key & 7
            if not number:
                raise WireError("a field has number 0")
            if kind == _VARINT:
                value, at = _read_varint(data, at)
                self._values.setdefault(number, []).append(value)
            elif kind == _BYTES:
                size, at = _read_varint(data, at)
                self._values.setdefault(number, []).append(_part(data, at, size))
                at += size
            elif kind in _FIXED_BYTES:
                _part(data, at, _FIXED_BYTES[kind])
                at += _FIXED_BYTES[kind]
            else:
                raise WireError(f"field {number} has wire type {kind}")

    def number(self, field: int) -> int:
        """An unsigned number, or 0.

        Raises:
            WireError: the field is of another type.
        """
        value = self._values.get(field, [0])[-1]
        if not isinstance(value, int):
            raise WireError(f"field {field} is not a number")
        return value

    def data(self, field: int) -> bytes:
        """Bytes, or none.

        Raises:
            WireError: the field is of another type.
        """
        value = self._values.get(field, [b""])[-1]
        if not isinstance(value, bytes):
            raise WireError(f"field {field} is not of bytes")
        return value

    def text(self, field: int) -> str:
        """A string, or "".

        Raises:
            WireError: the field is of another type, or is not UTF-8.
        """
        try:
            return self.data(field).decode()
        except UnicodeDecodeError as error:
            raise WireError(f"field {field} is not UTF-8") from error

    def message(self, *path: int) -> Fields:
        """The message in a field, or in a field of a message in a field; without fields where it is missing.

        Raises:
            WireError: a field on the way is of another type, or its bytes are not a message.
        """
        found = self
        for field in path:
            found = Fields(found.data(field))
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


def _part(data: bytes, at: int, size: int) -> bytes:
    if size > len(data) - at:
        raise WireError("a field is cut off")
    return data[at : at + size]


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
