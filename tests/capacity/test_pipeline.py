"""The whole pipeline: what must hold whatever the control law says, and whatever is measured."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from concerto.api.capacity_settings import (
    CapacitySettings,
    EstimatorSettings,
    OverProvisionSettings,
    SignalSettings,
    SmoothingSettings,
)
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.report import MODES, WARMUP_BATCHES, CapacityReport
from concerto.capacity.subspace import Subspace, batch_moment, decompose

SETTINGS = CapacitySettings()
B = SETTINGS.batch_samples
ESTIMATORS = {kind: replace(SETTINGS, estimator=EstimatorSettings(type=kind)) for kind in ("PerResource", "Signal")}
by_estimator = pytest.mark.parametrize("spec", ESTIMATORS.values(), ids=ESTIMATORS.keys())


class Clock:
    """Feeds a pipeline at 10 Hz and remembers the time."""

    def __init__(self, pipeline, now=100.0):
        self.pipeline, self.now, self.report = pipeline, now, None

    def batch(self, y, cluster=None, **kwargs):
        for _ in range(self.pipeline.settings.batch_samples):
            self.now += 0.1
            full = self.pipeline.sample(self.now, np.array(y, dtype=float), **kwargs)
        assert full
        self.report = self.pipeline.fold(self.now, cluster)
        return self.report

    def batches(self, count, y, cluster=None, **kwargs):
        for _ in range(count):
            self.batch(y, cluster, **kwargs)
        return self.report


def start(spec=SETTINGS, n=1, **kwargs):
    return Clock(NodePipeline(spec, n, **kwargs))


def arrays_of(report):
    return {name: value for name, value in vars(report).items() if isinstance(value, np.ndarray)}


# What is measured may be garbage

garbage = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0, np.nan, np.inf, -np.inf, -0.1, 1.1, 1e300, -1e-300, 5e-324])
)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(ESTIMATORS)), st.sampled_from(["Magnitude", "Proportion", "Mixture"]))
def test_garbage_never_gets_into_the_numbers(data, kind, form):
    spec = replace(ESTIMATORS[kind], batch_samples=3, signal=SignalSettings(form=form))
    n, m, now = 3, 2, 50.0
    pipeline = NodePipeline(spec, n, allocatable_pods=8)
    living = []
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(3):
            y, non_pod, utilisation = (data.draw(arrays(float, (n, m), elements=garbage)) for _ in range(3))
            now = data.draw(st.sampled_from([now + 0.1, now + 0.1, now, now - 5.0, now + 300.0]))
            pipeline.sample(now, y, non_pod=non_pod, utilisation=utilisation, valid=data.draw(arrays(bool, (n, m))))
            event = data.draw(st.sampled_from(["start", "old", "end", "nothing"]))
            if event in ("start", "old"):
                living.append((data.draw(st.integers(0, n - 1)), now - (3600.0 if event == "old" else 0.0)))
                pipeline.pod_started(*living[-1])
            elif event == "end" and living:
                node, since = living.pop()
                pipeline.pod_ended(node, since, now)
        pipeline.pods_wanted(0, data.draw(garbage))
        report = pipeline.fold(now)
        pods = np.bincount([node for node, _ in living], minlength=n)
        assert ((report.pods_wanting >= 0) & (report.pods_wanting <= 1000) | np.isnan(report.pods_wanting)).all()
        assert ((report.cpu_used >= 0) & (report.cpu_used <= 1) | np.isnan(report.cpu_used)).all()
        assert report.pods.tolist() == pods.tolist()
        assert (report.capacity >= -pods).all()
        assert (report.capacity <= 8 - pods).all() or pods.max() > 8
        assert ((report.signal >= 0) & (report.signal <= spec.signal.maximum)).all()
        assert ((report.cost > 0) & (report.base >= 0) & (report.base <= 1)).all()
        assert ((report.usage >= 0) & (report.usage <= 1) | np.isnan(report.usage)).all()
        assert (report.young <= report.pods).all()
        for name, values in arrays_of(report).items():
            if name not in ("usage", "non_pod", "system_cpu", "pods_wanting", "cpu_used"):
                assert np.isfinite(values.astype(float)).all(), name
        for window in pipeline.windows(now).values():
            assert not (window.average > 1).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.01, 1.01])
@by_estimator
def test_a_sample_that_is_not_valid_is_as_if_it_had_not_been_taken(spec, bad):
    clean, dirty = start(spec), start(spec)
    rng = np.random.default_rng(2)
    for _ in range(8):
        for _ in range(B):
            y = rng.random((1, 2)) * 0.8
            lost = rng.random((1, 2)) < 0.3
            clean.now += 0.1
            clean.pipeline.sample(clean.now, y, valid=~lost)
            dirty.pipeline.sample(clean.now, np.where(lost, bad, y))
        one, other = clean.pipeline.fold(clean.now), dirty.pipeline.fold(clean.now)
    for (name, mine), theirs in zip(arrays_of(one).items(), arrays_of(other).values()):
        np.testing.assert_array_equal(mine, theirs, err_msg=name)
    assert other.dropped.sum() > 0


def test_what_is_dropped_is_counted_per_resource():
    clock = start(n=2)
    clock.batch([[0.5, np.nan], [0.5, 0.5]])
    report = clock.batch([[0.5, 0.5], [2.0, -1.0]])
    assert report.dropped.tolist() == [[0, B], [B, B]]
    assert report.samples.tolist() == [[B, B], [0, 0]]


def test_a_node_without_a_valid_sample_has_nothing_new_to_publish():
    clock = start(n=2)
    before = clock.batches(5, [[0.3, 0.2], [0.3, 0.2]])
    after = clock.batches(2, [[0.3, 0.2], [np.nan, np.nan]])
    assert after.fresh.tolist() == [True, False]
    assert after.batches.tolist() == [7, 5]
    assert after.usage[1].tolist() == before.usage[1].tolist()
    assert after.local_moments[1].tolist() == before.local_moments[1].tolist()
    assert after.signal[1] == before.signal[1]


def test_a_node_that_was_never_measured_can_take_nothing():
    report = start().batches(5, [[np.nan, np.nan]])
    assert report.capacity.tolist() == [0.0]
    assert MODES[report.mode[0]] == "Warmup"


def test_a_resource_that_was_never_measured_is_unknown_and_binds_nothing():
    clock = start()
    report = clock.batches(10, [[0.2, np.nan]])
    assert np.isnan(report.usage[0, 1])
    assert report.capacity[0] > 0
    assert report.signal[0] == pytest.approx((1 - 0.2) / 0.2, rel=0.01)


def test_a_batch_without_samples_is_no_news():
    pipeline = NodePipeline(SETTINGS, 2)
    assert pipeline.fold(1.0).fresh.tolist() == [False, False]


# Nodes are independent, and so is what they publish


@by_estimator
def test_one_node_alone_is_a_row_of_many(spec):
    n, watched = 100, 37
    many, one = NodePipeline(spec, n), NodePipeline(spec, 1)
    rng = np.random.default_rng(4)
    cluster = Subspace(*decompose(np.array([[0.3, 0.1], [0.1, 0.2]])), nodes=n)
    now, living = 20.0, [[] for _ in range(n)]
    for _ in range(15):
        for _ in range(B):
            now += 0.1
            for node in rng.integers(0, n, 20):
                if living[node] and rng.random() < 0.4:
                    since = living[node].pop(0)
                    many.pod_ended(node, since, now)
                    if node == watched:
                        one.pod_ended(0, since, now)
                else:
                    living[node].append(now)
                    many.pod_started(node, now)
                    if node == watched:
                        one.pod_started(0, now)
            y, non_pod = rng.random((n, 2)), rng.random((n, 2)) * 0.1
            many.sample(now, y, non_pod=non_pod)
            one.sample(now, y[watched : watched + 1], non_pod=non_pod[watched : watched + 1])
        all_reported, reported = many.fold(now, cluster), one.fold(now, cluster)
        for (name, values), of_one in zip(arrays_of(all_reported).items(), arrays_of(reported).values()):
            assert of_one[0] == pytest.approx(values[watched], rel=1e-9, abs=1e-12, nan_ok=True), name


def test_what_is_published_is_the_local_model_and_never_the_view():
    heavy = Subspace(*decompose(batch_moment(np.full((10, 2), 0.9))), nodes=50)
    alone, reported = start().batches(5, [[0.2, 0.1]]), start().batches(5, [[0.2, 0.1]], heavy)
    assert reported.local_moments.tolist() == alone.local_moments.tolist()
    assert reported.signal[0] < alone.signal[0]


def test_the_local_model_is_the_weighted_svd_of_its_batches():
    """Source: docs/references.md, "Local model and merge". SVD of [√(1-w) UΣ, √w A/√b], the first batch whole."""
    clock, rng, batches = start(), np.random.default_rng(6), []
    for _ in range(6):
        rows = []
        for y in rng.random((B, 1, 2)):
            clock.now += 0.1
            clock.pipeline.sample(clock.now, y)
            rows.append(clock.pipeline._smooth.value[0].copy())
        batches.append(np.array(rows).T / np.sqrt(B))
        report = clock.pipeline.fold(clock.now)
    w, model = SETTINGS.subspace_weight, batches[0]
    for batch in batches[1:]:
        u, s, _ = np.linalg.svd(np.hstack([np.sqrt(1 - w) * model, np.sqrt(w) * batch]), full_matrices=False)
        model = u * s
    assert report.local_moments[0] == pytest.approx(model @ model.T)


@pytest.mark.parametrize(
    ("case", "cluster"),
    [
        ("no model", None),
        ("of other resources", Subspace(np.eye(3), np.ones(3), 5)),
        ("of resources in another order", Subspace(np.eye(2), np.ones(2), 5, ("memory", "cpu"))),
        ("of no node", Subspace(np.eye(2), np.ones(2), 0)),
        ("of this node alone", Subspace(np.eye(2), np.ones(2), 1)),
    ],
)
def test_without_a_usable_cluster_model_the_own_one_is_the_view(case, cluster):
    mine, other = start().batches(4, [[0.2, 0.1]]), start().batches(4, [[0.2, 0.1]], cluster)
    assert other.signal.tolist() == mine.signal.tolist(), case


# Numbers that belong together


@by_estimator
def test_until_three_batches_are_folded_only_the_first_guess_counts(spec):
    clock = start(spec)
    for k in range(1, WARMUP_BATCHES + 3):
        report = clock.batch([[0.4, 0.2]])
        assert (MODES[report.mode[0]] == "Warmup") is (k < WARMUP_BATCHES)
        if k < WARMUP_BATCHES:
            assert report.capacity[0] <= (1 - 0.4) / spec.estimator.initial_per_pod_cost + 1e-9


def test_the_source_s_identities_hold_in_its_own_mode():
    """Carico, eq. 3.5 and 3.6: quiet k / c, in churn b / c - n; clipped to what the kubelet takes."""
    clock = start(ESTIMATORS["Signal"], allocatable_pods=1000)
    for _ in range(3):
        clock.pipeline.pod_started(0, clock.now - 60.0)
    quiet = clock.batches(10, [[0.4, 0.2]])
    assert MODES[quiet.mode[0]] == "Quiet"
    assert quiet.capacity[0] == pytest.approx(quiet.signal[0] / quiet.per_pod_cost[0])
    clock.pipeline.pod_started(0, clock.now + 0.9)
    churn = clock.batch([[0.4, 0.2]])
    assert MODES[churn.mode[0]] == "Slots"
    assert churn.capacity[0] == pytest.approx(churn.baseline[0] / churn.per_pod_cost[0] - 4)


def test_a_young_pod_counts_against_capacity_before_it_shows_any_load():
    clock = start()
    before = clock.batches(10, [[0.0, 0.1]])
    clock.pipeline.pod_started(0, clock.now)
    after = clock.batch([[0.0, 0.1]])
    assert after.young.tolist() == [1]
    assert after.capacity[0] < before.capacity[0]
    assert after.cost[0, 1] == pytest.approx(before.cost[0, 1])


@pytest.mark.parametrize("y", [[1.0, 0.2], [0.5, 1.0], [1.0, 1.0]])
@by_estimator
def test_a_node_that_stays_full_of_working_pods_takes_none(spec, y):
    clock = start(spec)
    for _ in range(12):
        clock.pipeline.pod_started(0, clock.now - 60.0)
    assert clock.batches(40, [y]).capacity[0] < 1


def test_an_empty_node_takes_at_least_one_pod_however_large_the_last_ones_were():
    clock = start()
    clock.pipeline.pod_started(0, clock.now - 60.0)
    clock.batches(30, [[0.99, 0.9]])
    clock.pipeline.pod_ended(0, clock.now - 90.0, clock.now)
    assert clock.batches(5, [[0.05, 0.1]]).capacity[0] >= 1


def test_pods_found_running_at_the_start_are_not_young():
    clock = start()
    clock.pipeline.pod_started(0, clock.now - 3600.0)
    clock.pipeline.pod_started(0, clock.now)
    report = clock.batch([[0.1, 0.1]])
    assert (report.pods.tolist(), report.young.tolist()) == ([2], [1])


def test_over_provision_is_contained_in_capacity_and_never_exceeds_what_the_kubelet_takes():
    on = replace(SETTINGS, over_provision=OverProvisionSettings(enabled=True, window=2, maximum=3))
    with_it, without = start(on, allocatable_pods=20), start(SETTINGS, allocatable_pods=20)
    for clock in (with_it, without):
        for _ in range(10):
            clock.pipeline.pod_started(0, clock.now)
            clock.batch([[0.3, 0.02]])
            clock.pipeline.pod_ended(0, clock.now - 1.0, clock.now)
        clock.batches(10, [[0.3, 0.02]])
    assert with_it.report.over_provision[0] == 3
    assert with_it.report.capacity[0] == pytest.approx(min(without.report.capacity[0] + 3, 20))


def overloaded(spec=SETTINGS, pods=20, batches=3):
    """A node of which a fifth of the pods would fill the CPUs, after pods have completed on it."""
    clock = start(spec)
    for _ in range(4):
        clock.pipeline.pod_started(0, clock.now)
    for _ in range(30):
        clock.batches(3, [[0.5, 0.2]], utilisation=np.array([[1.0, 0.2]]))
        clock.pipeline.pod_ended(0, clock.now - 12.0, clock.now)
        clock.pipeline.pod_started(0, clock.now)
    for _ in range(pods - 4):
        clock.pipeline.pod_started(0, clock.now)
    clock.batches(batches, [[1.0, 0.2]], utilisation=np.array([[1.0, 0.2]]))
    return clock


def test_a_node_with_too_many_pods_publishes_by_how_many():
    report = overloaded().report
    assert report.pods[0] == 20
    assert -20 <= report.capacity[0] < -8
    assert report.room[0] < -4


def test_what_is_published_of_an_overload_is_the_window_less_the_pods():
    clock = overloaded()
    few, many = clock.report, overloaded(pods=40).report
    assert many.capacity[0] == pytest.approx(few.capacity[0] - 20, abs=4)


FULL_OF_MEMORY = {
    "the defaults": {},
    "an allowance": {"over_provision": OverProvisionSettings(enabled=True, window=2, maximum=8)},
    "Carico's estimator": {"estimator": EstimatorSettings(type="Signal")},
    "pods believed to be tiny": {"estimator": EstimatorSettings(initial_per_pod_cost=0.001)},
    "tiny pods by Carico's estimator": {"estimator": EstimatorSettings(type="Signal", initial_per_pod_cost=0.001)},
    "a narrow band for smoothing": {"smoothing": SmoothingSettings(delta=0.01)},
    "all of it": {
        "over_provision": OverProvisionSettings(enabled=True, window=2, maximum=8),
        "estimator": EstimatorSettings(type="Signal", initial_per_pod_cost=0.001),
        "smoothing": SmoothingSettings(delta=0.01),
    },
}


@pytest.mark.parametrize("changes", FULL_OF_MEMORY.values(), ids=FULL_OF_MEMORY)
@pytest.mark.parametrize("pods", [0, 3])
def test_no_setting_makes_a_node_whose_memory_is_full_publish_room(changes, pods):
    clock = start(replace(SETTINGS, **changes))
    for _ in range(pods):
        clock.pipeline.pod_started(0, clock.now - 600.0)
    for _ in range(20):
        for _ in range(5):  # completions in a row let an allowance grow
            clock.pipeline.pod_started(0, clock.now)
            clock.pipeline.pod_ended(0, clock.now - 5.0, clock.now)
        report = clock.batch([[0.05, 0.97]], utilisation=np.array([[0.1, 0.97]]))
        assert report.capacity[0] <= 0
        assert report.room[0] <= 0


def test_an_allowance_is_no_memory():
    on = replace(SETTINGS, over_provision=OverProvisionSettings(enabled=True, window=2, maximum=8))
    reports = []
    for spec in (SETTINGS, on):
        clock = start(spec)
        for _ in range(6):
            clock.pipeline.pod_started(0, clock.now - 600.0)
        for _ in range(20):
            for _ in range(5):
                clock.pipeline.pod_started(0, clock.now)
                clock.pipeline.pod_ended(0, clock.now - 5.0, clock.now)
            clock.batch([[0.05, 0.86]], utilisation=np.array([[0.1, 0.86]]), non_pod=np.array([[0.0, 0.1]]))
        reports.append(clock.batches(20, [[0.05, 0.86]], utilisation=np.array([[0.1, 0.86]])))
    plain, generous = reports
    assert generous.over_provision[0] == 8
    assert generous.capacity[0] <= max(plain.capacity[0], (1 - 0.86) / generous.cost[0, 1])


def test_windows_are_of_utilisation_where_that_differs_from_y():
    clock = start()
    clock.batches(3, [[0.5, 0.3]], utilisation=np.array([[1.0, 0.3]]))
    window = clock.pipeline.windows(clock.now)["5m"]
    assert window.average[0] == pytest.approx([1.0, 0.3])
    assert clock.report.usage[0] == pytest.approx([0.5, 0.3])


# Settings change while it runs


def test_other_settings_keep_what_was_learned():
    clock = start()
    before = clock.batches(10, [[0.6, 0.2]])
    clock.pipeline.apply(replace(SETTINGS, batch_samples=5, subspace_weight=0.5))
    after = clock.batch([[0.6, 0.2]])
    assert after.batches[0] == before.batches[0] + 1
    assert after.signal[0] == pytest.approx(before.signal[0], rel=0.01)


def test_other_resources_need_a_new_pipeline():
    with pytest.raises(ValueError, match="new pipeline"):
        NodePipeline(SETTINGS, 1).apply(replace(SETTINGS, resources=("cpu",)))


@pytest.mark.parametrize("resources", [("cpu",), ("memory",), ("memory", "io", "cpu", "network"), ("gpu",)])
@by_estimator
def test_any_resources_in_any_order(spec, resources):
    clock = start(replace(spec, resources=resources))
    report = clock.batches(5, np.full((1, len(resources)), 0.25))
    assert report.usage.shape == report.cost.shape == (1, len(resources))
    assert report.capacity[0] >= 1


def test_a_report_does_not_change_when_the_pipeline_goes_on():
    clock = start()
    report = clock.batches(4, [[0.2, 0.2]])
    kept = {name: values.copy() for name, values in arrays_of(report).items()}
    clock.pipeline.pod_started(0, clock.now)
    clock.batches(5, [[0.9, 0.9]])
    assert isinstance(report, CapacityReport)
    for name, values in arrays_of(report).items():
        np.testing.assert_array_equal(values, kept[name], err_msg=name)
