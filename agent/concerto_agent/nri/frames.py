"""Frames on NRI's socket: messages of ttrpc within the two connections that share the socket. No I/O.

The socket carries pieces: number of the connection (4 bytes), length (4 bytes), payload. On connection 1 the runtime
calls the plugin, on connection 2 the plugin calls the runtime. The pieces of a connection are a stream of ttrpc
messages: length of the data (4), stream (4), type (1), flags (1), data. All numbers are big-endian.

Sources: github.com/containerd/nri (pkg/net/multiplex) and github.com/containerd/ttrpc (PROTOCOL.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from concerto_agent.nri.protobuf import WireError

PLUGIN_CONNECTION = 1
"""The runtime calls the plugin here."""
RUNTIME_CONNECTION = 2
"""The plugin calls the runtime here."""

REQUEST, RESPONSE = 1, 2
"""Types of messages. Streams (type 3) are not used."""

MAX_DATA_BYTES = 4 << 20
"""Of one message. ttrpc allows no more."""

_PIECE = struct.Struct(">II")
_HEADER = struct.Struct(">IIBB")
_MAX_PIECE_BYTES = MAX_DATA_BYTES + _HEADER.size
_SENT_PIECE_BYTES = 4096
"""The runtime's reader has a buffer of 4096 bytes, and a piece that does not fit there ends the connection."""


@dataclass(frozen=True)
class Message:
    """One message of ttrpc.

    Attributes:
        stream: number of the call that it belongs to.
        kind: `REQUEST` or `RESPONSE`, or another that is not used here.
        data: a protobuf message.
    """

    stream: int
    kind: int
    data: bytes


class FrameReader:
    """Takes what comes from the socket in any portions, and gives whole messages.

    It holds at most one piece and one message of each of the two connections: some 12 MiB, whatever is sent.
    """

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._streams = {PLUGIN_CONNECTION: bytearray(), RUNTIME_CONNECTION: bytearray()}

    def feed(self, data: bytes) -> list[tuple[int, Message]]:
        """The messages that these bytes complete, each with the number of its connection.

        Pieces of other connections are dropped, as the runtime does.

        Raises:
            WireError: a piece or a message is longer than allowed. Nothing more can be read then.
        """
        self._trunk += data
        found: list[tuple[int, Message]] = []
        at = 0
        while len(self._trunk) - at >= _PIECE.size:
            connection, size = _PIECE.unpack_from(self._trunk, at)
            if size > _MAX_PIECE_BYTES:
                raise WireError(f"a piece of {size} bytes is longer than {_MAX_PIECE_BYTES}")
            end = at + _PIECE.size + size
            if len(self._trunk) < end:
                break
            if connection in self._streams:
                self._streams[connection] += self._trunk[at + _PIECE.size : end]
                found += [(connection, message) for message in _take_messages(self._streams[connection])]
            at = end
        del self._trunk[:at]
        return found


def _take_messages(stream: bytearray) -> list[Message]:
    found = []
    at = 0
    while len(stream) - at >= _HEADER.size:
        size, number, kind, _ = _HEADER.unpack_from(stream, at)
        if size > MAX_DATA_BYTES:
            raise WireError(f"a message of {size} bytes is longer than {MAX_DATA_BYTES}")
        end = at + _HEADER.size + size
        if len(stream) < end:
            break
        found.append(Message(number, kind, bytes(stream[at + _HEADER.size : end])))
        at = end
    del stream[:at]
    return found


def encode(connection: int, message: Message) -> bytes:
    """The bytes of a message, in pieces that the runtime can take."""
    data = _HEADER.pack(len(message.data), message.stream, message.kind, 0) + message.data
    pieces = (data[at : at + _SENT_PIECE_BYTES] for at in range(0, len(data), _SENT_PIECE_BYTES))
    return b"".join(_PIECE.pack(connection, len(piece)) + piece for piece in pieces)
