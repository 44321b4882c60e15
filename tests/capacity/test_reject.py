"""Pronto's reject-job signal by peak detection (docs/references.md, "Reject signal")."""

import numpy as np
import pytest

from concerto.capacity.reject import RejectSignal

DIRECTIONS, SIGMA = np.eye(2)[None], np.array([[0.8, 0.2]])
ALL = np.ones((1, 10))


def steady(level, seed=0):
    return np.clip(np.array(level) + 0.005 * np.random.default_rng(seed).standard_normal((1, 10, 2)), 0, 1)


def rejects(batches, directions=DIRECTIONS, sigma=SIGMA):
    signal = RejectSignal(1, 2)
    return [bool(signal.update(batch, ALL, directions, sigma)[0]) for batch in batches]


def spiked(level, height, resource=0):
    batch = steady(level, 9)
    batch[0, 4:6, resource] += height
    return batch


@pytest.mark.parametrize(
    ("case", "batches", "last"),
    [
        ("steady load, however high", [steady((0.9, 0.9), s) for s in range(5)], False),
        ("the first batch has nothing to stand out from", [spiked((0.2, 0.2), 0.6)], False),
        ("a spike along the main direction", [steady((0.2, 0.2)), spiked((0.2, 0.2), 0.6)], True),
        ("a spike along a minor direction", [steady((0.2, 0.2)), spiked((0.2, 0.2), 0.6, 1)], False),
        ("a fall is not a peak", [steady((0.8, 0.2)), steady((0.1, 0.2))], False),
        ("a new level is a peak at first", [steady((0.2, 0.2)), steady((0.6, 0.2))], True),
        ("and the normal state soon after", [steady((0.2, 0.2))] + [steady((0.6, 0.2), s) for s in range(8)], False),
    ],
)
def test_peaks(case, batches, last):
    assert rejects(batches)[-1] is last, case


def test_samples_that_do_not_count_make_no_peak():
    signal = RejectSignal(1, 2)
    signal.update(steady((0.2, 0.2)), ALL, DIRECTIONS, SIGMA)
    counted = ALL.copy()
    counted[0, 4:6] = 0
    assert not signal.update(spiked((0.2, 0.2), 0.6), counted, DIRECTIONS, SIGMA)[0]
    nothing = np.zeros((1, 10))
    assert not signal.update(np.zeros((1, 10, 2)), nothing, DIRECTIONS, SIGMA)[0]
    assert signal.update(spiked((0.2, 0.2), 0.6), ALL, DIRECTIONS, SIGMA)[0]
