import pytest

from concerto.api.pod_requests import ContainerResources
from concerto.autoscaling.pods import MetricError, Sample, group_pods, requests_of, serving
from concerto.autoscaling.settings import ControllerSettings
from support.pod_views import target_pod

NOW = 10_000.0
SETTINGS = ControllerSettings()
FRESH = Sample(100, timestamp=NOW, window=30)


def started(seconds_ago, **kw):
    return target_pod("p", started=NOW - seconds_ago, **kw)


GROUPS = {
    "a pod being deleted is ignored, even if it is ready": (started(900, deleting=True), FRESH, True, "ignored"),
    "a failed pod is ignored": (started(900, phase="Failed"), FRESH, True, "ignored"),
    "a pod that has Succeeded is over, and not missing": (started(900, phase="Succeeded"), None, True, "ignored"),
    "a deleted pending pod is ignored: the first match wins": (
        started(1, phase="Pending", deleting=True),
        None,
        True,
        "ignored",
    ),
    "a pending pod is unready, not missing, though it has no sample": (
        started(1, phase="Pending"),
        None,
        True,
        "unready",
    ),
    "a running pod without a sample is missing": (started(900), None, True, "missing"),
    "for CPU, a pod without a Ready condition is unready": (started(900, ready=None), FRESH, True, "unready"),
    "for CPU, a pod without a start time is unready": (target_pod("p", started=None), FRESH, True, "unready"),
    "for CPU, a young pod that is not Ready is unready": (
        started(60, ready="False", ready_since=NOW - 60),
        FRESH,
        True,
        "unready",
    ),
    "for CPU, a young pod's sample that began before it was Ready is start-up work": (
        started(60, ready_since=NOW - 29),
        FRESH,
        True,
        "unready",
    ),
    "for CPU, a young pod's sample taken wholly after it was Ready counts": (
        started(60, ready_since=NOW - 30),
        FRESH,
        True,
        "ready",
    ),
    "for CPU, an old pod that never was Ready is unready": (
        started(900, ready="False", ready_since=NOW - 880),
        FRESH,
        True,
        "unready",
    ),
    "for CPU, an old pod that was Ready once still counts when it is not": (
        started(900, ready="False", ready_since=NOW - 10),
        FRESH,
        True,
        "ready",
    ),
    "for CPU, readiness that is Unknown is not False": (
        started(900, ready="Unknown", ready_since=NOW - 890),
        FRESH,
        True,
        "ready",
    ),
    "for other metrics, start-up does not disqualify": (
        started(5, ready="False", ready_since=NOW),
        FRESH,
        False,
        "ready",
    ),
}


@pytest.mark.parametrize(("pod", "sample", "cpu", "group"), GROUPS.values(), ids=GROUPS.keys())
def test_each_pod_is_in_one_group(pod, sample, cpu, group):
    groups = group_pods([pod], {"p": sample} if sample else {}, cpu=cpu, now=NOW, settings=SETTINGS)
    assert {name: set(getattr(groups, name)) for name in ("ready", "unready", "missing", "ignored")} == {
        "ready": set(),
        "unready": set(),
        "missing": set(),
        "ignored": set(),
    } | {group: {"p"}}


TWO = target_pod(
    "p", containers=(ContainerResources("a", {"cpu": 100}), ContainerResources("b", {"cpu": 50, "memory": 7}))
)


def test_requests_are_of_all_containers_or_of_the_named_one():
    assert requests_of([TWO], "cpu", None) == {"p": 150}
    assert requests_of([TWO], "cpu", "b") == {"p": 50}


def test_pod_level_requests_win_over_those_of_containers_but_not_over_a_named_container():
    pod = target_pod("p", containers=TWO.shape.containers, pod_level_requests={"cpu": 500})
    assert requests_of([pod], "cpu", None) == {"p": 500}
    assert requests_of([pod], "cpu", "a") == {"p": 100}
    with pytest.raises(MetricError, match="missing pod-level request for memory in Pod p"):
        requests_of([pod], "memory", None)


def test_a_missing_request_is_an_error_that_names_container_and_pod():
    with pytest.raises(MetricError, match="missing request for memory in container a of Pod p"):
        requests_of([TWO], "memory", None)
    with pytest.raises(MetricError, match="container z not found in Pod p"):
        requests_of([TWO], "cpu", "z")


def limits(*containers, pod=None):
    """A pod whose containers have these cpu limits; None: no limit."""
    named = [
        ContainerResources(n, {}, {} if c is None else {"cpu": c}) for n, c in zip("abc", containers, strict=False)
    ]
    return target_pod("p", containers=named, pod_level_limits=None if pod is None else {"cpu": pod})


LIMITS = {
    "its containers are at theirs": (limits(500, 500), None, 990, True),
    "its containers are below theirs": (limits(500, 500), None, 900, False),
    "a container has none": (limits(500, None), None, 5000, False),
    "the pod has one, and its containers have none": (limits(None, None, pod=1000), None, 990, True),
    "the pod's is the lower one": (limits(500, 1000, pod=800), None, 790, True),
    "the containers' are lower together": (limits(300, 300, pod=800), None, 590, True),
    "one container has its own": (limits(500, 1000, pod=800), "a", 490, True),
    "what the pod leaves one container is not known": (limits(None, 500, pod=800), "a", 790, False),
}


@pytest.mark.parametrize(("pod", "container", "used", "is_saturated"), LIMITS.values(), ids=LIMITS)
def test_pods_at_their_limits_are_saturated(pod, container, used, is_saturated):
    assert serving([pod], {"p": Sample(used, NOW, 15.0)}, "cpu", container).saturated == is_saturated
