"""Protobuf's wire format, by the examples of its own documentation and by any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto_agent.nri.protobuf import Fields, WireError, message, number, text

NUMBERS = st.integers(0, 2**64 - 1)
FIELD = st.integers(1, 2**29 - 1)

# from the page "Encoding" of protobuf.dev
EXAMPLES = {
    "a number": (number(1, 150), bytes.fromhex("089601")),
    "a string": (text(2, "testing"), bytes.fromhex("120774657374696e67")),
    "a message in a message": (message(3, number(1, 150)), bytes.fromhex("1a03089601")),
    "no number": (number(1, 0), b""),
    "no string": (text(2, ""), b""),
    "a message without fields, which is there": (message(3), bytes.fromhex("1a00")),
}


@pytest.mark.parametrize(("written", "expected"), EXAMPLES.values(), ids=EXAMPLES)
def test_fields_are_written_as_the_documentation_shows(written, expected):
    assert written == expected


@given(field=FIELD, value=NUMBERS, other=NUMBERS)
def test_the_last_number_of_a_field_counts(field, value, other):
    assert Fields(number(field, other) + number(field, value)).number(field) == (value or other)


@given(field=FIELD, value=st.text(st.characters(exclude_categories=["Cs"])), inner=FIELD)
def test_strings_come_back_from_messages_in_messages(field, value, inner):
    assert Fields(message(field, text(inner, value))).message(field).text(inner) == value


def test_what_is_absent_is_empty():
    fields = Fields(b"")
    assert (fields.number(1), fields.text(1), fields.data(1), fields.message(1, 2, 3).text(4)) == (0, "", b"", "")


def test_fields_of_fixed_size_are_skipped():
    fixed = bytes([1 << 3 | 1, *range(8), 2 << 3 | 5, *range(4)])
    assert Fields(fixed + number(3, 7)).number(3) == 7


BROKEN = {
    "a key that is cut off": b"\x80",
    "a number that is cut off": b"\x08\x96",
    "a number of eleven bytes": b"\x08" + b"\x80" * 10 + b"\x01",
    "a string that is cut off": b"\x12\x07test",
    "a string as long as no message": b"\x12\xff\xff\xff\xff\x0f",
    "a field of fixed size that is cut off": b"\x09\x00",
    "field 0": b"\x00\x01",
    "a group": b"\x0b\x0c",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_message_is_refused(data):
    with pytest.raises(WireError):
        Fields(data)


def test_a_field_of_another_type_is_refused():
    fields = Fields(number(1, 5) + text(2, "x") + message(3, b"\xff"))
    for read in (lambda: fields.text(1), lambda: fields.number(2), lambda: fields.message(1), lambda: fields.text(3)):
        with pytest.raises(WireError):
            read()


@given(data=st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data):
    try:
        fields = Fields(data)
    except WireError:
        return
    for field in range(1, 16):
        for read in (fields.number, fields.data, fields.text, fields.message):
            try:
                read(field)
            except WireError:
                continue


@given(data=st.binary(max_size=60), wanted=st.frozensets(st.integers(1, 15)))
def test_fields_that_are_not_wanted_are_skipped_and_the_others_are_as_ever(data, wanted):
    try:
        every = Fields(data)
    except WireError:
        with pytest.raises(WireError):
            Fields(data, wanted)
        return
    some = Fields(data, wanted)
    for field in range(1, 16):
        if field not in wanted:
            with pytest.raises(KeyError):
                some.data(field)
            continue
        for read in ("number", "data", "text"):
            assert outcome(some, read, field) == outcome(every, read, field)


def outcome(fields: Fields, read: str, field: int) -> object:
    try:
        return getattr(fields, read)(field)
    except WireError as error:
        return str(error)


def test_what_is_wanted_of_a_message_in_a_message_is_all_that_is_kept_of_it():
    inner = message(1, message(2, text(3, "x"), text(4, "y")))
    found = Fields(inner, frozenset({1})).message(1, 2, wanted=frozenset({3}))
    assert found.text(3) == "x"
    with pytest.raises(KeyError):
        found.text(4)
