import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from concerto.api.score_arguments import LowRiskOverCommitmentArgs as Args
from concerto.scheduling.plugins.load.low_risk_over_commitment import (
    LowRiskOverCommitment,
    risk_of_limits,
    risk_of_load,
)
from support.scheduling_builders import GI, capacity, cluster_state, load, node, pod, query, scores

LIMITS = {
    "limits within what there is": (1000, 2000, 4000, 0.0),
    "twice what there is": (2000, 8000, 4000, 4000 / 6000),
    "all that is requested is guaranteed, and it is too much": (4000, 4001, 4000, 1.0),
    "requests at what there is": (4000, 8000, 4000, 1.0),
    "nothing there": (0, 0, 0, 0.0),
}


@pytest.mark.parametrize(("requests", "limits", "there", "risk"), LIMITS.values(), ids=LIMITS)
def test_the_risk_by_limits(requests, limits, there, risk):
    assert risk_of_limits(*(np.array([float(x)]) for x in (requests, limits, there))) == pytest.approx([risk])


def by_scipy(mu, sigma, t):
    k = mu * (1 - mu) / sigma**2 - 1
    return stats.beta.cdf(t, mu * k, (1 - mu) * k)


# mean, deviation, requested, limited, window, risk
LOADS = {
    "nothing is used": (0.0, 0.2, 0.0, 2.0, 1, 0.0),
    "a steady load below the requests": (0.3, 0.0, 0.3, 2.0, 1, 0.0),
    "a steady load of as much, summed up": (0.1 + 0.2, 0.0, 0.3, 2.0, 1, 0.0),
    "a steady load above them": (0.3, 0.0, 0.2, 2.0, 1, 1.0),
    "a node that is always full": (1.0, 0.3, 0.5, 2.0, 1, 1.0),
    "a load that varies": (0.4, 0.1, 0.5, 2.0, 1, 1 - by_scipy(0.4, 0.1, 0.5)),
    "smoothing hides variance": (0.4, 0.1, 0.5, 2.0, 4, 1 - by_scipy(0.4, 0.2, 0.5)),
    "more variance than there can be": (0.5, 0.9, 0.5, 2.0, 1, 1 - by_scipy(0.5, np.sqrt(0.99 * 0.25), 0.5)),
    "limits bound the load": (0.4, 0.1, 0.5, 0.6, 1, 1 - by_scipy(0.4, 0.1, 0.5) / by_scipy(0.4, 0.1, 0.6)),
    "limits below the load": (0.9, 0.01, 0.1, 0.1, 1, 1.0),
    "no limits at all, as nothing runs": (0.4, 0.1, 0.0, 0.0, 1, 0.0),
    "requests above what there is": (0.4, 0.1, 1.5, 2.0, 1, 0.0),
}


@pytest.mark.parametrize(("mean", "deviation", "requested", "limited", "window", "risk"), LOADS.values(), ids=LOADS)
def test_the_risk_by_load(mean, deviation, requested, limited, window, risk):
    given_ = (np.array([float(x)]) for x in (mean, deviation, requested, limited))
    assert risk_of_load(*given_, window) == pytest.approx([risk], abs=1e-9)


@given(*[st.floats(0, 1)] * 3, st.floats(0, 2), st.integers(1, 100))
def test_a_risk_lies_between_0_and_1(mean, deviation, requested, limited, window):
    risk = risk_of_load(*(np.array([x]) for x in (mean, deviation, requested, limited)), window)
    assert 0 <= risk[0] <= 1


def test_a_metric_that_is_missing_is_not_a_risk():
    nan, some = np.array([np.nan]), np.array([0.5])
    assert np.isnan(risk_of_load(nan, some, some, some, 1)).all()
    assert np.isnan(risk_of_load(some, nan, some, some, 1)).all()


# Requests and limits with the pod, the same without it, capacity, mean; the risk: upstream's computeRisk test
UPSTREAM = {
    "cpu within limits, and used more than requested": (2000, 3000, 1000, 2000, 4000, 0.80, 0.5),
    "memory above limits, and nothing there before": (2048, 6144, 0, 0, 4096, 0.25, 0.25),
    "cpu all requested, limits above": (4000, 5000, 3000, 4000, 4000, 0.80, 1.0),
    "memory above limits, and used more than requested": (1024, 7168, 512, 6144, 4096, 0.25, 0.75),
}


@pytest.mark.parametrize(
    ("request_", "limit", "requested", "limited", "there", "mean", "risk"), UPSTREAM.values(), ids=UPSTREAM
)
def test_upstreams_risks(request_, limit, requested, limited, there, mean, risk):
    def one(x):
        return np.array([float(x)])

    of_limits = risk_of_limits(one(request_), one(limit), one(there))
    of_load = risk_of_load(one(mean), one(0), one(requested / there), one(limited / there), 5)
    assert 0.5 * of_limits + 0.5 * of_load == pytest.approx([risk])


def burstable(name, request, limit, **over):
    resources = {"requests": {"cpu": request}, "limits": {"cpu": limit}}
    return pod(name, containers=[{"name": "main", "resources": resources}], **over)


LONG_AGO = {"created": "1970-01-01T00:00:01Z"}


def test_the_score():
    nodes = [node(n, allocatable={"cpu": 4000, "memory": 8 * GI}) for n in "ab"]
    steady = load((0.30, 0.0), (0.0, 0.0))
    cluster = cluster_state(
        nodes,
        # seen by their agents, so that nothing is predicted
        [burstable("r", "1", "6", nodeName="a", **LONG_AGO), burstable("s", "2", "2", nodeName="b", **LONG_AGO)],
        [
            capacity("a", observed=("uid-r",), windows=steady),
            capacity("b", observed=("uid-s",), windows=steady),
        ],
    )
    p = burstable("p", "1", "2")
    # a: limits 8 of 4, requests 2 -> 4/6; load 0.3 > requests 0.25 -> 1. b: limits 4 of 4 -> 0; 0.3 <= 0.5 -> 0
    assert scores(LowRiskOverCommitment(Args()), query(cluster, p)) == {"a": 17, "b": 100}
    assert scores(LowRiskOverCommitment(Args(limit_risk_weight=1.0)), query(cluster, p)) == {"a": 33, "b": 100}
    assert scores(LowRiskOverCommitment(Args()), query(cluster, pod("q"))) == {"a": 0, "b": 0}


def test_of_a_resource_that_is_not_measured_limits_alone_are_a_risk():
    windows = {"both": load((0.1, 0.1)), "cpu": load((0.1, 0.1), None), "neither": load(None, None)}
    cluster = cluster_state([node(n) for n in windows], (), [capacity(n, windows=w) for n, w in windows.items()])
    p = pod("p", containers=[{"name": "main", "resources": {"limits": {"memory": "16Gi"}, "requests": {"cpu": "1"}}}])
    given_ = scores(LowRiskOverCommitment(Args()), query(cluster, p))
    assert set(given_) == {"both", "cpu"}
    assert given_["both"] == given_["cpu"]
    assert set(scores(LowRiskOverCommitment(Args()), query(cluster, pod("q")))) == {"both", "cpu"}


def test_a_node_that_offers_none_of_a_resource_has_the_least_score():
    cluster = cluster_state(
        [node("none", allocatable={"memory": 0}), node("some")],
        (),
        [capacity(n, windows=load((0.0, 0.0))) for n in ("none", "some")],
    )
    p = pod("p", requests={"cpu": "1"})
    assert scores(LowRiskOverCommitment(Args()), query(cluster, p)) == {"none": 0, "some": 100}


def test_each_resource_has_its_own_weight():
    steady = load((0.30, 0.0), (0.0, 0.0))
    there = burstable("r", "1", "6", nodeName="a", **LONG_AGO)
    cluster = cluster_state([node("a")], [there], [capacity("a", observed=("uid-r",), windows=steady)])
    # of the cpu, limits are 4/6 of a risk and load is one for sure; of the memory there is no risk
    for weights, score in (((("cpu", 1.0),), 33), ((("cpu", 0.0),), 0), ((("memory", 1.0),), 17)):
        plugin = LowRiskOverCommitment(Args(limit_risk_weights=weights))
        assert scores(plugin, query(cluster, burstable("p", "1", "2"))) == {"a": score}
