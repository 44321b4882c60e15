"""Scores as whole numbers. Pure."""

from __future__ import annotations

import numpy as np

from concerto.scheduling.state.columns import Floats


def rounded(scores: Floats) -> Floats:
    """To whole numbers, halves away from zero: as no score is negative, up (numpy's own rounding goes to even)."""
    whole: Floats = np.floor(scores + 0.5)
    return whole


def shares(scores: Floats, greatest: float) -> Floats:
    """From 0 to 100, rounded, what part the scores are of the greatest."""
    return rounded(np.minimum(scores * 100.0 / greatest, 100.0))


def share(score: float, greatest: float) -> float:
    """`shares` of one score, for which numpy would take ten times as long."""
    return (min(score * 100.0 / greatest, 100.0) + 0.5) // 1.0
