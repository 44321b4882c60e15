from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.conditions import Condition
from concerto.api.nodecapacity import AgentInfo, NodeCapacityStatus, ResourceStatus, Window
from concerto.api.subspacesnapshot import SubspaceStatus
from concerto.capacity.kinds.sums import KindSums
from concerto.capacity.node_status import (
    Health,
    Problem,
    StatusContext,
    build_conditions,
    build_status,
    build_subspace,
)
from concerto.capacity.pipeline import NodePipeline
from concerto.capacity.publish_rule import (
    Published,
    PublishedSubspace,
    PublishSettings,
    capacity_moved,
    should_publish,
    should_publish_kinds,
    should_publish_subspace,
)

CRDS = Path(__file__).resolve().parents[2] / "crds"
SETTINGS = PublishSettings()
AGENT = AgentInfo("0.1.0", "abc123", "Machine", "Inotify")
WALL = 1_800_000_000.0
FACTS = {
    "batches": 10,
    "fresh": True,
    "silent_seconds": 0.0,
    "problems": (),
    "pods_known": True,
    "another": None,
    "refused_spec": None,
}
FINE = build_conditions(Health(**FACTS))


@cache
def validator(file: str) -> jsonschema.Draft202012Validator:
    crd = yaml.safe_load((CRDS / file).read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return jsonschema.Draft202012Validator(schema)


def conditions(**said: str) -> tuple[dict, ...]:
    """Conditions of an agent that measures, except for what is said."""
    reasons = {"Ready": "True/Measured", "TelemetryComplete": "True/Complete", "Stalled": "False/AsExpected"} | said
    return tuple(
        {"type": kind, "status": value.split("/")[0], "reason": value.split("/")[1], "message": "m"}
        for kind, value in reasons.items()
    )


OLD = NodeCapacityStatus(
    observed_at=WALL,
    observed_generation=1,
    agent=AGENT,
    capacity=5.0,
    capacity_mode="Quiet",
    signal=10.0,
    baseline=12.0,
    per_pod_cost=1.0,
    pod_count=2,
    young_pods=0,
    observed_pod_uids=("a", "b"),
    settle_time_seconds=1.0,
    resources=(ResourceStatus("cpu", 0.5, 0.1, 0.1), ResourceStatus("memory", 0.3, 0.1, 0.1)),
    windows=(Window("cpu", "5m", 0.5, 0.1, 0.5, 300),),
    conditions=conditions(),
)
PUBLISHED = Published(OLD, measured_at=99.9, at=100.0, due=130.0)


def later(**changes) -> NodeCapacityStatus:
    return replace(OLD, **{"observed_at": WALL + 2, **changes})


DECISIONS = {
    "nothing was published": (None, later(), 102.0, "First"),
    "nothing has changed": (PUBLISHED, later(), 102.0, None),
    "the heartbeat is due": (PUBLISHED, later(), 130.0, "Heartbeat"),
    "the heartbeat is due, and the wall clock was set back": (PUBLISHED, later(observed_at=1.0), 130.0, "Heartbeat"),
    "a pod was observed": (PUBLISHED, later(observed_pod_uids=("a", "b", "c"), pod_count=3), 102.0, "Pods"),
    "a pod has ended": (PUBLISHED, later(observed_pod_uids=("a",), pod_count=1), 102.0, "Pods"),
    "as many pods, but others": (PUBLISHED, later(observed_pod_uids=("a", "c")), 102.0, "Pods"),
    "the same pods in another order": (PUBLISHED, later(observed_pod_uids=("b", "a")), 102.0, None),
    "a pod was observed, less than a second after the last write": (
        PUBLISHED,
        later(observed_pod_uids=("a", "b", "c"), pod_count=3),
        100.9,
        None,
    ),
    "capacity within the deadband": (PUBLISHED, later(capacity=5.4), 102.0, None),
    "capacity beyond the deadband": (PUBLISHED, later(capacity=5.6), 102.0, "Capacity"),
    "capacity is gone": (PUBLISHED, later(capacity=0.0), 102.0, "Capacity"),
    "CPUs within the deadband have come free": (PUBLISHED, later(spare_share=0.91), 102.0, None),
    "CPUs beyond the deadband are taken": (PUBLISHED, later(spare_share=0.89), 102.0, "Capacity"),
    "a pod was named as large": (PUBLISHED, later(large_pods={"a": 0.9}), 102.0, "Pods"),
    "usage within the deadband": (
        PUBLISHED,
        later(resources=(ResourceStatus("cpu", 0.54, 0.1, 0.1), ResourceStatus("memory", 0.3, 0.1, 0.1))),
        102.0,
        None,
    ),
    "usage beyond the deadband": (
        PUBLISHED,
        later(resources=(ResourceStatus("cpu", 0.56, 0.1, 0.1), ResourceStatus("memory", 0.3, 0.1, 0.1))),
        102.0,
        "Usage",
    ),
    "a resource that is no longer measured": (
        PUBLISHED,
        later(resources=(ResourceStatus("cpu", 0.5, 0.1, 0.1),)),
        102.0,
        "Usage",
    ),
    "a window's mean beyond the deadband": (
        PUBLISHED,
        later(windows=(Window("cpu", "5m", 0.44, 0.1, 0.5, 300),)),
        102.0,
        "Usage",
    ),
    "only what people read has moved": (PUBLISHED, later(signal=20.0, baseline=30.0, per_pod_cost=2.0), 102.0, None),
    "a condition has changed": (PUBLISHED, later(conditions=conditions(Ready="False/Warmup")), 102.0, "Conditions"),
    "a condition's reason has changed": (
        PUBLISHED,
        later(conditions=conditions(TelemetryComplete="True/Other")),
        102.0,
        "Conditions",
    ),
    "the spec in use is another": (PUBLISHED, later(observed_generation=2), 102.0, "Conditions"),
    "pod events fell back to scans": (PUBLISHED, later(agent=replace(AGENT, pod_events="Scan")), 102.0, "Conditions"),
}


@pytest.mark.parametrize(("old", "new", "now", "expected"), DECISIONS.values(), ids=DECISIONS.keys())
def test_when_a_status_is_worth_a_write(old, new, now, expected):
    assert should_publish(old, new, now, SETTINGS, now) == expected


def test_what_was_not_measured_since_is_published_for_its_conditions_only():
    unmeasured = replace(OLD, capacity=0.0, observed_pod_uids=())
    assert should_publish(PUBLISHED, unmeasured, PUBLISHED.measured_at, SETTINGS, 500.0) is None
    said = replace(unmeasured, conditions=conditions(Ready="False/NotMeasured"))
    assert should_publish(PUBLISHED, said, PUBLISHED.measured_at, SETTINGS, 500.0) == "Conditions"


POSITIVE = st.floats(0, 1000)


@given(POSITIVE, st.floats(-0.999, 0.999))
def test_noise_within_a_tenth_of_the_capacity_is_never_published(capacity, noise):
    moved = capacity + noise * max(SETTINGS.capacity_share * capacity, SETTINGS.capacity_pods)
    assert not capacity_moved(capacity, moved, SETTINGS)


@given(POSITIVE, POSITIVE)
def test_whether_one_more_pod_fits_is_reported_unless_it_is_a_hair(old, new):
    if (old < 1) != (new < 1) and abs(old - new) > 0.11 * max(old, 1):
        assert capacity_moved(old, new, SETTINGS)


@given(st.lists(st.floats(0, 20), min_size=1, max_size=200))
def test_the_published_capacity_never_strays_from_the_measured_one_beyond_the_deadband(capacities):
    published = None
    for second, capacity in enumerate(capacities):
        new = replace(OLD, capacity=capacity, observed_at=WALL + second)
        if should_publish(published, new, float(second), SETTINGS, float(second)):
            published = Published(new, float(second), float(second), float(second) + 30)
        assert abs(published.status.capacity - capacity) < max(0.1, 0.1 * published.status.capacity)


def model(
    sigma: float = 0.5, angle: float = 0.0, at: float = WALL + 10, ready: str = "True/Measured"
) -> SubspaceStatus:
    first, second = (math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))
    return SubspaceStatus(
        at, 1, ("cpu", "memory"), (sigma, 0.01), (first, second), 20, conditions=conditions(Ready=ready)
    )


MODEL = PublishedSubspace(model(at=WALL), at=100.0)
MODEL_DECISIONS = {
    "nothing was published": (None, model(), 100.0, True),
    "nothing has changed": (MODEL, model(), 110.0, False),
    "five minutes have gone by": (MODEL, model(), 400.0, True),
    "it has grown": (MODEL, model(sigma=0.56), 110.0, True),
    "it has grown, but the last write is too near": (MODEL, model(sigma=0.9), 104.0, False),
    "it has grown a little": (MODEL, model(sigma=0.54), 110.0, False),
    "it has turned": (MODEL, model(angle=0.2), 110.0, True),
    "it has turned a little": (MODEL, model(angle=0.05), 110.0, False),
    "other resources": (MODEL, replace(model(), resources=("cpu", "io")), 110.0, True),
    "it has become ready": (
        PublishedSubspace(model(at=WALL, ready="False/Warmup"), at=100.0),
        model(),
        110.0,
        True,
    ),
}


@pytest.mark.parametrize(("old", "new", "now", "expected"), MODEL_DECISIONS.values(), ids=MODEL_DECISIONS.keys())
def test_when_a_model_is_worth_a_write(old, new, now, expected):
    assert should_publish_subspace(old, new, SETTINGS, now) is expected


def measured(
    rows: list[list[float]], resources: tuple[str, ...] = ("cpu", "memory"), pods: int = 0, non_pod: float = math.nan
) -> tuple[NodePipeline, CapacitySettings]:
    """A pipeline that has seen each of the rows for a second."""
    settings = CapacitySettings(resources=resources)
    pipeline = NodePipeline(settings, 1)
    for _ in range(pods):
        pipeline.pod_started(0, 0.0)
    now = 100.0
    for row in rows:
        for _ in range(settings.batch_samples):
            pipeline.sample(now, np.array([row]), non_pod=np.full((1, len(row)), non_pod))
            now += 0.1
        if row is not rows[-1]:
            pipeline.fold(now)
    return pipeline, settings


def built(pipeline: NodePipeline, settings: CapacitySettings, **changes) -> NodeCapacityStatus:
    now = 100.0 + 10
    report = pipeline.fold(now)
    context = context_of(int(report.pods[0]), observed_generation=3)
    return build_status(report, 0, settings, replace(context, **changes), pipeline.windows(now))


def context_of(pods: int, observed_generation: int = 1) -> StatusContext:
    uids = tuple(f"uid-{i}" for i in range(pods))
    return StatusContext(AGENT, uids, WALL, observed_generation, WALL, FINE)


CASES = {
    "idle": ([[0.0, 0.0]] * 4, 0, 0.0),
    "busy": ([[0.9, 0.5]] * 4, 3, 0.1),
    "full": ([[1.0, 1.0]] * 4, 10, 0.3),
    "the first batch": ([[0.5, 0.5]], 0, 0.5),
    "non-pod usage that is unknown": ([[0.5, 0.5]] * 4, 1, math.nan),
    "one resource lost": ([[0.5, 0.5], [0.5, math.nan]], 1, 0.1),
    "one resource never measured": ([[0.5, math.nan]] * 4, 1, 0.1),
    "readings that are no fractions": ([[0.5, 0.5], [-1.0, 7.0], [0.5, 0.5]], 1, 0.1),
}


@pytest.mark.parametrize(("rows", "pods", "non_pod"), CASES.values(), ids=CASES.keys())
def test_a_status_conforms_to_the_crd(rows, pods, non_pod):
    pipeline, settings = measured(rows, pods=pods, non_pod=non_pod)
    raw = built(pipeline, settings).to_raw()
    validator("nodecapacities.yaml").validate(raw)
    assert NodeCapacityStatus.from_raw(raw).to_raw() == raw
    assert raw["podCount"] == len(raw["observedPodUIDs"]) == pods


@given(
    st.lists(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan)), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(0, 300),
)
def test_any_measurement_conforms_to_the_crd(rows, pods):
    pipeline, settings = measured(rows, resources=("cpu", "memory", "io"), pods=pods)
    report = pipeline.fold(200.0)
    if report.fresh[0]:
        status = build_status(report, 0, settings, context_of(pods), pipeline.windows(200.0))
        validator("nodecapacities.yaml").validate(status.to_raw())
        model = build_subspace(report, 0, settings, context_of(0))
        validator("subspacesnapshots.yaml").validate(model.to_raw())


def test_a_resource_without_a_valid_sample_is_left_out():
    pipeline, settings = measured([[0.5, 0.4], [0.5, math.nan]])
    status = built(pipeline, settings)
    assert [r.name for r in status.resources] == ["cpu"]
    assert {w.resource for w in status.windows} == {"cpu"}


def test_a_resource_that_was_never_measured_is_not_in_the_model():
    pipeline, settings = measured([[0.5, math.nan, 0.2]] * 4, resources=("cpu", "network", "memory"))
    report = pipeline.fold(110.0)
    model = build_subspace(report, 0, settings, context_of(0))
    assert model.resources == ("cpu", "memory")
    assert model.sigma[0] == pytest.approx(math.hypot(0.5, 0.2))
    assert model.directions[0] == pytest.approx((0.5 / math.hypot(0.5, 0.2), 0.2 / math.hypot(0.5, 0.2)))


def test_the_pods_listed_must_be_the_pods_counted():
    pipeline, settings = measured([[0.5, 0.4]], pods=2)
    with pytest.raises(ValueError, match="1 UIDs for 2 pods"):
        built(pipeline, settings, pod_uids=("a",))


def test_nothing_is_built_of_nothing():
    pipeline, settings = measured([[math.nan, math.nan]])
    with pytest.raises(ValueError, match="no valid sample"):
        built(pipeline, settings)


def test_a_condition_that_has_not_changed_keeps_its_time():
    pipeline, settings = measured([[0.5, 0.4]] * 4)
    before = [
        {"type": "Ready", "status": "True", "reason": "Measured", "message": "", "lastTransitionTime": "then"},
        {"type": "Stalled", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "then"},
    ]
    times = {c["type"]: c["lastTransitionTime"] for c in built(pipeline, settings, before=before).conditions}
    assert times["Ready"] == "then"
    assert times["Stalled"] != "then"


NO_PRESSURE = Problem("NoPressure", "No pressure.")
NO_GAUGE = Problem("InvalidGauge", "No gauge.", "gpu")

SAID = {
    "all is well": (
        {},
        {"Ready": "True/Measured", "TelemetryComplete": "True/Complete", "Stalled": "False/AsExpected"},
    ),
    "the first batches": ({"batches": 2}, {"Ready": "False/Warmup", "Reconciling": "True/Warmup"}),
    "warm again": ({"batches": 3}, {"Ready": "True/Measured", "Reconciling": "False/Settled"}),
    "no pressure": ({"problems": [NO_PRESSURE]}, {"TelemetryComplete": "False/NoPressure", "Ready": "True/Measured"}),
    "the gravest problem is the reason": (
        {"problems": [NO_PRESSURE, NO_GAUGE]},
        {"TelemetryComplete": "False/InvalidGauge"},
    ),
    "nothing could be measured": (
        {"fresh": False, "silent_seconds": 12.0},
        {"Ready": "False/NotMeasured", "Stalled": "True/NotMeasured", "Reconciling": "False/Settled"},
    ),
    "a spec of a later version": (
        {"refused_spec": "'1 fortnight' is not a duration"},
        {"Stalled": "True/InvalidSpec", "Ready": "True/Measured"},
    ),
    "the node's pods can't be listed": (
        {"pods_known": False},
        {"Ready": "False/PodsUnknown", "Stalled": "True/PodsUnknown"},
    ),
    "another agent": ({"another": "def456"}, {"Stalled": "True/AnotherAgent", "Ready": "True/Measured"}),
}


@pytest.mark.parametrize(("facts", "expected"), SAID.values(), ids=SAID.keys())
def test_what_the_conditions_say(facts, expected):
    found = {c.type: f"{c.status}/{c.reason}" for c in build_conditions(Health(**{**FACTS, **facts}))}
    assert expected.items() <= found.items()
    assert set(found) == {"Ready", "TelemetryComplete", "Reconciling", "Stalled"}


def test_a_message_shows_every_problem_once():
    reported = build_conditions(Health(**{**FACTS, "problems": [NO_PRESSURE, NO_GAUGE, NO_PRESSURE]}))
    assert Condition("TelemetryComplete", "False", "InvalidGauge", "No gauge. No pressure.") in reported


BY_KIND = SETTINGS.by_kind()
LATER = {"observed_pod_uids": ("a", "b", "c"), "capacity": 1.0}


@pytest.mark.parametrize(
    ("changes", "settings", "seconds", "reason"),
    [
        (LATER, SETTINGS, 1.0, "Pods"),
        (LATER, BY_KIND, 1.0, None),
        (LATER, BY_KIND, 9.9, None),
        (LATER, BY_KIND, 10.0, "Pods"),
        ({"conditions": conditions(Ready="False/NotMeasured")}, BY_KIND, 1.0, "Conditions"),
        ({"observed_generation": 9}, BY_KIND, 1.0, "Conditions"),
        ({"system_cpu": 0.13}, BY_KIND, 1.0, "Usage"),
        ({"system_cpu": 0.13}, BY_KIND, 0.9, None),
        ({"pods_wanting": 1.7}, BY_KIND, 10.0, "Usage"),
        ({"pods_wanting": 1.7}, BY_KIND, 9.9, None),
        ({"pods_wanting": 1.6}, BY_KIND, 10.0, None),
        ({"pods_wanting": None}, BY_KIND, 10.0, "Usage"),
        ({"resources": (OLD.resources[0], ResourceStatus("memory", 0.3, 0.1, 0.1, 0.25))}, BY_KIND, 1.0, "Usage"),
    ],
)
def test_where_pods_are_placed_by_kind_pods_and_units_wait(changes, settings, seconds, reason):
    before = replace(OLD, system_cpu=0.02, pods_wanting=1.45)
    old = Published(before, 0.0, 0.0, 30.0)
    assert should_publish(old, replace(before, **changes), seconds, settings, seconds) == reason


def test_a_short_heartbeat_does_not_wait_either():
    old = Published(OLD, 0.0, 0.0, 2.0)
    assert should_publish(old, OLD, 2.0, BY_KIND, 2.0) == "Heartbeat"


def kinds_table(**sums: float):
    return {"a": KindSums(**{"ended": 0.0, "running": 1.0, **sums})}


KINDS = {
    "a kind that was not known": ({}, kinds_table(), 1.0, True),
    "its first pod has ended": (kinds_table(), kinds_table(ended=1.0, held=4.0), 1.0, True),
    "one that runs has shown more, and is young": (
        kinds_table(running_work=1.0, running_held=2.0, max_running_held=2.0),
        kinds_table(running_work=5.0, running_held=7.0, max_running_held=7.0),
        5.0,
        True,
    ),
    "the same once it has run for long": (
        kinds_table(running_work=1.0, running_held=60.0, max_running_held=60.0),
        kinds_table(running_work=5.0, running_held=65.0, max_running_held=65.0),
        19.9,
        False,
    ),
    "and later": (
        kinds_table(running_work=1.0, running_held=60.0, max_running_held=60.0),
        kinds_table(running_work=5.0, running_held=65.0, max_running_held=65.0),
        20.0,
        True,
    ),
    "nothing has changed": (kinds_table(ended=1.0, held=4.0), kinds_table(ended=1.0, held=4.0), 100.0, False),
}


@pytest.mark.parametrize(("before", "after", "seconds", "worth"), KINDS.values(), ids=KINDS)
def test_what_is_learned_of_kinds_that_are_known_waits(before, after, seconds, worth):
    assert should_publish_kinds(before, after, BY_KIND, seconds) is worth
