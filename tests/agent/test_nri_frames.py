"""Frames of NRI's socket: whole whatever the portions they come in, and bounded."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto_agent.nri.frames import (
    MAX_DATA_BYTES,
    PLUGIN_CONNECTION,
    REQUEST,
    RUNTIME_CONNECTION,
    FrameReader,
    Message,
    encode,
)
from concerto_agent.nri.protobuf import WireError

MESSAGES = st.builds(Message, st.integers(0, 2**32 - 1), st.integers(0, 255), st.binary(max_size=9000))
SENT = st.lists(st.tuples(st.sampled_from([PLUGIN_CONNECTION, RUNTIME_CONNECTION]), MESSAGES), max_size=5)


def piece(connection: int, payload: bytes) -> bytes:
    return struct.pack(">II", connection, len(payload)) + payload


def header(size: int, stream: int = 1) -> bytes:
    return struct.pack(">IIBB", size, stream, REQUEST, 0)


def test_a_message_is_written_as_the_protocol_says():
    assert encode(2, Message(1, 1, b"abc")) == bytes.fromhex("00000002 0000000d 00000003 00000001 01 00 616263")


@given(data=st.binary(max_size=20000))
def test_no_piece_is_longer_than_the_runtimes_buffer(data):
    sent, sizes = encode(1, Message(1, 2, data)), []
    while sent:
        _, size = struct.unpack_from(">II", sent)
        sizes.append(size)
        sent = sent[8 + size :]
    assert max(sizes) <= 4096 and sum(sizes) == 10 + len(data)


@given(sent=SENT, portions=st.lists(st.integers(1, 5000), min_size=1, max_size=40))
def test_messages_come_out_whole_and_in_order_whatever_the_portions(sent, portions):
    data, reader, found = b"".join(encode(*each) for each in sent), FrameReader(), []
    for size in portions:
        found += reader.feed(data[:size])
        data = data[size:]
    found += reader.feed(data)
    assert found == sent


def test_a_message_in_several_pieces_is_whole_though_another_connection_comes_in_between():
    whole = header(4) + b"data"
    reader = FrameReader()
    assert reader.feed(piece(1, whole[:3]) + piece(2, whole) + piece(1, whole[3:12])) == [(2, Message(1, 1, b"data"))]
    assert reader.feed(piece(1, whole[12:])) == [(1, Message(1, 1, b"data"))]


def test_two_messages_in_one_piece_are_two():
    assert len(FrameReader().feed(piece(1, (header(1) + b"x") * 2))) == 2


@given(connection=st.integers(3, 2**32 - 1), payload=st.binary(max_size=50))
def test_other_connections_are_dropped(connection, payload):
    assert FrameReader().feed(piece(connection, payload) + piece(0, payload) + piece(1, header(0))) == [
        (1, Message(1, 1, b""))
    ]


def test_the_longest_message_passes_and_one_byte_more_does_not():
    reader = FrameReader()
    assert len(reader.feed(piece(1, header(MAX_DATA_BYTES) + bytes(MAX_DATA_BYTES)))) == 1
    for too_long in (struct.pack(">II", 1, MAX_DATA_BYTES + 11), piece(1, header(MAX_DATA_BYTES + 1))):
        with pytest.raises(WireError, match="longer"):
            FrameReader().feed(too_long)


@given(portions=st.lists(st.binary(max_size=100), max_size=20))
def test_any_bytes_are_frames_or_are_refused(portions):
    reader = FrameReader()
    try:
        for data in portions:
            reader.feed(data)
    except WireError:
        return
