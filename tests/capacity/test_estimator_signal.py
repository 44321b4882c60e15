"""The source's estimator, literally (Carico, section 4.2.4; docs/references.md)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import EstimatorSettings
from concerto.capacity.estimator_signal import SignalEstimator

SETTINGS = EstimatorSettings(type="Signal")
INITIAL = 0.5  # initialPerPodCost in signal units


def run(batches, settings=SETTINGS):
    """Baseline and cost after batches of (signal, pods, churn)."""
    estimator = SignalEstimator(1)
    reported = []
    for signal, pods, churn in batches:
        estimator.update(
            settings,
            signal=np.array([signal], dtype=float),
            pods=np.array([pods], dtype=float),
            measured=np.array([True]),
            churn=np.array([churn]),
            initial_cost=np.array([INITIAL]),
            elapsed_seconds=1.0,
        )
        reported.append((float(estimator.baseline[0]), float(estimator.cost[0])))
    return reported


def literal(batches, q=SETTINGS.process_noise, r=SETTINGS.measurement_noise):
    """The two filters as the source writes them, one number at a time."""
    b = c = None
    pb = pc = 1.0
    reported = []
    for signal, n, churn in batches:
        if b is None:
            c, b = INITIAL, signal + INITIAL * n
        if signal > 0 and not churn:
            if n >= 1:
                k = pc * n / (n * n * pc + r)
                c += k * ((b - signal) - n * c)
                pc = (1 - k * n) * pc + q
            k = pb / (pb + r)
            b += k * (signal + c * n - b)
            pb = (1 - k) * pb + q
            if n == 0 and c < INITIAL:
                c = min(INITIAL, c + SETTINGS.idle_cost_growth * INITIAL / SETTINGS.initial_per_pod_cost)
        reported.append((b, c))
    return reported


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 2.0, 5.0, 9.0]), st.integers(0, 20), st.booleans()), min_size=1))
def test_it_computes_what_the_source_writes(batches):
    assert np.array(run(batches)) == pytest.approx(np.array(literal(batches)), rel=1e-9, abs=1e-12)


def test_it_learns_both_when_the_number_of_pods_varies():
    rng = np.random.default_rng(0)
    batches = [(10 - 0.8 * n, n, False) for n in rng.integers(0, 10, 400)]
    baseline, cost = run(batches)[-1]
    assert (baseline, cost) == (pytest.approx(10, abs=0.3), pytest.approx(0.8, abs=0.08))


@pytest.mark.parametrize(("case", "batch"), [("saturated", (0.0, 5, False)), ("in a churn window", (3.0, 5, True))])
def test_it_halts_when(case, batch):
    reported = run([(5.0, 4, False)] * 5 + [batch] * 5)
    assert reported[4] == reported[-1], case


def test_without_pods_cost_creeps_up_to_the_first_guess_and_not_beyond():
    light = [(9.0 - 0.2 * (k % 8), k % 8, False) for k in range(50)]
    costs = [cost for _, cost in run(light + [(9.0, 0, False)] * 200)]
    assert costs[49] < INITIAL
    assert costs[49:] == sorted(costs[49:])
    assert costs[-1] == pytest.approx(INITIAL)


def test_at_a_constant_number_of_pods_it_cannot_separate_baseline_from_cost():
    """Its fault: true b = 1, c = 0.1, started at b = 0.6; a steady n = 5."""
    estimator = SignalEstimator(1)
    estimator.baseline[:], estimator.cost[:] = 0.6, 0.1
    for _ in range(200):
        estimator.update(
            SETTINGS,
            signal=np.array([0.5]),
            pods=np.array([5.0]),
            measured=np.array([True]),
            churn=np.array([False]),
            initial_cost=np.array([0.1]),
            elapsed_seconds=1.0,
        )
    assert estimator.baseline[0] - 5 * estimator.cost[0] == pytest.approx(0.5, abs=0.01)
    assert estimator.cost[0] < 0.05
