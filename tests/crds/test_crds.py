import copy
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.conditions import Condition, merge_conditions
from concerto.api.nodecapacity import AgentInfo, NodeCapacity, NodeCapacityStatus, ResourceStatus, Window
from concerto.api.podreservation import Assignment, AssignmentCost, build_placement_record
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.subspacesnapshot import SubspaceSnapshot, SubspaceStatus
from concerto.capacity.cpu_demand import DEMAND_SOURCES
from concerto.scheduling.plugins.registry import FILTERS, SCORES
from support.crd_schemas import CRDS, REPOSITORY, documents, fields, problems, stored_spec, structural_schema

KINDS = sorted(CRDS)
SAMPLES = [
    pytest.param(obj, id=f"{path.name}:{obj['metadata']['name']}")
    for folder in ("tests/crds/samples", "tests/crds/earlier", "manifests/samples", "manifests/base")
    for path in sorted((REPOSITORY / folder).glob("*.yaml"))
    for obj in documents(path)
    if obj["kind"] in CRDS
]


def test_there_are_seven_kinds():
    assert set(KINDS) == {
        "NodeCapacity", "SubspaceSnapshot", "PodReservation", "NodeCPUTopology", "PodCPUBinding", "PredictiveHPA",
        "SchedulingProfile",
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_kubectl_explain_says_something_about_every_field(kind):
    mute = [path for path, schema in fields(structural_schema(kind)) if not schema.get("description")]
    assert mute == ["metadata"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_found_and_shown_in_the_same_way(kind):
    spec = CRDS[kind]["spec"]
    assert spec["names"]["categories"] == ["concerto"]
    assert len(spec["names"]["shortNames"]) == 1
    (version,) = spec["versions"]
    assert version["subresources"] == {"status": {}}
    columns = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    shown = [column["name"] for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert shown[-3:] == ["Ready", "Reason", "Age"]
    assert list(columns)[: len(shown)] == shown, "-o wide adds columns on the right, as for pods"
    assert columns["Age"] == ".metadata.creationTimestamp"
    for name, field in {"Ready": "status", "Reason": "reason", "Message": "message"}.items():
        assert columns[name] == f'.status.conditions[?(@.type=="Ready")].{field}'
    status = structural_schema(kind)["properties"]["status"]["properties"]
    assert status["observedGeneration"]["type"] == "integer"
    assert status["conditions"]["x-kubernetes-list-type"] == "map"
    assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_pattern_refuses_a_sentence_explains(kind):
    # assignments are the operator's own, and of what has no type (a number or a string) there can be no rules
    mute = [
        path
        for path, schema in fields(structural_schema(kind))
        if "pattern" in schema
        and not schema.keys() & {"x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields"}
        if path.startswith("spec") and not path.startswith("spec.assignments")
    ]
    assert mute == []


@pytest.mark.parametrize("kind", KINDS)
def test_lists_and_strings_are_bounded_so_that_the_cost_of_rules_is(kind):
    loose = [
        path
        for path, schema in fields(structural_schema(kind))
        if (schema.get("type") == "array" and "maxItems" not in schema)
        or (isinstance(schema.get("additionalProperties"), dict) and "maxProperties" not in schema)
        or (
            schema.get("type") == "string"
            and not schema.keys() & {"maxLength", "enum", "format"}
            and path.startswith(("spec", "status"))
        )
    ]
    assert loose == []


def _rules():
    for kind in KINDS:
        schema = structural_schema(kind)
        for path, member in [("", schema), *fields(schema)]:
            for rule in member.get("x-kubernetes-validations", []):
                yield pytest.param(path, rule, id=f"{kind}:{path}:{rule['rule'][:30]}")


@pytest.mark.parametrize(("path", "rule"), list(_rules()))
def test_the_message_of_a_rule_names_a_field(path, rule):
    section = "status." if path.startswith("status") else "spec."
    assert section in rule["message"]


@pytest.mark.parametrize("obj", SAMPLES)
def test_a_sample_fits_its_schema(obj):
    assert problems(obj) == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_sample_with_a_status(kind):
    assert any("status" in sample.values[0] for sample in SAMPLES if sample.values[0]["kind"] == kind)


@pytest.mark.parametrize("obj", SAMPLES)
def test_a_sample_still_fits_once_the_defaults_are_filled_in(obj):
    stored = {**copy.deepcopy(obj), "spec": stored_spec(obj["kind"], obj.get("spec", {}))}
    assert problems(stored) == []


# --- defaults, and that no field is accepted and then ignored


def test_an_empty_node_capacity_and_settings_made_without_one_are_the_same():
    assert CapacitySettings.from_raw(stored_spec("NodeCapacity", {})) == CapacitySettings()
    assert CapacitySettings.from_raw({}) == CapacitySettings()


def test_a_profile_with_nothing_but_a_name_and_settings_made_without_one_are_the_same():
    least = {"schedulerName": "x"}
    assert ProfileSettings.from_raw(stored_spec("SchedulingProfile", least)) == ProfileSettings("x")
    assert ProfileSettings.from_raw(least) == ProfileSettings("x")


def test_every_plugin_that_a_profile_may_name_exists_and_the_other_way_round():
    spec = structural_schema("SchedulingProfile")["properties"]["spec"]["properties"]
    assert spec["filters"]["items"]["properties"]["name"]["enum"] == list(FILTERS)
    assert spec["scores"]["items"]["properties"]["name"]["enum"] == list(SCORES)


def _leaves(value, path=()):
    if isinstance(value, Mapping):
        for key, member in value.items():
            yield from _leaves(member, (*path, key))
    else:
        yield path


def _without(spec, path):
    spec = copy.deepcopy(spec)
    parent = spec
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return spec


def _sample(kind, name):
    return next(s.values[0] for s in SAMPLES if (s.values[0]["kind"], s.values[0]["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize(
    ("kind", "name", "read"),
    [
        ("NodeCapacity", "tuned", CapacitySettings.from_raw),
        ("SchedulingProfile", "careful", ProfileSettings.from_raw),
    ],
)
def test_every_field_of_a_spec_is_read(kind, name, read):
    spec = _sample(kind, name)["spec"]
    # What is inside a score or a provider is the matter of tests/api/test_schedulingprofile.py
    named = {
        path.replace("[]", "")
        for path, _ in fields(structural_schema(kind)["properties"]["spec"])
        if not path.startswith(("scores[]", "metricProvider")) and not re.match(r"addedAffinity\.\w+\[]", path)
    }
    assert {".".join(path) for path in _leaves(spec)} >= {
        path for path in named if not any(other.startswith(f"{path}.") for other in named)
    } - {"gauges.name", "gauges.path", "filters.name"}
    for path in _leaves(spec):
        if path not in {("resources",), ("schedulerName",)}:
            assert read(_without(spec, path)) != read(spec), f"spec.{'.'.join(path)} is not read"


# --- what our code writes

finite = st.floats(0, 1e6, allow_nan=False)
share = st.floats(0, 1, allow_nan=False)
names = st.from_regex(r"[a-z]([a-z0-9]{0,10}[a-z0-9])?", fullmatch=True)
conditions = st.lists(
    st.builds(
        Condition,
        type=st.sampled_from(["Ready", "TelemetryComplete", "Reconciling", "Stalled"]),
        status=st.sampled_from(["True", "False", "Unknown"]),
        reason=st.sampled_from(["Warmup", "Measured"]),
        message=st.text(max_size=40),
    ),
    max_size=4,
).map(lambda new: tuple(merge_conditions([], new, now="2026-03-01T12:00:00Z", observed_generation=1)))
# whole microseconds, as finer ones are not written
moments = st.integers(1_700_000_000_000_000, 2_000_000_000_000_000).map(lambda microseconds: microseconds / 1e6)

node_statuses = st.builds(
    NodeCapacityStatus,
    observed_at=moments,
    observed_generation=st.integers(0, 2**40),
    agent=st.builds(
        AgentInfo,
        version=names,
        instance=names,
        mode=st.sampled_from(["Machine", "Cgroup"]),
        pod_events=st.sampled_from(["Inotify", "Scan"]),
    ),
    capacity=st.floats(-1024, 1024),
    capacity_mode=st.sampled_from(["Quiet", "Slots", "Warmup"]),
    signal=finite,
    baseline=finite,
    per_pod_cost=finite,
    room=st.none() | st.floats(-1024, 1024),
    pod_count=st.integers(0, 500),
    young_pods=st.integers(0, 500),
    observed_pod_uids=st.lists(st.uuids().map(str), max_size=5).map(tuple),
    settle_time_seconds=st.floats(0, 3600),
    reject=st.booleans(),
    over_provision=st.floats(0, 1024),
    demand=st.floats(0, 1000),
    demand_source=st.sampled_from(DEMAND_SOURCES),
    pods_wanting=st.none() | st.floats(0, 1000),
    cpu_used=st.none() | share,
    resources=st.lists(
        st.builds(ResourceStatus, name=names, usage=share, base=share, cost=share, non_pod=st.none() | share),
        max_size=8,
    ).map(tuple),
    windows=st.lists(
        st.builds(
            Window,
            resource=names,
            window=st.sampled_from(["5m", "10m", "15m"]),
            average=share,
            standard_deviation=share,
            latest=share,
            covered_seconds=st.integers(0, 900),
        ),
        max_size=24,
    ).map(tuple),
    conditions=conditions,
)


IMPLAUSIBLE = {
    "more pods than any kubelet takes": {"capacity": 1e70},
    "more room than any kubelet takes": {"room": 2000},
    "an immense overload": {"capacity": -1e9},
    "more pods than a status lists": {"podCount": 5000},
    "a pod that costs more than the node": {"resources": [{"name": "cpu", "usage": 0.5, "cost": 3}]},
    "a load that takes a day to show": {"settleTimeSeconds": 86400},
}


@pytest.mark.parametrize("change", IMPLAUSIBLE.values(), ids=IMPLAUSIBLE)
def test_a_number_that_no_node_can_mean_is_refused(change):
    agent = {"version": "1", "instance": "i", "mode": "Machine", "podEvents": "Inotify"}
    status = {
        "observedAt": "2026-03-01T12:00:00Z", "agent": agent, "capacity": 3, "capacityMode": "Quiet", "signal": 1,
        "baseline": 2, "perPodCost": 0.5, "podCount": 0, "youngPods": 0, "observedPodUIDs": [], "settleTimeSeconds": 1,
    }  # fmt: skip
    obj = {"apiVersion": "concerto.dev/v1alpha1", "kind": "NodeCapacity", "metadata": {"name": "n"}, "spec": {}}
    assert problems(obj | {"status": status}) == []
    assert problems(obj | {"status": status | change}) != []


@given(node_statuses)
def test_a_node_status_that_we_write_fits_and_reads_back_the_same(status):
    obj = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "NodeCapacity",
        "metadata": {"name": "n"},
        "spec": {},
        "status": status.to_raw(),
    }
    assert problems(obj) == []
    assert NodeCapacity.from_raw(obj).status == status


@st.composite
def _models(draw):
    m = draw(st.integers(1, 8))
    r = draw(st.integers(1, m))
    unit = st.floats(-1, 1, allow_nan=False)
    return SubspaceStatus(
        observed_at=draw(moments),
        observed_generation=draw(st.integers(0, 9)),
        resources=tuple(draw(st.lists(names, min_size=m, max_size=m))),
        sigma=tuple(sorted(draw(st.lists(st.floats(0, 10), min_size=r, max_size=r)), reverse=True)),
        directions=tuple(tuple(draw(st.lists(unit, min_size=m, max_size=m))) for _ in range(r)),
        batches=draw(st.integers(0, 2**40)),
        nodes=draw(st.none() | st.integers(0, 5000)),
        conditions=draw(conditions),
    )


@given(_models())
def test_a_model_that_we_write_fits_and_reads_back_the_same(status):
    obj = {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SubspaceSnapshot",
        "metadata": {"name": "n"},
        "status": status.to_raw(),
    }
    assert problems(obj) == []
    assert SubspaceSnapshot.from_raw(obj).status == status


def test_an_object_that_no_agent_has_written_has_no_status():
    obj = {"metadata": {"name": "n", "generation": 2}, "status": {"conditions": []}}
    assert NodeCapacity.from_raw(obj).status is None
    assert SubspaceSnapshot.from_raw(obj).status is None
    assert NodeCapacity.from_raw(obj).settings == CapacitySettings()


@given(
    st.lists(
        st.builds(
            Assignment,
            namespace=names,
            name=names,
            uid=st.uuids().map(str),
            node=names,
            basis=st.sampled_from(["Capacity", "Requests"]),
            node_capacity_resource_version=st.integers(1, 2**50).map(str),
            # a capacity as published less many small units leaves the smallest of residues
            available=st.builds(lambda a, b: a / 1e4 - b * 0.1, st.integers(0, 5_000_000), st.integers(0, 5_000)),
            reservation=st.none() | st.tuples(names, names),
            cost=st.none()
            | st.builds(
                AssignmentCost,
                cpu_millicores=st.integers(0, 1_024_000),
                cpu_seconds=st.none() | st.floats(0.0, 1e6).map(lambda seconds: round(seconds, 3)),
                memory_bytes=st.integers(0, 2**50),
                known_from=st.sampled_from(["Ended", "Running", "Guess"]),
                head_room=st.floats(1.0, 2.0),
                cpu_left_millicores=st.integers(-(10**7), 10**7),
                memory_left_bytes=st.integers(-(2**50), 2**50),
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_batch_that_we_write_fits_and_reads_back_the_same(assignments):
    batch = build_placement_record("concerto-system", "cycle-x-1", assignments)
    assert problems(batch) == []
    assert [Assignment.from_raw(raw) for raw in batch["spec"]["assignments"]] == assignments
