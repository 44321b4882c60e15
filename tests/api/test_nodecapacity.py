from dataclasses import replace

import pytest

from concerto.api.capacity_settings import CapacitySettings, Gauge
from concerto.api.nodecapacity import NodeCapacity, NodeCapacityStatus
from support.scheduling_builders import capacity


@pytest.mark.parametrize(
    ("spec", "read", "value"),
    [
        ({"smoothing": {"slowPercent": 7}}, lambda s: s.smoothing.slow, 0.07),
        ({"smoothing": {"deltaPercent": 100}}, lambda s: s.smoothing.delta, 1.0),
        ({"subspace": {"weightPercent": 1}}, lambda s: s.subspace_weight, 0.01),
        ({"estimator": {"initialPerPodCost": "250m"}}, lambda s: s.estimator.initial_per_pod_cost, 0.25),
        ({"estimator": {"initialPerPodCost": 1}}, lambda s: s.estimator.initial_per_pod_cost, 1.0),
        ({"estimator": {"processNoise": "100u"}}, lambda s: s.estimator.process_noise, 1e-4),
        ({"estimator": {"settleTime": "1m30s"}}, lambda s: s.estimator.settle_time_seconds, 90.0),
        ({"churnWindow": "250ms"}, lambda s: s.churn_window_seconds, 0.25),
        ({"churnWindow": "0s"}, lambda s: s.churn_window_seconds, 0.0),
        ({"overProvision": {"thresholdPercent": 125}}, lambda s: s.over_provision.threshold, 1.25),
        ({"overProvision": {"max": 0}}, lambda s: s.over_provision.maximum, 0),
        ({"signal": {"max": 500}}, lambda s: s.signal.maximum, 500.0),
        ({"gauges": [{"name": "gpu", "path": "/run/gpu"}]}, lambda s: s.gauges, (Gauge("gpu", "/run/gpu"),)),
    ],
)
def test_settings_are_read_in_fractions_and_seconds(spec, read, value):
    assert read(CapacitySettings.from_raw(spec)) == value


def test_what_is_left_out_of_a_group_keeps_its_default():
    settings = CapacitySettings.from_raw({"smoothing": {"patienceSamples": 9}})
    assert settings.smoothing.patience_samples == 9
    assert settings.smoothing.fast == CapacitySettings().smoothing.fast


@pytest.mark.parametrize(("wanting", "used"), [(1.5, 0.9), (0.0, 0.0), (None, 0.9), (1.5, None), (None, None)])
def test_what_is_unknown_of_the_cpus_demand_is_left_out(wanting, used):
    status = replace(capacity().status, demand=2.0, demand_source="PodPressure", pods_wanting=wanting, cpu_used=used)
    raw = status.to_raw()
    assert ("podsPerCPU" in raw["cpuDemand"], "used" in raw["cpuDemand"]) == (wanting is not None, used is not None)
    assert NodeCapacityStatus.from_raw(raw) == status


def test_an_object_is_known_by_its_nodes_name_and_its_version():
    obj = {"metadata": {"name": "n1", "uid": "u", "resourceVersion": "7", "generation": 3}}
    capacity = NodeCapacity.from_raw(obj)
    assert (capacity.name, capacity.uid, capacity.resource_version, capacity.generation) == ("n1", "u", "7", 3)
    assert capacity.settings == CapacitySettings()
    assert capacity.status is None
