"""What is kept of a law's numbers."""

from __future__ import annotations

import numpy as np
import pytest

from concerto.capacity.trace import Column, Trace

COLUMNS = (Column("window", "pods", "pods that the node should run"), Column("cpu", "share", "utilisation"))


def test_the_oldest_moments_make_room_for_new_ones():
    trace = Trace(COLUMNS, kept=2)
    for at in (1.0, 2.0, 3.0):
        trace.add(at, {"window": np.array([at, 10 * at]), "cpu": np.array([0.5, 0.25])})
    assert trace.rows(0) == [[2.0, 2.0, 0.5], [3.0, 3.0, 0.5]]
    assert trace.rows(1, since=2.5) == [[3.0, 30.0, 0.25]]


def test_a_number_that_is_unknown_is_not_zero():
    trace = Trace(COLUMNS, kept=2)
    trace.add(1.0, {"window": np.array([np.inf]), "cpu": np.nan})
    assert trace.rows(0) == [[1.0, None, None]]


def test_a_node_that_came_later_has_no_earlier_moments():
    trace = Trace(COLUMNS, kept=3)
    trace.add(1.0, {"window": np.array([1.0]), "cpu": np.array([0.0])})
    trace.add(2.0, {"window": np.array([1.0, 7.0]), "cpu": np.array([0.0, 1.0])})
    assert trace.rows(1) == [[2.0, 7.0, 1.0]]


def test_what_was_added_is_not_changed_with_the_callers_array():
    trace, window = Trace(COLUMNS, kept=1), np.array([1.0])
    trace.add(1.0, {"window": window, "cpu": 0.0})
    window[0] = 9.0
    assert trace.rows(0) == [[1.0, 1.0, 0.0]]


def test_a_missing_column_is_an_error():
    with pytest.raises(KeyError):
        Trace(COLUMNS, kept=1).add(1.0, {"window": 1.0})


def test_the_document_names_its_numbers_and_their_units():
    trace = Trace(COLUMNS, kept=1)
    trace.add(1.0, {"window": 3.0, "cpu": 0.5})
    assert trace.document("n1", trace.rows(0)) == {
        "node": "n1",
        "columns": [
            {"name": "at", "unit": "seconds since the epoch"},
            {"name": "window", "unit": "pods"},
            {"name": "cpu", "unit": "share"},
        ],
        "rows": [[1.0, 3.0, 0.5]],
    }
