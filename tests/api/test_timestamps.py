import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.timestamps import format_micro_timestamp, format_timestamp, parse_timestamp
from support.traced_memory import traced_memory


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-03-01T12:00:00Z", 1_772_366_400),
        ("2026-03-01T12:00:00.250000Z", 1_772_366_400.25),
        ("2026-03-01T13:00:00+01:00", 1_772_366_400),
    ],
)
def test_a_time_is_read_whatever_its_fraction_and_zone(text, seconds):
    assert parse_timestamp(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [("yesterday", "is not a time"), ("", "is not a time"), ("2026-03-01T12:00:00", "has no time zone")],
)
def test_what_is_no_time_is_refused_with_its_text(text, why):
    with pytest.raises(ValueError, match=f"'{text}' {why}"):
        parse_timestamp(text)


def test_a_time_is_rounded_down_to_whole_seconds_as_kubernetes_does():
    assert format_timestamp(1_772_366_400.999) == "2026-03-01T12:00:00Z"


def test_years_have_four_digits_also_long_ago():
    assert format_timestamp(parse_timestamp("0900-01-01T00:00:00Z")) == "0900-01-01T00:00:00Z"
    assert format_micro_timestamp(parse_timestamp("0001-01-01T00:00:01.5Z")) == "0001-01-01T00:00:01.500000Z"


@given(st.integers(0, 4_000_000_000_000_000))
def test_a_time_in_microseconds_reads_back_the_same(microseconds):
    seconds = microseconds / 1e6
    assert parse_timestamp(format_micro_timestamp(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_a_time_with_a_million_digits_of_a_second_is_refused_and_not_held():
    """The API server takes it as a ``date-time``: of an agent's ``observedAt`` and of a season's ``start``."""
    with traced_memory() as memory:
        for n in range(100):
            with pytest.raises(ValueError, match="is not a time") as caught:
                parse_timestamp(f"2026-03-01T12:00:00.{n}{'1' * 2**16}Z")
            assert len(str(caught.value)) < 200
            del caught
    assert memory.held < 2**16
