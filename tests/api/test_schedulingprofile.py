from pathlib import Path

import pytest
import yaml

from concerto.api.metric_provider import MetricProviderSettings, PrometheusQuery, PrometheusSettings
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.score_arguments import (
    LoadVariationRiskBalancingArgs,
    LowRiskOverCommitmentArgs,
    NodeResourcesFitArgs,
    ScoreSettings,
    ShapePoint,
    TargetLoadPackingArgs,
)
from concerto.scheduling.plugins.registry import ALWAYS, FILTERS, SCORES
from concerto.scheduling.profile import Profile
from support.crd_schemas import stored_spec

CRD = Path(__file__).parents[2] / "crds" / "schedulingprofiles.yaml"


def spec_schema():
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]["properties"]


def test_what_is_left_out_takes_the_default_of_the_crd():
    schema = spec_schema()
    defaults = {name: field["default"] for name, field in schema.items() if "default" in field}
    defaults["load"] = {n: f["default"] for n, f in schema["load"]["properties"].items()}
    defaults["reservations"] = {n: f["default"] for n, f in schema["reservations"]["properties"].items()}
    provider = schema["metricProvider"]["properties"]
    defaults["metricProvider"] = {n: f["default"] for n, f in provider.items() if "default" in f}
    assert ProfileSettings.from_raw({"schedulerName": "x"}) == ProfileSettings.from_raw(
        {"schedulerName": "x"} | defaults
    )
    assert ProfileSettings.from_raw({"schedulerName": "x"}) == ProfileSettings("x")


def test_the_crd_knows_the_plugins_that_there_are():
    schema = spec_schema()
    assert set(schema["filters"]["items"]["properties"]["name"]["enum"]) == set(FILTERS)
    assert set(schema["scores"]["items"]["properties"]["name"]["enum"]) == set(SCORES)


def test_a_profile_has_the_plugins_that_its_spec_lists_in_that_order():
    spec = {
        "schedulerName": "x",
        "filters": [{"name": "PodCapacity"}, {"name": "NodeReady"}],
        "scores": [{"name": "Capacity", "weight": 7}],
        "metricsPolicy": "Avoid",
        "staleAfter": "90s",
        "largePodWait": "30s",
        "failedStartWait": "45s",
        "admitFraction": "500m",
        "tieBreaking": "FirstByName",
        "reservations": {"maxUnitsPerNamespace": 5, "unboundTTL": "2m"},
    }
    made = Profile.build(ProfileSettings.from_raw(spec))
    # constraints between pods hold under every profile: a pod that names one is not placed against it
    assert [f.name for f in made.filters] == ["PodCapacity", "NodeReady", *(f.name for f in ALWAYS)]
    assert [(s.name, w) for s, w in made.scores] == [("Capacity", 7)]
    settings = made.settings
    assert (settings.metrics_policy, settings.stale_after_seconds, settings.admit_fraction) == ("Avoid", 90.0, 0.5)
    assert (settings.large_pod_wait_seconds, settings.failed_start_wait_seconds) == (30.0, 45.0)
    assert (settings.max_units_per_namespace, settings.unbound_ttl_seconds) == (5, 120.0)


ARGUMENTS = {
    "TargetLoadPacking": ("targetLoadPacking", TargetLoadPackingArgs),
    "LoadVariationRiskBalancing": ("loadVariationRiskBalancing", LoadVariationRiskBalancingArgs),
    "LowRiskOverCommitment": ("lowRiskOverCommitment", LowRiskOverCommitmentArgs),
    "NodeResourcesFit": ("nodeResourcesFit", NodeResourcesFitArgs),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_are_left_out_take_the_defaults_of_the_crd(name):
    field, args = ARGUMENTS[name]
    stored = stored_spec("SchedulingProfile", {"schedulerName": "x", "scores": [{"name": name, field: {}}]})
    assert args.from_raw(stored["scores"][0][field]) == args() == args.from_raw({})
    assert ProfileSettings.from_raw(stored).scores == (ScoreSettings(name),)


def test_every_argument_is_read():
    score = {
        "name": "any",
        "weight": 9,
        "missingMetrics": "Requests",
        "targetLoadPacking": {"targetUtilization": 60},
        "loadVariationRiskBalancing": {
            "formula": "Upstream",
            "safeVarianceMargin": "1500m",
            "safeVarianceSensitivity": 2,
        },
        "lowRiskOverCommitment": {
            "smoothingWindowSize": 1,
            "limitRiskWeightPercent": 25,
            "riskLimitWeights": {"cpu": "800m", "memory": 1},
        },
        "nodeResourcesFit": {
            "strategy": "RequestedToCapacityRatio",
            "resources": [{"name": "example.com/gpu", "weight": 5}, {"name": "cpu"}],
            "shape": [{"utilization": 100, "score": 10}, {"utilization": 0, "score": 0}],
        },
    }
    assert ScoreSettings.from_raw(score) == ScoreSettings(
        "any",
        9,
        TargetLoadPackingArgs(60),
        LoadVariationRiskBalancingArgs("Upstream", 1.5, 2.0),
        LowRiskOverCommitmentArgs(1, 0.25, (("cpu", 0.8), ("memory", 1.0))),
        NodeResourcesFitArgs(
            "RequestedToCapacityRatio", (("example.com/gpu", 5), ("cpu", 1)), (ShapePoint(0, 0), ShapePoint(100, 10))
        ),
        "Requests",
    )
    load = {"window": "15m", "requestMultiplier": 2, "defaultCPURequest": "500m", "bestEffortCPURequest": "10m"}
    load |= {"minMeasuredPercent": 75, "requestsStrategy": "MostAllocated"}
    assert LoadSettings.from_raw(load) == LoadSettings("15m", 2.0, 500.0, 10.0, "", 75, "MostAllocated")


@pytest.mark.parametrize(("provider", "samples"), [("Agents", 1), ("KubernetesMetricsServer", 1), ("Prometheus", 5)])
def test_the_smoothing_window_follows_the_provider_unless_it_is_given(provider, samples):
    def window(**args):
        spec = {"schedulerName": "x", "scores": [{"name": "LowRiskOverCommitment", "lowRiskOverCommitment": args}]}
        spec["metricProvider"] = {"type": provider, "prometheus": PROMETHEUS}
        ((score, _),) = Profile.build(ProfileSettings.from_raw(spec)).scores
        return score.args.smoothing_window

    assert (window(), window(smoothingWindowSize=3)) == (samples, 3)


def test_a_ratio_without_a_shape_is_an_error():
    with pytest.raises(ValueError, match="shape"):
        NodeResourcesFitArgs.from_raw({"strategy": "RequestedToCapacityRatio"})


PROMETHEUS = {"address": "https://p:9090/base/", "queries": {"cpu": {"average": "a"}, "memory": {"latest": "l"}}}


def test_a_provider_is_read_with_all_that_it_needs():
    schema = spec_schema()["metricProvider"]["properties"]["prometheus"]["properties"]
    made = ProfileSettings.from_raw(
        {
            "schedulerName": "x",
            "load": {"window": "10m"},
            "metricProvider": {
                "type": "Prometheus",
                "interval": "30s",
                "timeout": "2s",
                "prometheus": PROMETHEUS
                | {
                    "nodeLabel": "instance",
                    "secretName": "other",
                    "headers": [{"name": "X-Scope-OrgID", "value": "nodes"}],
                    "authorization": {"type": "Basic", "key": "login"},
                    "tls": {"caKey": "ca.crt"},
                },
            },
        }
    )
    assert made.metric_provider == MetricProviderSettings(
        "Prometheus",
        30.0,
        2.0,
        PrometheusSettings(
            "https://p:9090/base",
            (PrometheusQuery("cpu", "average", "a"), PrometheusQuery("memory", "latest", "l")),
            "instance",
            (("X-Scope-OrgID", "nodes"),),
            "other",
            ("Basic", "login"),
            "ca.crt",
        ),
    )
    assert made.load == LoadSettings(window="10m", provider="x")
    assert [q.name for q in made.metric_provider.prometheus.queries] == ["cpu.average", "memory.latest"]
    least = PrometheusSettings.from_raw(PROMETHEUS)
    # Without a default in the CRD, as it depends on the exporter
    assert (least.node_label, least.secret_name) == ("node", schema["secretName"]["default"])
    assert (least.authorization, least.ca_key, least.insecure_skip_verify) == (None, "", False)
    authorization = {n: f["default"] for n, f in schema["authorization"]["properties"].items()}
    assert PrometheusSettings.from_raw(PROMETHEUS | {"authorization": {}}).authorization == tuple(
        authorization.values()
    )
    assert PrometheusSettings.from_raw(PROMETHEUS | {"tls": {"insecureSkipVerify": True}}).insecure_skip_verify


@pytest.mark.parametrize(
    "wrong", [{"type": "Prometheus"}, {"type": "Prometheus", "prometheus": {"address": "http://p", "queries": {}}}]
)
def test_what_the_crd_refuses_of_a_provider_is_refused_here_as_well(wrong):
    with pytest.raises(ValueError, match="prometheus"):
        ProfileSettings.from_raw({"schedulerName": "x", "metricProvider": wrong})
