import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.nodecapacity import Window
from concerto.api.score_arguments import LoadVariationRiskBalancingArgs as Args
from concerto.scheduling.plugins.load.load_variation_risk_balancing import (
    LoadVariationRiskBalancing,
    kep_score,
    upstream_score,
)
from support.scheduling_builders import GI, capacity, cluster_state, load, node, pod, query, scores

# mean, deviation, request, margin, sensitivity (None: the KEP's formula), score before rounding
FORMULAS = {
    "upstream's test": (0.40, 0.36, 0.10, 1, 1, 57.0),
    "upstream's test without variation": (0.40, 0.0, 0.10, 1, 1, 75.0),
    "a margin of two": (0.40, 0.20, 0.10, 2, 1, 55.0),
    "the square root of the deviation": (0.40, 0.36, 0.10, 1, 2, 45.0),
    "its square": (0.40, 0.36, 0.10, 1, 0.5, 68.52),
    "sensitivity 0 takes no deviation into account": (0.40, 0.36, 0.10, 1, 0, 75.0),
    "but a full one": (0.40, 1.0, 0.10, 1, 0, 25.0),
    "upstream's test: negative mean": (-0.40, 0.36, 0.10, 1, 2, 65.0),
    "upstream's test: large mean": (2.00, 0.36, 0.10, 1, 2, 20.0),
    "upstream's test: negative deviation": (0.40, -0.36, 0.10, 1, 2, 75.0),
    "upstream's test: large deviation": (0.40, 1.20, 0.10, 1, 2, 25.0),
    "upstream's test: negative margin": (0.40, 0.36, 0.10, -1, 1, 75.0),
    "upstream's test: negative sensitivity": (0.40, 0.36, 0.10, 1, -1, 57.0),
    "both are bounded": (0.9, 0.9, 0.9, 5, 1, 0.0),
    "the KEP's sum": (0.40, 0.36, 0.10, 1, None, 14.0),
    "the KEP's sum, with ita 0": (0.40, 0.36, 0.10, 0, None, 50.0),
    "the KEP's sum is bounded": (0.9, 0.9, 0.9, 5, None, 0.0),
}


@pytest.mark.parametrize(
    ("mean", "deviation", "request_", "margin", "sensitivity", "expected"), FORMULAS.values(), ids=FORMULAS
)
def test_the_formulas(mean, deviation, request_, margin, sensitivity, expected):
    m, v, r = (np.array([x]) for x in (mean, deviation, request_))
    score = kep_score(m, v, r, margin) if sensitivity is None else upstream_score(m, v, r, margin, sensitivity)
    assert score == pytest.approx([expected])


FRACTION = st.floats(0, 1)


@given(FRACTION, FRACTION, FRACTION, FRACTION, st.floats(0, 4), st.sampled_from([None, 0.0, 0.5, 1.0, 2.0]))
def test_more_of_mean_or_deviation_or_request_is_never_better(m, v, r, more, margin, sensitivity):
    def score(mean, deviation, request):
        a, b, c = (np.array([x]) for x in (mean, deviation, request))
        made = kep_score(a, b, c, margin) if sensitivity is None else upstream_score(a, b, c, margin, sensitivity)
        assert 0 <= made[0] <= 100
        return made[0]

    before = score(m, v, r)
    assert score(min(m + more, 1), v, r) <= before
    assert score(m, min(v + more, 1), r) <= before
    assert score(m, v, min(r + more, 1)) <= before


def cluster(**loads):
    nodes = [node(n, allocatable={"cpu": 4000, "memory": 8 * GI}) for n in loads]
    return cluster_state(nodes, (), [capacity(n, windows=load(*of)) for n, of in loads.items()])


def test_the_worst_resource_counts():
    nodes = cluster(a=((0.2, 0.1), (0.5, 0.2)), b=((0.5, 0.2), (0.2, 0.1)), c=((0.3, 0.1), (0.3, 0.1)))
    p = pod("p", requests={"cpu": "500m", "memory": "1Gi"})  # an eighth of each, as in the KEP
    assert scores(LoadVariationRiskBalancing(Args()), query(nodes, p)) == {"a": 18, "b": 18, "c": 48}
    upstream = LoadVariationRiskBalancing(Args("Upstream"))
    assert scores(upstream, query(nodes, p)) == {"a": 59, "b": 59, "c": 74}


def test_the_resource_that_is_measured_counts_and_a_deviation_that_is_not_is_0():
    plugin = LoadVariationRiskBalancing(Args())
    both, cpu_only, memory_only = ((0.2, 0.1), (0.0, 0.0)), ((0.2, 0.1), None), (None, (0.4, 0.0))
    measured = cluster(a=both, b=cpu_only, c=memory_only, d=(None, None))
    assert scores(plugin, query(measured, pod("p"))) == {"a": 70, "b": 70, "c": 60}
    windows = (Window("cpu", "5m", 0.2, float("nan"), 0.2, 300),)
    steady = cluster_state([node("a")], (), [capacity("a", windows=windows)])
    assert scores(plugin, query(steady, pod("p"))) == {"a": 80}


@pytest.mark.parametrize("formula", ["KEP", "Upstream"])
def test_a_machine_without_the_resource_has_the_least_score(formula):
    nodes = [node("none", capacity={"cpu": 0, "memory": 8 * GI}), node("some")]
    measured = cluster_state(nodes, (), [capacity(n, windows=load((0.0, 0.0))) for n in ("none", "some")])
    assert scores(LoadVariationRiskBalancing(Args(formula)), query(measured, pod("p"))) == {"none": 0, "some": 100}
