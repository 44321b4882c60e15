import contextlib
from decimal import Decimal

import pytest

from concerto.api.quantities import MAX_AMOUNT, milli, parse_duration, parse_quantity, resource_amount, whole
from support.traced_memory import traced_memory


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("1.5Gi", str(int(1.5 * 2**30))),
        ("2", "2"),
        ("2e3", "2000"),
        ("100u", "0.0001"),
        ("-1", "-1"),
        (3, "3"),
    ],
)
def test_a_quantity_is_read_exactly(text, value):
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "1.5gi", "abc", "1 Gi x", "NaN", "0x10"])
def test_what_is_no_quantity_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_amounts_are_counted_in_the_unit_of_their_resource_and_rounded_up():
    assert milli("0.0001") == 1
    assert whole("1.1") == 2
    assert resource_amount("cpu", "1.5") == 1500
    assert resource_amount("memory", "1Ki") == 1024


def test_durations():
    assert parse_duration("1h30m") == 5400
    assert parse_duration("500ms") == 0.5
    for bad in ("", "5", "5 s", "s", "5x"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_duration(bad)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e999999999", 2**63 - 1),
        ("-1e999999999", -(2**63) + 1),
        ("1e99999999999999999999999", 2**63 - 1),
        ("0e99999999999999999999999", 0),
        ("1e-99999999999999999999999", 0),
        ("9" * 400, 2**63 - 1),
        ("8Ei", 2**63 - 1),
    ],
)
def test_no_quantity_is_larger_than_kubernetes_has_them(text, value):
    assert parse_quantity(text) == value


@pytest.mark.parametrize("resource", ["cpu", "memory", "example.com/device"])
def test_a_thousand_of_the_largest_amounts_still_fit_into_a_column(resource):
    assert resource_amount(resource, "9223372036854775807") == MAX_AMOUNT
    assert resource_amount(resource, "-9223372036854775807") == -MAX_AMOUNT
    assert 1000 * MAX_AMOUNT < 2**63


@pytest.mark.parametrize("parse", [parse_quantity, parse_duration])
@pytest.mark.parametrize("end", ["", "x", ".", "m"])
def test_a_text_of_a_million_letters_is_refused_at_once_and_briefly(parse, end):
    """A metrics API may answer it; the time must not grow with the square of its length."""
    with pytest.raises(ValueError, match="…") as caught:
        parse("1" * 2**20 + end)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("parse", [parse_quantity, parse_duration])
def test_long_texts_are_not_held(parse):
    with traced_memory() as memory:
        for n in range(100):
            with contextlib.suppress(ValueError):
                parse(f"{n}" + "0" * 2**16 + "m")
    assert memory.held < 2**16
