"""The capacity signal: eq. 3.3 and the scenarios of Carico, section 3.4.1."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from concerto.capacity.signal import capacity_signal, expected_load
from concerto.capacity.subspace import batch_moment, decompose, merge

MAXIMUM = 10_000.0
FORMS = ["Magnitude", "Proportion", "Mixture"]
unit = st.floats(0, 1, width=32).map(float)


def load(cpu, memory, seed=0):
    """The model of a node that runs steadily at that usage."""
    noise = 0.02 * np.random.default_rng(seed).standard_normal((10, 2))
    return decompose(batch_moment(np.clip(np.array([cpu, memory]) + noise, 0, 1)))


def signal_at(y, cluster, local, form="Magnitude", nodes=10):
    directions, sigma = merge(cluster, local, 1 / nodes)
    k, _ = capacity_signal(np.array(y), expected_load(directions, sigma, form), MAXIMUM)
    return float(k)


def test_a_heavier_workload_elsewhere_lowers_the_signal_of_a_node_with_the_same_one():
    """Figures 3.1 and 4.6: same direction, larger σ₁."""
    y, local = (0.25, 0.1), load(0.25, 0.1)
    light, heavy = load(0.3, 0.1, 1), load(0.9, 0.3, 2)
    assert signal_at(y, heavy, local) < signal_at(y, light, local)


def test_a_heavier_complementary_workload_leaves_more_room_than_a_conflicting_one():
    """Figures 3.2 and 4.7: a node busy with memory, others with cpu."""
    y, local = (0.1, 0.7), load(0.1, 0.7)
    conflicting, complementary = load(0.1, 0.9, 1), load(0.9, 0.1, 2)
    assert signal_at(y, complementary, local) > signal_at(y, conflicting, local)


@pytest.mark.parametrize("form", FORMS)
def test_a_fuller_node_has_a_lower_signal(form):
    cluster = load(0.6, 0.3)
    signals = [signal_at((cpu, 0.2), cluster, cluster, form) for cpu in (0.0, 0.3, 0.6, 0.9, 1.0)]
    assert signals == sorted(signals, reverse=True)
    assert signals[-1] == 0.0


@pytest.mark.parametrize(
    ("case", "y", "e", "k", "binding"),
    [
        ("the scarcer resource binds", [0.5, 0.2], [0.1, 0.4], 2.0, 1),
        ("full along an unused direction does not matter", [1.0, 0.5], [0.0, 0.1], 5.0, 1),
        ("full along the load's direction", [1.0, 0.5], [0.1, 0.1], 0.0, 0),
        ("over-full is not negative", [1.2, 0.5], [0.1, 0.1], 0.0, 0),
        ("no load known: the cap", [0.5, 0.5], [0.0, 0.0], MAXIMUM, 0),
        ("tiny load: the cap", [0.5, 0.5], [1e-300, 1e-300], MAXIMUM, 0),
        ("a resource never measured binds nothing", [np.nan, 0.5], [0.5, 0.1], 5.0, 1),
        ("nothing measured", [np.nan, np.nan], [0.5, 0.1], MAXIMUM, 0),
        ("full and unused", [1.0, 1.0], [0.0, 0.0], MAXIMUM, 0),
    ],
)
def test_which_resource_binds(case, y, e, k, binding):
    signal, bound = capacity_signal(np.array(y), np.array(e), MAXIMUM)
    assert signal == pytest.approx(k), case
    if k < MAXIMUM:
        assert bound == binding, case


@given(st.data())
def test_the_predicted_usage_never_exceeds_1_and_no_larger_k_would_do(data):
    n, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    y, e = (data.draw(arrays(float, (n, m), elements=unit)) for _ in range(2))
    k, binding = capacity_signal(y, e, MAXIMUM)
    assert (y + k[:, None] * e <= 1 + 1e-9).all()
    reached = (k >= MAXIMUM) | (np.abs((y + k[:, None] * e)[np.arange(n), binding] - 1) <= 1e-9)
    assert reached.all()


@given(st.data(), st.sampled_from(FORMS))
def test_expected_load_is_finite_and_non_negative_whatever_the_model(data, form):
    m = data.draw(st.integers(1, 6))
    batch = data.draw(arrays(float, (data.draw(st.integers(1, 12)), m), elements=unit))
    directions, sigma = decompose(batch_moment(batch))
    e = expected_load(directions, sigma, form)
    assert np.isfinite(e).all()
    assert (e >= 0).all()
    if form != "Magnitude":
        assert np.linalg.norm(e) <= 1 + 1e-9


def test_forms_are_those_of_the_seeds():
    directions, sigma = np.array([[0.6, 0.8], [0.8, -0.6]]), np.array([0.9, 0.1])
    assert expected_load(directions, sigma, "Magnitude") == pytest.approx([0.54, 0.72])
    assert expected_load(directions, sigma, "Proportion") == pytest.approx([0.54, 0.72])  # Tr Σ = 1
    assert expected_load(directions, sigma, "Mixture") == pytest.approx([0.62, 0.66])
    assert expected_load(directions, sigma / 2, "Proportion") == pytest.approx([0.54, 0.72])
