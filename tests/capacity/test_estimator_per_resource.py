"""What a pod costs, learned from usage: young pods, saturation, a steady number of pods, waves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from concerto.api.capacity_settings import EstimatorSettings
from concerto.capacity.estimator_per_resource import SETTLE_AGES, PerResourceEstimator, UsageBatch

SETTINGS = EstimatorSettings()
FIRST = SETTINGS.initial_per_pod_cost
LEAST = 1 / 110
B, K = 10, len(SETTLE_AGES)


class Node:
    """One node with one resource whose pods use ``cost`` each once they are ``wait`` seconds old."""

    def __init__(self, cost, wait=0.0, base=0.1, first=FIRST, measures_base=True):
        self.cost, self.wait, self.base, self.measures_base = cost, wait, base, measures_base
        self.starts = []
        self.now = 0.0
        self.law = PerResourceEstimator(1, 1, np.array([first]), SETTINGS)

    def batch(self):
        usage, pods, younger = np.zeros((1, B, 1)), np.zeros((1, B)), np.zeros((1, B, K))
        for j in range(B):
            self.now += 0.1
            ages = self.now - np.array(self.starts)
            usage[0, j, 0] = min(1.0, self.base + self.cost * (ages >= self.wait).sum())
            pods[0, j] = len(ages)
            younger[0, j] = [(ages < age).sum() for age in SETTLE_AGES]
        feed(self.law, usage, pods, younger, np.array([[self.base if self.measures_base else np.nan]]))
        return self

    def run(self, seconds):
        for _ in range(seconds):
            self.batch()
        return self

    @property
    def learned(self):
        return float(self.law.cost[0, 0])

    @property
    def settle(self):
        return SETTLE_AGES[self.law.choice[0]]


def feed(law, usage, pods, younger, non_pod, measured=None, quiet=None):
    law.update(
        SETTINGS,
        UsageBatch(
            usage=usage,
            measured=np.ones(usage.shape, dtype=bool) if measured is None else measured,
            quiet=np.ones(pods.shape, dtype=bool) if quiet is None else quiet,
            pods=pods,
            younger=younger,
            non_pod=non_pod,
        ),
        full_above=0.95,
        least_cost=np.full(len(pods), LEAST),
        elapsed_seconds=1.0,
    )


@pytest.mark.parametrize("cost", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("base", [0.0, 0.3])
def test_at_a_constant_number_of_pods_the_measured_base_makes_cost_identifiable(cost, base):
    node = Node(cost, base=base)
    node.starts = [-100.0] * 2
    assert node.run(60).learned == pytest.approx(cost, rel=0.05)


def test_young_pods_are_no_evidence_that_pods_are_cheap():
    node = Node(cost=0.1, wait=4.0)
    node.starts = [0.0] * 8
    for _ in range(3):
        assert node.batch().learned == pytest.approx(FIRST)


@pytest.mark.parametrize("wait", [0.3, 1.0, 2.0, 3.0, 5.0])
@pytest.mark.parametrize(("case", "gap"), [("one wave", 0.0), ("staggered", 0.7)])
def test_the_time_until_load_shows_is_learned(case, gap, wait):
    node = Node(cost=0.08, wait=wait)
    for k in range(8):
        node.starts.append(node.now + gap * k)
    node.starts.sort()
    planned, node.starts = node.starts, []
    for _ in range(25):
        node.starts = [t for t in planned if t <= node.now + 1e-9]
        node.batch()
    above = next(age for age in SETTLE_AGES if age >= wait - 1e-9)
    near = [age for age in SETTLE_AGES if (wait / 1.8 <= age or wait < 1.0) and age <= above * 1.6]
    assert node.settle in near, case
    assert node.learned == pytest.approx(0.08, rel=0.35), case


def test_a_saturated_node_raises_a_cost_that_was_learned_too_low():
    node = Node(cost=0.02)
    node.starts = [-100.0] * 4
    node.run(60)
    assert node.learned == pytest.approx(0.02, rel=0.1)
    node.cost = 0.5
    node.run(30)
    assert node.learned >= 0.9 * 0.9 / 4  # four pods fill nine tenths of the node


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.floats(0, 1), st.floats(0, 6)), max_size=12),
    st.lists(st.tuples(st.integers(1, 12), st.floats(0.95, 1), st.floats(0, 6)), min_size=1, max_size=6),
)
def test_saturation_never_lowers_a_cost(history, full):
    law = PerResourceEstimator(1, 1, np.array([FIRST]), SETTINGS)
    base = np.zeros((1, 1))

    def batch(pods, usage, age):
        younger = np.tile((age < np.array(SETTLE_AGES)) * float(pods), (1, B, 1))
        feed(law, np.full((1, B, 1), usage), np.full((1, B), float(pods)), younger, base)

    for pods, usage, age in history:
        batch(pods, usage, age)
    for pods, usage, age in full:
        before = law.cost.copy()
        batch(pods, usage, age)
        assert (law.cost >= before - 1e-12).all()


@pytest.mark.parametrize("cost", [0.05, 0.4])
def test_without_pods_cost_creeps_up_to_the_first_guess_and_not_beyond(cost):
    node = Node(cost)
    node.starts = [-100.0]
    learned = node.run(60).learned
    node.starts = []
    costs = [node.batch().learned for _ in range(20)]
    if learned < FIRST:
        assert costs == sorted(costs)
        assert costs[-1] == pytest.approx(FIRST)
    else:
        assert costs[-1] == pytest.approx(learned)


def test_where_base_cannot_be_measured_the_usage_without_pods_stands_for_it():
    node = Node(cost=0.1, base=0.25, measures_base=False)
    node.run(5)
    assert float(node.law.base[0, 0]) == pytest.approx(0.25)
    node.starts = [node.now - 100.0] * 3
    assert node.run(60).learned == pytest.approx(0.1, rel=0.05)


def test_samples_in_churn_do_not_count():
    law = PerResourceEstimator(1, 1, np.array([FIRST]), SETTINGS)
    feed(law, np.full((1, B, 1), 0.5), np.full((1, B), 2.0), np.zeros((1, B, K)), np.zeros((1, 1)),
         quiet=np.zeros((1, B), dtype=bool))  # fmt: skip
    assert law.cost[0, 0] == FIRST


def test_a_first_guess_of_another_node_is_taken_per_resource():
    law = PerResourceEstimator(2, 2, np.array([[0.2, 0.01], [0.4, 0.05]]), SETTINGS)
    assert law.cost.tolist() == [[0.2, 0.01], [0.4, 0.05]]


@settings(max_examples=60)
@given(st.data())
def test_estimates_stay_finite_and_in_bounds_whatever_is_measured(data):
    law = PerResourceEstimator(2, 2, np.array([FIRST, FIRST]), SETTINGS)
    for _ in range(data.draw(st.integers(1, 4))):
        usage = data.draw(arrays(float, (2, B, 2), elements=st.floats(0, 1)))
        measured = data.draw(arrays(bool, (2, B, 2)))
        quiet = data.draw(arrays(bool, (2, B)))
        pods = data.draw(arrays(float, (2, B), elements=st.integers(0, 500).map(float)))
        share = np.sort(data.draw(arrays(float, (2, B, K), elements=st.floats(0, 1))), axis=2)
        non_pod = data.draw(arrays(float, (2, 2), elements=st.one_of(st.just(np.nan), st.floats(0, 1))))
        feed(law, usage, pods, np.floor(share * pods[:, :, None]), non_pod, measured, quiet)
        assert np.isfinite(law.cost).all()
        assert (law.cost >= LEAST).all()
        assert (law.cost <= 1).all()
        assert ((law.choice >= 0) & (law.choice < K)).all()
