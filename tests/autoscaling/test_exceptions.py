"""Days that do not follow the season: when they are."""

from __future__ import annotations

import pytest

from concerto.autoscaling.exceptions import exception_spans

CHRISTMAS = 1_798_156_800.0  # 2026-12-25T00:00:00Z
HOUR = 3600.0


def test_a_day_is_from_midnight_to_midnight_in_its_time_zone():
    assert exception_spans(("2026-12-25",), "UTC") == (((CHRISTMAS, CHRISTMAS + 24 * HOUR),), "")
    assert exception_spans(("2026-12-25",), "Europe/Berlin") == (((CHRISTMAS - HOUR, CHRISTMAS + 23 * HOUR),), "")


def test_a_day_is_as_long_as_daylight_saving_time_makes_it():
    lengths = [end - begin for begin, end in exception_spans(("2026-03-29", "2026-10-25"), "Europe/Berlin")[0]]
    assert lengths == [23 * HOUR, 25 * HOUR]


WRONG = {
    "2026-02-30": (("2026-02-30",), "UTC", "exceptions: '2026-02-30' is not a day: write it like 2026-12-25"),
    "the last day of all": (("9999-12-31",), "UTC", "exceptions: '9999-12-31' is not a day: write it like 2026-12-25"),
    "a zone that does not exist": (
        (),
        "Europe/Nowhere",
        "timeZone 'Europe/Nowhere' is not a time zone: write it like Europe/Berlin",
    ),
}


@pytest.mark.parametrize(("days", "zone", "words"), WRONG.values(), ids=WRONG)
def test_an_error_names_field_and_value(days, zone, words):
    assert exception_spans(days, zone) == ((), f"spec.prediction.season.{words}")


def test_a_day_that_is_not_valid_does_not_cost_the_others():
    days, error = exception_spans(("2026-02-30", "2026-12-25", "2026-02-29"), "UTC")
    assert days == ((CHRISTMAS, CHRISTMAS + 24 * HOUR),)
    assert "'2026-02-30'" in error and "'2026-02-29'" in error
