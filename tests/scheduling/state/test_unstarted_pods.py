"""Pods that never start: what they take of measured capacity, and from when on."""

import numpy as np
import pytest

from concerto.api.pod import PodView
from concerto.api.pod_kind import kind_of_pod
from concerto.api.pod_trimming import trim_pod
from concerto.api.schedulingprofile import LoadSettings, ProfileSettings
from concerto.api.timestamps import format_timestamp
from concerto.capacity.kinds.sums import PodMeasurement
from concerto.capacity.kinds.table import NodeKinds
from concerto.controllers.scheduling.profiles_in_use import ProfilesInUse
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.changes import Change
from support.scheduling_builders import NOW, capacity, cluster_state, node, pod, raw_pod

WAIT = ProfileSettings.failed_start_wait_seconds
LATER = NOW + WAIT


def waiting(reason, name="main"):
    return {"name": name, "restartCount": 0, "state": {"waiting": {"reason": reason}}}


def ran(name="main", **more):
    return {"name": name, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}} | more


BACKS_OFF = {"containerStatuses": [waiting("ImagePullBackOff")]}
FAILED = {"containerStatuses": [waiting("ErrImagePull")]}
RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}, "restartCount": 0}]}


def raw_bound(name="bad", status=None, **over):
    status = {"startTime": format_timestamp(NOW)} | (BACKS_OFF if status is None else status)
    return raw_pod(name, nodeName="n", status=status, **over)


def bound(name="bad", status=None, **over):
    return PodView.from_raw(raw_bound(name, status, **over))


@pytest.mark.parametrize(
    ("status", "fails"),
    [
        pytest.param(BACKS_OFF, True, id="image pull back-off"),
        pytest.param({"containerStatuses": [waiting("ErrImagePull")]}, True, id="a pull has just failed"),
        pytest.param({"containerStatuses": [waiting("InvalidImageName")]}, True, id="an image with a wrong name"),
        pytest.param({"containerStatuses": [waiting("CreateContainerConfigError")]}, True, id="a Secret is missing"),
        pytest.param({"containerStatuses": [waiting("ContainerCreating")]}, False, id="an image is being pulled"),
        pytest.param(
            {"containerStatuses": [waiting("ContainerCreating"), waiting("ErrImagePull", "side")]},
            True,
            id="one of two",
        ),
        pytest.param(
            {"initContainerStatuses": [ran("init")], "containerStatuses": [waiting("ErrImagePull")]},
            False,
            id="an init container has run",
        ),
        pytest.param(
            {"containerStatuses": [{"name": "side", "state": {"running": {}}}, waiting("ErrImagePull")]},
            False,
            id="the other container runs",
        ),
        pytest.param(
            {"containerStatuses": [waiting("ErrImagePull") | {"restartCount": 2}]}, False, id="it has run before"
        ),
        pytest.param({"phase": "Running", **BACKS_OFF}, False, id="the pod runs"),
        pytest.param({}, False, id="nothing is reported"),
    ],
)
def test_whether_the_start_of_a_pod_fails(status, fails):
    raw = raw_bound(status=status)
    assert PodView.from_raw(raw).start_fails is fails
    assert PodView.from_raw(trim_pod(raw)).start_fails is fails


def room_of(cluster):
    return float(cluster.measured.available[cluster.row_of["n"]])


def test_a_pod_that_does_not_start_gives_its_unit_back_after_a_while_and_keeps_its_requests():
    cluster = cluster_state([node("n")], [bound(requests={"cpu": "1"})], [capacity("n", 5.0)])
    assert room_of(cluster) == 4.0
    assert not cluster.unstarted.due(LATER - 1.0)
    cluster.set_pod(bound(status=FAILED, requests={"cpu": "1"}), LATER - 1.0)  # kubelet has tried again
    (due,) = cluster.unstarted.due(LATER)
    assert cluster.set_pod(due, LATER) & Change.CAPACITY
    assert room_of(cluster) == 5.0
    assert not cluster.unstarted.due(LATER)
    assert cluster.resources.used("cpu", np.array([cluster.row_of["n"]])) == [1000]
    assert cluster.is_bound("uid-bad")


@pytest.mark.parametrize(
    "started", [NOW - 1e6, NOW + 1e6], ids=["its image was pulled for long", "the node's clock is ahead"]
)
def test_the_time_begins_when_its_failure_is_seen(started):
    failing = bound(status=BACKS_OFF | {"startTime": format_timestamp(started)})
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    cluster.set_pod(failing, NOW)
    assert room_of(cluster) == 4.0
    assert not cluster.unstarted.due(LATER - 1.0)
    cluster.set_pod(failing, LATER)
    assert room_of(cluster) == 5.0


def test_the_time_begins_again_once_it_has_not_failed_for_a_moment():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0)])
    cluster.set_pod(bound(status={"containerStatuses": [waiting("ContainerCreating")]}), LATER - 2.0)
    cluster.set_pod(bound(), LATER - 1.0)
    cluster.set_pod(bound(), LATER)
    assert room_of(cluster) == 4.0
    assert not cluster.unstarted.due(LATER + WAIT - 2.0)
    assert cluster.unstarted.due(LATER + WAIT - 1.0)


def test_it_takes_a_unit_again_when_it_starts():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0)])
    cluster.set_pod(bound(), LATER)
    assert room_of(cluster) == 5.0
    cluster.set_pod(bound(status=RUNS), LATER + 1.0)
    assert room_of(cluster) == 4.0
    cluster.set_capacity(capacity("n", 4.0, ("uid-bad",), version=2), LATER + 2.0)
    assert room_of(cluster) == 4.0
    cluster.remove_pod("uid-bad")
    assert room_of(cluster) == 5.0


@pytest.mark.parametrize("status", [{"containerStatuses": [waiting("ContainerCreating")]}, RUNS])
def test_a_pod_that_pulls_its_image_or_runs_keeps_its_unit(status):
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    cluster.set_pod(bound(status=status), LATER)
    assert room_of(cluster) == 4.0
    assert not cluster.unstarted.due(LATER + 1e6)


def test_what_is_gone_is_not_looked_at_again():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0)])
    cluster.remove_pod("uid-bad")
    assert not cluster.unstarted.due(LATER)


def test_its_placement_record_can_be_closed():
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    good = pod("bad")
    profiles = {"concerto": Profile.build(ProfileSettings("concerto"))}
    result = schedule(cluster, [good], profiles, now=NOW, generator=np.random.default_rng(0))
    cluster.ledger.open_record("record", [d.assignment for d in result.decisions])
    cluster.set_pod(bound(), NOW)
    assert not cluster.ledger.closable_records()
    cluster.set_pod(bound(), LATER)
    assert cluster.ledger.closable_records() == ["record"]


def test_what_its_kind_costs_is_not_committed_until_it_starts():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0)])
    seen = NodeKinds()
    seen.pod_ended(kind_of_pod(raw_bound()), PodMeasurement(8.0, 4.0, 4.0, 2e7, True), NOW)
    cluster.kinds.set_table(seen.table((), NOW))
    row = cluster.row_of["n"]
    cores = cluster.kinds.loads.cpu[row]
    assert cores > 0.0
    assert cluster.set_pod(bound(), LATER) & Change.CAPACITY
    assert cluster.kinds.loads.cpu[row] == pytest.approx(0.0)
    cluster.set_pod(bound(status=RUNS), LATER + 1.0)
    assert cluster.kinds.loads.cpu[row] == pytest.approx(cores)


def test_what_is_claimed_for_a_large_pod_is_free_again():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0, pod_share=0.1)])
    cluster.large_pods.claim("uid-bad", cluster.row_of["n"], 4000.0)
    cluster.set_pod(bound(), LATER)
    assert room_of(cluster) == 5.0
    assert not cluster.large_pods.has_claim("uid-bad")


def test_it_is_claimed_again_when_it_starts_and_until_its_agent_names_it():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0, pod_share=0.1)])
    cluster.large_pods.claim("uid-bad", row := cluster.row_of["n"], 2000.0)
    cluster.measured.update(row)
    claimed, taken = room_of(cluster), cluster.large_pods.taken(slice(row, row + 1))[0]
    assert claimed < 4.0
    cluster.set_pod(bound(), LATER)
    cluster.set_pod(bound(status=RUNS), LATER + 1.0)
    assert room_of(cluster) == claimed
    assert cluster.large_pods.taken(slice(row, row + 1))[0] == taken
    cluster.set_capacity(capacity("n", 5.0, ("uid-bad",), version=2, large={"uid-bad": 0.5}), LATER + 2.0)
    assert not cluster.large_pods.has_claim("uid-bad")


def test_its_agent_has_its_time_to_name_it_from_its_start_on():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0, pod_share=0.1)])
    cluster.large_pods.claim("uid-bad", cluster.row_of["n"], 2000.0)
    cluster.set_capacity(capacity("n", 5.0, ("uid-bad",), version=2, at=LATER - 1.0), LATER - 1.0)
    cluster.set_pod(bound(), LATER)
    cluster.set_pod(bound(status=RUNS), LATER + 600.0)
    cluster.set_capacity(capacity("n", 5.0, ("uid-bad",), version=3, at=LATER + 601.0), LATER + 601.0)
    assert cluster.large_pods.has_claim("uid-bad")


def test_it_is_claimed_again_though_another_node_s_agent_names_it():
    cluster = cluster_state([node("n"), node("other")], [bound()], [capacity("n", 5.0)])
    cluster.large_pods.claim("uid-bad", cluster.row_of["n"], 1000.0)
    cluster.set_pod(bound(), LATER)
    cluster.set_capacity(capacity("other", 5.0, large={"uid-bad": 0.5}), LATER)
    cluster.set_pod(bound(status=RUNS), LATER + 1.0)
    assert cluster.large_pods.has_claim("uid-bad")


def test_nothing_is_claimed_again_of_what_its_agent_has_named_or_of_a_pod_that_is_gone():
    cluster = cluster_state([node("n")], [bound(), bound("other")], [capacity("n", 5.0, pod_share=0.1)])
    for uid in ("uid-bad", "uid-other"):
        cluster.large_pods.claim(uid, cluster.row_of["n"], 1000.0)
    for name in ("bad", "other"):
        cluster.set_pod(bound(name), LATER)
    cluster.set_capacity(capacity("n", 5.0, ("uid-bad",), version=2, large={"uid-bad": 0.5}), LATER + 1.0)
    cluster.remove_pod("uid-other")
    cluster.set_pod(bound(status=RUNS), LATER + 2.0)
    assert not cluster.large_pods.has_claim("uid-bad")
    assert not cluster.large_pods._set_aside


def test_load_aware_scores_expect_no_load_of_it_until_it_starts():
    cluster = cluster_state([node("n")], [bound(requests={"cpu": "1"})], [capacity("n", 5.0)])
    every, settings = slice(0, 1), LoadSettings()
    before = cluster.load.recent("cpu", settings, every)[0]
    assert before > 0.0
    cluster.set_pod(bound(requests={"cpu": "1"}), LATER)
    assert cluster.load.recent("cpu", settings, every)[0] == 0.0
    cluster.set_pod(bound(status=RUNS, requests={"cpu": "1"}), LATER)
    assert cluster.load.recent("cpu", settings, every)[0] == before


def test_a_new_operator_waits_again():
    cluster = cluster_state([node("n")], [], [capacity("n", 5.0)])
    cluster.set_pod(bound(requests={"cpu": "1"}), LATER)
    assert room_of(cluster) == 4.0
    cluster.set_pod(bound(requests={"cpu": "1"}), LATER + WAIT)
    assert room_of(cluster) == 5.0
    assert cluster.load.recent("cpu", LoadSettings(), slice(0, 1))[0] == 0.0


def test_a_daemon_sets_pod_is_left_as_it_is():
    daemon = bound(owner="DaemonSet")
    cluster = cluster_state([node("n")], [daemon], [capacity("n", 5.0)])
    assert not cluster.unstarted.due(LATER)
    cluster.set_pod(daemon, LATER)
    assert room_of(cluster) == 5.0


@pytest.mark.parametrize(("waits", "shortest"), [((), WAIT), ((300.0,), 300.0), ((300.0, 10.0), 10.0)])
def test_the_shortest_wait_of_the_profiles_in_use_holds_for_every_pod(waits, shortest):
    profiles = ProfilesInUse()
    for number, wait in enumerate(waits):
        settings = ProfileSettings(f"s{number}", failed_start_wait_seconds=wait)
        profiles.use(settings.scheduler_name, Profile.build(settings))
    assert profiles.failed_start_wait_seconds() == shortest


def test_an_edit_of_the_wait_holds_for_pods_that_fail_already():
    cluster = cluster_state([node("n")], [bound()], [capacity("n", 5.0)])
    cluster.unstarted.wait_seconds = 10.0
    (due,) = cluster.unstarted.due(NOW + 10.0)
    cluster.set_pod(due, NOW + 10.0)
    assert room_of(cluster) == 5.0
    cluster.unstarted.wait_seconds = 1000.0
    cluster.set_pod(bound(), NOW + 11.0)
    assert room_of(cluster) == 4.0
