"""Windows of single samples against a naive list of them."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.controllers.scheduling.load_providers.poll_windows import PollWindows
from concerto.scheduling.state.provided_load import Series

WINDOW = 60.0


def latest(**values):
    """Of the cpu: (value, time of measurement) by node."""
    return (Series("cpu", "latest", values, 10.0, amounts=True),)


def of(series, statistic, node):
    (found,) = [s for s in series if s.statistic == statistic]
    return found.values.get(node, (None,))[0]


def test_a_sample_counts_once_and_leaves_after_the_window():
    windows = PollWindows(WINDOW)
    windows.add(latest(a=(100.0, 1.0)), 0.0)
    windows.add(latest(a=(100.0, 1.0)), 15.0)
    made = windows.add(latest(a=(300.0, 2.0)), 30.0)
    assert (of(made, "average", "a"), of(made, "deviation", "a")) == (200.0, 100.0)
    made = windows.add(latest(a=(500.0, 3.0)), 60.0)
    assert (of(made, "average", "a"), of(made, "deviation", "a")) == (400.0, 100.0)


def test_one_sample_has_a_mean_and_no_deviation():
    made = PollWindows(WINDOW).add(latest(a=(100.0, 1.0)), 0.0)
    assert (of(made, "average", "a"), of(made, "deviation", "a"), of(made, "latest", "a")) == (100.0, None, 100.0)


def test_a_window_covers_what_was_measured_of_the_node():
    windows = PollWindows(WINDOW)
    windows.add(latest(a=(1.0, 1.0)), 0.0)
    made = windows.add(latest(a=(1.0, 2.0), b=(1.0, 2.0)), 30.0)
    (average,) = [s for s in made if s.statistic == "average"]
    assert average.covered_by_node == {"a": 40.0, "b": 10.0}
    made = windows.add(latest(a=(1.0, 3.0), b=(1.0, 3.0)), 59.0)
    (average,) = [s for s in made if s.statistic == "average"]
    assert average.covered_by_node == {"a": 60.0, "b": 39.0}


@pytest.mark.parametrize("bad", [(math.nan, 2.0), (5.0, math.nan), (math.inf, 2.0)], ids=str)
def test_what_is_not_a_number_or_has_no_time_is_not_in_a_window(bad):
    windows = PollWindows(WINDOW)
    windows.add(latest(a=(100.0, 1.0), b=(7.0, 1.0)), 0.0)
    made = windows.add(latest(a=bad, b=(9.0, 2.0)), 15.0)
    assert (of(made, "average", "a"), of(made, "average", "b")) == (100.0, 8.0)


def test_nodes_that_are_gone_take_no_room():
    windows = PollWindows(WINDOW)
    for minute in range(100):
        windows.add(latest(**{f"n{minute}-{i}": (1.0, float(minute)) for i in range(10)}), 60.0 * minute)
    assert len(windows._columns) <= 20


polls = st.lists(
    st.tuples(
        st.floats(1, 30),
        st.dictionaries(st.sampled_from("abc"), st.tuples(st.floats(0, 1e4), st.integers(0, 6).map(float))),
    ),
    max_size=25,
)


@given(polls)
def test_they_are_those_of_the_samples(polled):
    windows, now = PollWindows(WINDOW), 0.0
    kept, last = [], {}
    for number, (gap, samples) in enumerate(polled):
        now += gap
        # times only go on, as those of one node do
        stamped = {node: (value, number + at / 10) for node, (value, at) in samples.items()}
        for node, (value, at) in stamped.items():
            if last.get(node) != at:
                kept.append((now, node, value))
                last[node] = at
        kept = [sample for sample in kept if sample[0] > now - WINDOW]
        made = windows.add(latest(**stamped), now)
        for node in samples:
            values = [value for _, name, value in kept if name == node]
            assert of(made, "average", node) == (pytest.approx(statistics.fmean(values)) if values else None)
            spread = pytest.approx(statistics.pstdev(values), abs=1e-6) if len(values) > 1 else None
            assert of(made, "deviation", node) == spread
