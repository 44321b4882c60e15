"""TCP-style allowance: Choteborsky, section 3.11.2."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import OverProvisionSettings
from concerto.capacity.overprovision import OverProvision

SETTINGS = OverProvisionSettings(enabled=True, window=4, threshold=1.1, maximum=3)


def allowance_after(times, settings=SETTINGS):
    over = OverProvision(1, settings)
    for seconds in times:
        over.completed(0, seconds)
    return float(over.allowance[0])


def direct(times, settings=SETTINGS):
    """From the whole list of completion times, with nothing kept in between."""
    w = settings.window
    sums = [sum(t * t for t in times[k * w : (k + 1) * w]) for k in range(len(times) // w)]
    allowance = 0.0
    for before, this in pairwise(sums):
        allowance = min(allowance + 1, settings.maximum) if this <= settings.threshold * before else allowance / 2
    return allowance


@pytest.mark.parametrize(
    ("case", "times", "allowance"),
    [
        ("one window has nothing to be compared with", [5] * 4, 0),
        ("no slower: one more", [5] * 8, 1),
        ("a little slower within the threshold: one more", [5] * 4 + [5.2] * 4, 1),
        ("slower: halved", [5] * 12 + [8] * 4, 1),
        ("one very slow pod among quick ones counts", [5] * 12 + [5, 5, 5, 9], 1),
        ("never above the maximum", [5] * 100, 3),
        ("an unfinished window changes nothing", [5] * 8 + [50] * 3, 1),
    ],
)
def test_allowance(case, times, allowance):
    assert allowance_after(times) == allowance, case


@given(st.lists(st.floats(0, 1e4), max_size=100))
def test_sums_kept_in_constant_memory_say_what_the_whole_list_says(times):
    assert allowance_after(times) == pytest.approx(direct(times))


def test_nodes_do_not_share_an_allowance():
    over = OverProvision(2, SETTINGS)
    for _ in range(8):
        over.completed(1, 5.0)
    assert over.allowance.tolist() == [0.0, 1.0]
