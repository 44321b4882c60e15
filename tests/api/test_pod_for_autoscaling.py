import pytest

from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod, trim_target_pod
from concerto.api.timestamps import parse_timestamp

CREATED, STARTED, READY = "2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z", "2026-03-01T12:00:30Z"
RAW = {
    "metadata": {
        "namespace": "n",
        "name": "p",
        "uid": "u",
        "creationTimestamp": CREATED,
        "labels": {"pod-template-hash": "abc"},
        "annotations": {"big": "x" * 1000},
    },
    "spec": {
        "schedulerName": "concerto",
        "containers": [
            {"name": "a", "image": "i", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}, "env": []}
        ],
        "initContainers": [
            {"name": "once", "resources": {"requests": {"cpu": "9"}}},
            {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}},
        ],
    },
    "status": {
        "phase": "Running",
        "startTime": STARTED,
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": READY},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED},
        ],
    },
}


def test_a_pod_is_read_the_same_before_and_after_trimming():
    view = PodView.from_raw(RAW)
    assert PodView.from_raw(trim_pod(RAW)) == view
    target = PodView.from_raw(trim_target_pod(RAW))
    for field in (
        "name",
        "uid",
        "labels",
        "phase",
        "ready",
        "ready_since",
        "scheduled_at",
        "started",
        "created",
        "host",
    ):
        assert getattr(target, field) == getattr(view, field), field
    assert target.shape.containers == view.shape.containers
    assert (view.name, view.phase, view.ready, view.revision) == ("p", "Running", "True", "abc")
    assert view.scheduler_name == "concerto"
    assert view.ready_since - view.created == 30
    assert view.bound_at == parse_timestamp(STARTED)
    assert view.started == parse_timestamp(STARTED)


def test_restartable_init_containers_count_and_others_do_not():
    assert [(c.name, c.requests) for c in PodView.from_raw(RAW).shape.containers] == [
        ("a", {"cpu": 100}),
        ("side", {"cpu": 50}),
    ]
    assert PodView.from_raw(RAW).shape.containers[0].limits == {"cpu": 1000}


def test_pod_level_requests_and_overhead():
    spec = RAW["spec"] | {"resources": {"requests": {"cpu": "1"}}, "overhead": {"cpu": "10m"}}
    assert PodView.from_raw(RAW | {"spec": spec}).shape.pod_level_requests == {"cpu": 1010}
    assert PodView.from_raw(RAW).shape.pod_level_requests is None


def test_of_a_pod_with_requests_of_its_own_an_init_container_counts_for_the_other_resources():
    """As kube-controller-manager adds them up: else memory utilisation is a multiple of what HPA v2 sees."""
    spec = {
        "resources": {"requests": {"cpu": "1"}},
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"memory": "100M"}}},
            {"name": "migrate", "resources": {"requests": {"memory": "900M"}}},
        ],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "200M"}}}],
        "overhead": {"memory": "1M"},
    }
    found = PodView.from_raw(RAW | {"spec": spec}).shape.pod_level_requests
    assert found == {"cpu": 1000, "memory": 1001 * 10**9}


def test_a_pod_that_nobody_has_seen_yet_is_pending():
    view = PodView.from_raw(
        {
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "creationTimestamp": CREATED},
            "spec": {"containers": []},
        }
    )
    assert (view.phase, view.ready, view.started) == ("Pending", None, None)


def target(spec, status):
    return PodView.from_raw(
        trim_target_pod({**RAW, "spec": RAW["spec"] | spec, "status": RAW["status"] | status})
    ).shape


ENFORCED = {
    "the status reports nothing": ({}, {"cpu": 1000}),
    "the resize is not carried out": ({"resources": {"limits": {"cpu": "500m"}}}, {"cpu": 500}),
    "the limit is new and not enforced yet": ({"resources": {"requests": {"cpu": "100m"}}}, {}),
    "only what was allocated is reported": ({"allocatedResources": {"cpu": "100m"}}, {"cpu": 1000}),
}


@pytest.mark.parametrize(("reported", "limits"), ENFORCED.values(), ids=ENFORCED)
def test_limits_are_those_that_the_node_enforces_and_requests_those_of_the_spec(reported, limits):
    shape = target({}, {"containerStatuses": [{"name": "a", **reported}]})
    assert shape.containers[0].limits == limits
    assert shape.containers[0].requests == {"cpu": 100}


def test_the_limit_of_a_pod_as_a_whole_is_the_enforced_one_too():
    spec = {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}
    assert target(spec, {}).pod_level_limits == {"cpu": 2000}
    assert target(spec, {"resources": {"limits": {"cpu": "1"}}}).pod_level_limits == {"cpu": 1000}
    assert target({}, {}).pod_level_limits == {}
