import contextlib
import functools

import pytest

from concerto.api.predictivehpa import MetricSpec, PredictiveHPA, format_selector
from concerto.api.selector_text import parse_selector
from concerto.api.timestamps import parse_timestamp
from support.crd_schemas import problems
from support.step_counts import steps_of


def phpa(**spec):
    return {
        "metadata": {"namespace": "n", "name": "web", "uid": "u", "generation": 3},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": 9}
        | spec,
    }


def test_what_is_left_out_takes_the_defaults_of_autoscaling_v2():
    view = PredictiveHPA.from_raw(phpa())
    assert (view.min_replicas, view.max_replicas) == (1, 9)
    (metric,) = view.metrics
    assert (metric.type, metric.name, metric.utilization) == ("Resource", "cpu", 80)
    assert view.scale_up is None and view.scale_down is None
    assert view.prediction.mode == "Auto"
    assert view.prediction.horizon_seconds is None


def test_a_behavior_of_one_direction_is_a_behavior_of_both():
    view = PredictiveHPA.from_raw(phpa(behavior={"scaleUp": {"tolerance": "50m"}}))
    assert view.scale_up.tolerance == 0.05
    assert view.scale_down is not None and view.scale_down.policies is None


@pytest.mark.parametrize(
    ("written", "tolerance"),
    [("50m", 0.05), ("0.05", 0.05), (0.05, 0.05), (1e-05, 1e-05), ("1e-2", 0.01), (".5", 0.5), (0, 0.0), (2, 2.0)],
)
def test_a_tolerance_is_any_that_autoscaling_v2_takes(written, tolerance):
    obj = phpa(behavior={"scaleUp": {"tolerance": written}})
    assert PredictiveHPA.from_raw(obj).scale_up.tolerance == tolerance
    assert problems({"apiVersion": "concerto.dev/v1alpha1", "kind": "PredictiveHPA", **obj}) == []


@pytest.mark.parametrize("written", [-0.1, "-50m", "5 %", "", {"a": 1}, [1]])
def test_what_is_no_tolerance_is_refused_by_the_api_server(written):
    obj = phpa(behavior={"scaleUp": {"tolerance": written}})
    assert problems({"apiVersion": "concerto.dev/v1alpha1", "kind": "PredictiveHPA", **obj}) != []


@pytest.mark.parametrize(
    ("kind", "expected"), [("Value", (None, 100_000)), ("AverageValue", (10_000, None))], ids=["in all", "per pod"]
)
def test_an_object_metric_with_both_targets_goes_by_its_type_as_in_autoscaling_v2(kind, expected):
    """With type Value, autoscaling/v2 takes both, and 100 requests a second of 10 pods are at their target."""
    target = {"type": kind, "value": "100", "averageValue": "10"}
    described = {"kind": "Ingress", "name": "web", "apiVersion": "networking.k8s.io/v1"}
    metric = {"describedObject": described, "metric": {"name": "requests"}, "target": target}
    obj = phpa(metrics=[{"type": "Object", "object": metric}])
    assert problems({"apiVersion": "concerto.dev/v1alpha1", "kind": "PredictiveHPA", **obj}) == []
    (read,) = PredictiveHPA.from_raw(obj).metrics
    assert (read.average_value, read.value) == expected


SELECTORS = {
    "labels and expressions": (
        {
            "matchLabels": {"queue": "a", "example.com/team": ""},
            "matchExpressions": [
                {"key": "zone", "operator": "NotIn", "values": ["x", "y.z_1"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        },
        "",
    ),
    "nothing": (None, ""),
    "In nothing": (
        {"matchExpressions": [{"key": "queue", "operator": "In"}]},
        "operator In of label 'queue' needs values",
    ),
    "Exists with a value": (
        {"matchExpressions": [{"key": "queue", "operator": "Exists", "values": ["a"]}]},
        "operator Exists of label 'queue' takes no values",
    ),
    "a value that is two requirements": (
        {"matchLabels": {"queue": "a,zone=b"}},
        "'a,zone=b' is not a value of a label",
    ),
    "a key that is two requirements": ({"matchLabels": {"queue,zone": "a"}}, "'queue,zone' is not a label's name"),
}


@pytest.mark.parametrize(("selector", "error"), SELECTORS.values(), ids=SELECTORS)
@pytest.mark.parametrize("is_input", [False, True])
def test_a_selector_that_autoscaling_v2_refuses_is_an_error_of_its_metric(selector, error, is_input):
    """`queue in ()` selects the series with an empty label, and `a=b,c=d` what neither of the two would."""
    metric = {"name": "jobs"} | ({} if selector is None else {"selector": selector})
    target = {"type": "Value", "value": "1"}
    raw = {"type": "External", "external": {"metric": metric, "target": target}}
    if is_input:
        inputs = [{"name": "jobs", "external": {"metric": metric}}]
        raw = {"type": "Formula", "formula": {"name": "f", "expression": "jobs", "inputs": inputs, "target": target}}
    read = MetricSpec.from_raw(raw)
    found = dict(read.inputs)["jobs"] if is_input else read
    assert error in found.selector_error
    assert bool(found.selector_error) == bool(error)


@pytest.mark.parametrize("written", ["+5", ".5", "5.", "1E", "2e3", "100Mi", 5])
def test_a_target_is_any_quantity_that_is_above_zero(written):
    target = {"type": "AverageValue", "averageValue": written}
    obj = phpa(metrics=[{"type": "Pods", "pods": {"metric": {"name": "q"}, "target": target}}])
    assert PredictiveHPA.from_raw(obj).metrics[0].average_value > 0
    assert problems({"apiVersion": "concerto.dev/v1alpha1", "kind": "PredictiveHPA", **obj}) == []


def test_prediction_is_read_with_its_units():
    season = {"length": "24h", "start": "2026-03-01T00:00:00Z"}
    view = PredictiveHPA.from_raw(phpa(prediction={"horizon": "90s", "historyLength": "2h", "season": season}))
    p = view.prediction
    assert (p.horizon_seconds, p.history_seconds, p.season_seconds) == (90.0, 7200.0, 86400.0)
    assert p.season_start == parse_timestamp("2026-03-01T00:00:00Z")


PODS_METRIC = {"target": {"type": "AverageValue", "averageValue": "1"}}
PATHS = {
    "a target above its namespace": {"scaleTargetRef": {"kind": "Deployment", "name": "../../other/gadgets/x"}},
    "a target that is dots": {"scaleTargetRef": {"kind": "Deployment", "name": ".."}},
    "an encoded slash": {"scaleTargetRef": {"kind": "Deployment", "name": "..%2f"}},
    "a kind that is a path": {"scaleTargetRef": {"kind": "a/b", "name": "x"}},
    "a version that is a query": {"scaleTargetRef": {"apiVersion": "a?b=/v1", "kind": "Deployment", "name": "x"}},
    "a version above its group": {"scaleTargetRef": {"apiVersion": "../api/v1", "kind": "Deployment", "name": "x"}},
    "a metric of another namespace": {
        "metrics": [{"type": "Pods", "pods": PODS_METRIC | {"metric": {"name": "../../../other/pods/x/m"}}}]
    },
}


@pytest.mark.parametrize("spec", PATHS.values(), ids=PATHS)
def test_what_is_named_leads_nowhere_else(spec):
    with pytest.raises(ValueError, match=r"is not (a valid name|an API version)"):
        PredictiveHPA.from_raw(phpa(**spec))


def test_resources_may_have_a_domain():
    resource = {"name": "example.com/gpu", "target": {"type": "AverageValue", "averageValue": "1"}}
    (metric,) = PredictiveHPA.from_raw(phpa(metrics=[{"type": "Resource", "resource": resource}])).metrics
    assert metric.name == "example.com/gpu"


METRICS = {
    "a fractional target is kept in thousandths, not cut to a whole": (
        {
            "type": "Pods",
            "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "1500m"}},
        },
        ("q", None, 1500, None),
    ),
    "an object and its value": (
        {
            "type": "Object",
            "object": {
                "metric": {"name": "r"},
                "describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                "target": {"type": "Value", "value": "2k"},
            },
        },
        ("r", None, None, 2_000_000),
    ),
    "one container": (
        {
            "type": "ContainerResource",
            "containerResource": {
                "name": "memory",
                "container": "app",
                "target": {"type": "AverageValue", "averageValue": "1Mi"},
            },
        },
        ("memory", "app", 1048576000, None),
    ),
}


@pytest.mark.parametrize(("raw", "want"), METRICS.values(), ids=METRICS)
def test_metrics(raw, want):
    metric = MetricSpec.from_raw(raw)
    assert (metric.name, metric.container, metric.average_value, metric.value) == want
    assert "target" not in metric.identity


def test_a_target_that_is_no_quantity_is_an_error_that_quotes_it():
    raw = {"type": "Pods", "pods": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "NaN"}}}
    with pytest.raises(ValueError, match="'NaN' is not a quantity"):
        MetricSpec.from_raw(raw)


SELECTORS = {
    "app=web": [({"app": "web"}, True), ({"app": "x"}, False), ({}, False)],
    "app==web,tier in (a, b)": [({"app": "web", "tier": "b"}, True), ({"app": "web", "tier": "c"}, False)],
    "!canary,tier notin (a)": [({}, True), ({"canary": ""}, False), ({"tier": "a"}, False)],
    "example.com/app,x!=1": [({"example.com/app": ""}, True), ({"example.com/app": "", "x": "1"}, False)],
    "": [({"any": "thing"}, True)],
}


@pytest.mark.parametrize(("text", "cases"), SELECTORS.items(), ids=SELECTORS)
def test_a_selector_in_words(text, cases):
    selector = parse_selector(text)
    for labels, want in cases:
        assert selector.matches(labels) is want


@pytest.mark.parametrize("text", ["a=b,,c", "in (a)", "a in b", "=x", "a=b c"])
def test_what_is_no_selector_is_refused_with_its_text(text):
    with pytest.raises(ValueError, match="is not part of a label selector"):
        parse_selector(text)


SELECTORS = {
    "labels with values": lambda length: "a=b," * (length // 4 - 1) + "a=b",
    "labels alone": lambda length: "a," * (length // 2 - 1) + "a",
    "a set that is not closed": lambda length: "a in (" + "b," * (length // 2 - 3),
    "spaces": lambda length: "a" + " " * (length - 2) + "b",
}


@pytest.mark.parametrize("selector", SELECTORS.values(), ids=SELECTORS)
def test_a_selector_is_parsed_in_linear_time(selector):
    def parse(text):
        with contextlib.suppress(ValueError):
            parse_selector(text)

    assert steps_of(functools.partial(parse, selector(4096))) < 20 * steps_of(functools.partial(parse, selector(256)))


def test_a_selector_beyond_the_limit_is_refused_before_it_is_parsed():
    with pytest.raises(ValueError, match=r"has 64000 characters: shorten it to 16384"):
        parse_selector("=" * 64_000)


def test_a_selector_is_written_as_it_is_read():
    raw = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]},
            {"key": "canary", "operator": "DoesNotExist"},
        ],
    }
    text = format_selector(raw)
    assert text == "app=web,tier in (a,b),!canary"
    assert parse_selector(text).matches({"app": "web", "tier": "a"})
    assert format_selector(None) == ""


def test_a_formula_has_named_inputs_and_its_key_holds_all_that_demand_is_relative_to():
    metric = {"name": "queue_length", "selector": {"matchLabels": {"a": "b"}}}
    inputs = [
        {"name": "hits", "prometheus": {"query": "sum(hits)"}},
        {"name": "jobs", "external": {"metric": metric}},
    ]
    body = {"name": "load", "expression": "hits + jobs", "inputs": inputs, "target": {"averageValue": "5"}}
    found = MetricSpec.from_raw({"type": "Formula", "formula": body})
    assert (found.name, found.expression, found.average_value) == ("load", "hits + jobs", 5000)
    assert [(name, each.type, each.query, each.name, each.selector) for name, each in found.inputs] == [
        ("hits", "Prometheus", "sum(hits)", "hits", ""),
        ("jobs", "External", "", "queue_length", "a=b"),
    ]
    assert found.identity == {"name": "load"}
    changed = {**body, "inputs": [inputs[0], {"name": "jobs", "prometheus": {"query": "sum(jobs)"}}]}
    assert MetricSpec.from_raw({"type": "Formula", "formula": changed}).target_key != found.target_key
