from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto_agent.pod_census import MAX_CONTAINERS, Containers, PodCensus, trim_pod
from support.daemon_sets import daemon_affinity
from support.daemon_sets import owner as owned_by
from support.node_trees import STATIC_UID, UIDS

A, B = UIDS
RUNS, SANDBOX = "a" * 64, "b" * 64
WALL = 1_800_000_000.0
STARTED = "2027-01-15T07:59:00Z"  # 60 s before WALL


class Listener:
    def __init__(self) -> None:
        self.said: list[tuple] = []

    def pod_started(self, at: float) -> None:
        self.said.append(("started", at))

    def pod_ended(self, uid: str, started_at: float, at: float) -> None:
        self.said.append(("ended", uid, started_at, at))


def pod(
    uid: str = A,
    *,
    owner: str | None = None,
    group: str = "apps/v1",
    mirror_of: str | None = None,
    started: str | None = None,
    phase: str = "Running",
    restart: str = "Always",
    own_restart: str = "",
    rules: bool = False,
    exit_code: int | None = None,
    containers: int = 1,
    inits: int = 0,
    deleting: bool = False,
) -> dict:
    own: dict = {"restartPolicy": own_restart} if own_restart else {}
    own |= {"restartPolicyRules": [{"action": "Restart"}]} if rules else {}
    running = {"running": {"startedAt": started}}
    state = running if exit_code is None else {"terminated": {"exitCode": exit_code, "startedAt": started}}
    annotations = {"kubernetes.io/config.mirror": mirror_of, "kubernetes.io/config.hash": mirror_of}
    raw = {
        "metadata": {
            "name": uid[:8],
            "namespace": "default",
            "uid": uid,
            "resourceVersion": "1",
            **({"deletionTimestamp": STARTED} if deleting else {}),
            "labels": {"large": "x"},
            "annotations": {"other": "x"} | (annotations if mirror_of else {}),
            "ownerReferences": [owned_by(owner, group)] if owner else [],
        },
        "spec": {
            **({"affinity": daemon_affinity("n1")} if owner == "DaemonSet" else {}),
            "nodeName": "n1",
            "restartPolicy": restart,
            "containers": [{"name": f"c{i}"} | own for i in range(containers)],
            "initContainers": [{"name": f"i{i}"} for i in range(inits)],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "c0", "containerID": f"containerd://{RUNS}", "state": state}],
        }
        if started
        else {"phase": "Pending"},
    }
    return trim_pod(raw)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def census(listener: Listener) -> PodCensus:
    return PodCensus(listener, max_pods=512)


KINDS = {
    "a bare pod": (pod(), True),
    "a Job's pod": (pod(owner="Job"), True),
    "a ReplicaSet's pod": (pod(owner="ReplicaSet"), True),
    "a DaemonSet's pod": (pod(owner="DaemonSet"), False),
    "a pod that calls its owner a DaemonSet": (pod(owner="DaemonSet", group="evil.io/v1"), True),
    "the mirror of a static pod": (pod(owner="Node", mirror_of=STATIC_UID), False),
}


@pytest.mark.parametrize(("obj", "expected"), KINDS.values(), ids=KINDS.keys())
def test_which_pods_are_units(obj, expected):
    assert obj["counts"] is expected


def test_trimming_keeps_little():
    assert "spec" not in pod()
    assert pod()["metadata"]["annotations"] == {}


def starts(census: PodCensus, uid: str, at: float, *, found: bool = False) -> None:
    """Its cgroup is there, and a container in it."""
    census.appeared(uid, at, found=found)
    census.working(uid, at)


def with_containers(number, phase="Pending"):
    made = [{"name": f"c{n}", "resources": {"limits": {"cpu": "10m"}}} for n in range(number)]
    metadata = {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"containers": made}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("containers", "phase", "held"),
    [(MAX_CONTAINERS, "Running", MAX_CONTAINERS + 1), (MAX_CONTAINERS + 1, "Running", 1), (3, "Failed", 1)],
)
def test_of_pods_that_are_over_or_have_very_many_containers_their_own_limit_is_held_alone(containers, phase, held):
    """A node's kubelet refuses pods that name it by the thousand, and the API shows them for long."""
    trimmed = trim_pod(with_containers(containers, phase))
    assert len(trimmed["limits"]) == held
    assert trimmed["limits"][""] == 10 * containers
    assert trimmed["containers"] == containers


def test_a_pod_whose_containers_have_not_started_is_no_load_yet_however_long_that_takes(census, listener):
    census.on_pod_change(None, pod(), 9.0, WALL)
    census.appeared(A, 10.0)
    assert census.counted == {}, "its image is pulled, or kubelet is busy"
    census.working(A, 700.0)
    assert census.counted == {A: 700.0}


def test_where_sandboxes_have_no_cgroup_the_status_reports_the_first_container(census, listener):
    census.on_pod_change(None, pod(), 9.0, WALL)
    census.appeared(A, 10.0)
    census.on_pod_change(pod(), pod(started=STARTED), 12.0, WALL)
    assert census.counted == {A: 12.0}
    census.working(A, 13.0)
    assert listener.said == [("started", 12.0)], "it has started once"


def test_a_status_that_names_a_pod_without_a_cgroup_counts_for_nothing(census, listener):
    census.on_pod_change(None, pod(started=STARTED), 12.0, WALL)
    assert census.counted == {}
    census.appeared(A, 13.0)
    assert census.counted == {A: 13.0}, "its container had started before its cgroup was seen"


def test_a_pod_counts_from_its_first_container_to_its_cgroups_end(census, listener):
    census.on_pod_change(None, pod(), 9.0, WALL)
    assert census.counted == {}, "bound to the node, but nothing of it is there"
    starts(census, A, 10.0)
    assert census.counted == {A: 10.0}
    census.vanished(A, 15.0)
    assert census.counted == {}
    assert listener.said == [("started", 10.0), ("ended", A, 10.0, 15.0)]


JOB = {"restart": "Never", "owner": "Job"}
ENDS = {
    "a Job's pod: over": (JOB, Containers(1, frozenset({SANDBOX})), True),
    "a Job's pod without a sandbox's cgroup: over": (JOB, Containers(1), True),
    "a pod that is started again: its container comes back": ({}, Containers(1, frozenset({SANDBOX})), False),
    "a container that alone is started again: it comes back": (JOB | {"own_restart": "Always"}, Containers(1), False),
    "a container that alone is not started again: over": ({"own_restart": "Never"}, Containers(1), True),
    "a pod that is started again on failure: nobody knows how its container has ended": (
        JOB | {"restart": "OnFailure"},
        Containers(1),
        False,
    ),
    "a container that its rules may start again": (JOB | {"rules": True}, Containers(1), False),
    "a pod that would be started again on failure, and is being deleted: over": (
        JOB | {"restart": "OnFailure", "deleting": True},
        Containers(1),
        True,
    ),
    "a pod that is being deleted: over": ({"deleting": True}, Containers(1, frozenset({SANDBOX})), True),
    "its init container has ended, its container comes": (JOB | {"inits": 1}, Containers(1), False),
    "its init container has ended, and so has its container": (JOB | {"inits": 1}, Containers(2), True),
    "one container of two": (JOB | {"containers": 2}, Containers(1, frozenset({SANDBOX})), False),
    "what is left is a container": (
        JOB | {"started": STARTED, "containers": 2},
        Containers(2, frozenset({RUNS})),
        False,
    ),
}


@pytest.mark.parametrize(("facts", "left", "over"), ENDS.values(), ids=ENDS)
def test_a_pod_stops_counting_with_its_last_container_and_not_with_its_cgroup(census, listener, facts, left, over):
    census.on_pod_change(None, pod(**facts), 9.0, WALL)
    starts(census, A, 10.0)
    census.containers_gone(A, left, 15.0)
    assert census.counted == ({} if over else {A: 10.0})
    assert listener.said == [("started", 10.0)] + ([("ended", A, 10.0, 15.0)] if over else [])
    census.vanished(A, 20.0)
    assert len(listener.said) == 2, "it ends once"


def test_a_container_that_starts_again_counts_again(census, listener):
    census.on_pod_change(None, pod(restart="Never"), 9.0, WALL)
    starts(census, A, 10.0)
    census.containers_gone(A, Containers(1), 15.0)
    census.working(A, 25.0)
    assert census.counted == {A: 10.0}


def test_a_pod_that_is_started_again_on_failure_counts_until_its_status_shows_that_it_has_succeeded(census, listener):
    job = {"restart": "OnFailure", "owner": "Job"}
    census.on_pod_change(None, pod(**job), 9.0, WALL)
    starts(census, A, 10.0)
    for at, exit_code in ((15.0, 1), (35.0, 0)):
        census.containers_gone(A, Containers(1, frozenset({SANDBOX})), at)
        assert census.counted == {A: 10.0}
        census.on_pod_change(pod(**job), pod(**job, started=STARTED, exit_code=exit_code), at + 1.0, WALL)
        assert census.counted == ({A: 10.0} if exit_code else {})
        if exit_code:
            census.working(A, at + 10.0)
    assert listener.said == [("started", 10.0), ("ended", A, 10.0, 36.0)]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_does_not_count_though_its_cgroup_is_still_there(census, listener, phase):
    census.on_pod_change(None, pod(**JOB), 9.0, WALL)
    starts(census, A, 10.0)
    census.on_pod_change(pod(**JOB), pod(**JOB, started=STARTED, phase=phase), 15.0, WALL)
    assert census.counted == {}
    assert listener.said[-1] == ("ended", A, 10.0, 15.0)


def test_a_pod_that_was_deleted_and_whose_containers_are_gone_does_not_count(census, listener):
    census.on_pod_change(None, pod(), 9.0, WALL)
    starts(census, A, 10.0)
    census.on_pod_change(pod(), None, 12.0, WALL)
    census.containers_gone(A, Containers(1), 13.0)
    assert listener.said[-1] == ("ended", A, 10.0, 13.0)


def test_a_cgroup_whose_pod_is_heard_of_later_is_as_old_as_its_cgroup(census, listener):
    starts(census, A, 10.0)
    assert census.counted == {}
    census.on_pod_change(None, pod(), 10.2, WALL)
    assert listener.said == [("started", 10.0)]


def test_a_cgroup_whose_pod_nobody_knows_does_not_count(census, listener):
    starts(census, A, 10.0)
    census.vanished(A, 20.0)
    assert listener.said == []


def test_a_pod_found_running_is_as_old_as_the_api_says(census, listener):
    starts(census, A, 100.0, found=True)
    census.on_pod_change(None, pod(started=STARTED), 101.0, WALL)
    assert listener.said == [("started", 41.0)]


def test_a_wall_clock_behind_the_api_makes_no_pod_younger_than_its_cgroup(census, listener):
    starts(census, A, 100.0, found=True)
    census.on_pod_change(None, pod(started=STARTED), 101.0, WALL - 86400)
    assert listener.said == [("started", 100.0)]


def test_the_api_does_not_age_a_pod_whose_beginning_was_seen(census, listener):
    starts(census, A, 100.0)
    census.on_pod_change(None, pod(started=STARTED), 101.0, WALL)
    assert listener.said == [("started", 100.0)]


def test_a_pod_deleted_from_the_api_counts_until_its_cgroup_is_gone(census, listener):
    census.on_pod_change(None, pod(), 9.0, WALL)
    starts(census, A, 10.0)
    census.on_pod_change(pod(), None, 12.0, WALL)
    assert census.counted == {A: 10.0}, "its load is still there"
    census.vanished(A, 13.0)
    assert listener.said[-1] == ("ended", A, 10.0, 13.0)
    starts(census, A, 14.0)
    assert census.counted == {}, "nobody knows it any more"


def test_daemonset_and_static_pods_belong_to_the_node(census, listener):
    census.on_pod_change(None, pod(A, owner="DaemonSet"), 9.0, WALL)
    starts(census, A, 10.0)
    starts(census, STATIC_UID, 10.0)
    assert listener.said == []
    assert sorted(census.uncounted()) == sorted([A, STATIC_UID])
    census.vanished(A, 11.0)
    assert census.uncounted() == [STATIC_UID]


def test_a_static_pod_with_another_kind_of_uid_is_known_by_its_mirror(census, listener):
    census.on_pod_change(None, pod(A, owner="Node", mirror_of="custom-uid"), 9.0, WALL)
    starts(census, "custom-uid", 10.0)
    assert listener.said == []
    assert census.uncounted() == ["custom-uid"]


def test_more_pods_than_the_status_may_list_stay_in_flight(listener):
    census = PodCensus(listener, max_pods=1)
    for uid, at in ((A, 10.0), (B, 11.0)):
        census.on_pod_change(None, pod(uid), 9.0, WALL)
        starts(census, uid, at)
    assert census.counted == {A: 10.0}
    census.vanished(A, 12.0)
    assert census.counted == {B: 11.0}
    census.limit(2, 13.0)
    starts(census, A, 14.0)
    assert census.counted == {B: 11.0, A: 14.0}
    census.limit(1, 15.0)
    assert census.counted == {B: 11.0}


EVENTS = st.lists(
    st.tuples(st.sampled_from(["appeared", "working", "vanished", "known", "deleted"]), st.integers(0, 7))
)


@given(EVENTS, st.integers(1, 8))
def test_the_listener_can_always_know_who_counts(events, max_pods):
    listener = Listener()
    census = PodCensus(listener, max_pods=max_pods)
    present, working, in_api, at = set(), set(), {}, 0.0
    for what, i in events:
        uid, at = f"uid-{i}", at + 1
        if what == "appeared" and uid not in present:
            present.add(uid)
            census.appeared(uid, at)
        elif what == "working" and uid in present:
            working.add(uid)
            census.working(uid, at)
        elif what == "vanished" and uid in present:
            present.discard(uid)
            working.discard(uid)
            census.vanished(uid, at)
        elif what == "known" and uid not in in_api:
            in_api[uid] = pod(uid, owner="DaemonSet" if i == 7 else "Job")
            census.on_pod_change(None, in_api[uid], at, WALL)
        elif what == "deleted" and uid in in_api:
            census.on_pod_change(in_api.pop(uid), None, at, WALL)
        started = [said for said in listener.said if said[0] == "started"]
        ended = [said for said in listener.said if said[0] == "ended"]
        assert len(started) - len(ended) == len(census.counted) <= max_pods
        assert set(census.counted) <= working
        assert "uid-7" not in census.counted
        if max_pods == 8:
            assert {uid for uid in working & in_api.keys() if uid != "uid-7"} <= set(census.counted)
        assert list(census.counted.values()) == sorted(census.counted.values())
