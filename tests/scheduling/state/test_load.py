"""What is measured, and what the windows cannot contain yet."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.nodecapacity import Window
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import LoadSettings
from concerto.scheduling.state import ended_pods
from support.scheduling_builders import NOW, capacity, cluster_state, load, node, pod, raw_pod

SETTINGS = LoadSettings()
FULL = load((0.5, 0.1), (0.25, 0.0))


def at(seconds: float) -> str:
    """Seconds before NOW as a timestamp."""
    minutes, rest = divmod(int(NOW - seconds), 60)
    return f"1970-01-01T00:{minutes:02d}:{rest:02d}Z"


def placed(name="p", *, age=None, on="n", **over):
    """A pod that its kubelet took over `age` seconds before NOW; predicted use 300m and 100 bytes."""
    status = {} if age is None else {"startTime": at(age)}
    over = {"created": at(900)} | over
    return pod(name, requests={"cpu": "200m", "memory": "100"}, nodeName=on, status=status, **over)


def recent(cluster, name="n", settings=SETTINGS):
    rows = np.array([cluster.row_of[name]])
    return [float(cluster.load.recent(r, settings, rows)[0]) for r in ("cpu", "memory")]


AGES = {
    "not taken over by its kubelet yet": (None, False, 300, 1.0),
    "taken over, but not counted by the agent: it pulls its image": (250, False, 300, 1.0),
    "a minute old: a fifth of the window has it": (60, True, 300, 0.8),
    "half the window": (150, True, 300, 0.5),
    "as old as the window": (300, True, 300, 0.0),
    "older": (900, True, 300, 0.0),
    "a window that covers a minute has a minute old pod whole": (60, True, 60, 0.0),
    "a clock ahead of ours": (-30, True, 300, 1.0),
}


@pytest.mark.parametrize(("age", "seen", "covered", "part"), AGES.values(), ids=AGES)
@pytest.mark.parametrize("pod_first", [True, False])
def test_what_the_window_does_not_contain_is_added(age, seen, covered, part, pod_first):
    status = capacity("n", observed=("uid-p",) if seen else (), windows=load((0.5, 0.1), (0.2, 0.0), covered))
    cluster = cluster_state([node("n")], [placed(age=age)] if pod_first else [], [])
    cluster.set_capacity(status, NOW)
    if not pod_first:
        cluster.set_pod(placed(age=age), NOW)
    assert recent(cluster) == pytest.approx([300 * part, 100 * part])


def test_a_pod_whose_image_took_long_begins_when_the_agent_counts_it():
    cluster = cluster_state([node("n")], [placed(age=600)], [capacity("n", windows=FULL)])
    assert recent(cluster)[0] == 300
    for version, seconds, part in ((2, 1, 1.0), (3, 61, 0.8), (4, 301, 0.0)):
        cluster.set_capacity(
            capacity("n", observed=("uid-p",), windows=FULL, version=version, at=NOW + seconds), NOW + seconds
        )
        assert recent(cluster)[0] == pytest.approx(300 * part)


def test_an_agent_has_no_say_about_pods_of_other_nodes():
    cluster = cluster_state([node("n"), node("m")], [placed(age=60)], [capacity("n", windows=FULL)])
    for version in (1, 2):
        observed = ("uid-p",) if version == 2 else ()
        cluster.set_capacity(capacity("m", observed=observed, windows=FULL, version=version, at=NOW + version), NOW)
    cluster.set_capacity(capacity("n", windows=FULL, version=2, at=NOW + 300), NOW + 300)
    assert recent(cluster) == [300, 100]


def test_a_decision_counts_at_once_and_once():
    cluster = cluster_state([node("n")], (), [capacity("n", windows=FULL)])
    assert recent(cluster) == [0, 0]
    waiting = replace(placed(), node_name="")
    assignment = Assignment("default", "p", "uid-p", "n", "Capacity", "1", 5.0)
    assert cluster.assume(waiting, assignment, NOW)
    assert recent(cluster) == [300, 100]
    cluster.confirm("uid-p")
    cluster.set_pod(placed(), NOW)
    cluster.set_pod(placed(age=0), NOW)
    assert recent(cluster) == [300, 100]
    other = replace(waiting, uid="uid-q", name="q")
    assert cluster.assume(other, replace(assignment, uid="uid-q", name="q"), NOW)
    assert recent(cluster) == [600, 200]
    cluster.forget("uid-q")
    assert recent(cluster) == [300, 100]


@pytest.mark.parametrize("end", ["Succeeded", "gone"])
def test_a_pod_that_ended_drops_out(end):
    cluster = cluster_state([node("n")], [placed(age=60)], [capacity("n", observed=("uid-p",), windows=FULL)])
    assert recent(cluster)[0] == pytest.approx(240)
    cluster.remove_pod("uid-p") if end == "gone" else cluster.set_pod(placed(age=60, phase=end), NOW)
    assert recent(cluster)[0] == pytest.approx(-60), "the window has a fifth of it"


RUNS, OVER = ({"phase": "Running", "containerStatuses": [{"name": "main", "state": state}]} for state in (
    {"running": {}}, {"terminated": {"exitCode": 0}}
))  # fmt: skip


def job_pod(status, **over):
    """A pod that has been there for half of the window."""
    requests = {"requests": {"cpu": "200m", "memory": "100"}}
    return PodView.from_raw(
        raw_pod(
            "p",
            nodeName="n",
            restartPolicy="Never",
            containers=[{"name": "main", "resources": requests}],
            status={"startTime": at(150)} | status | over,
        )
    )


def test_the_window_has_of_a_pod_whose_containers_have_ended_what_it_has_used():
    status = capacity("n", observed=("uid-p",), windows=FULL)
    cluster = cluster_state([node("n")], [job_pod(RUNS)], [status])
    assert (recent(cluster)[0], contained(cluster)) == (150, 150)
    cluster.set_pod(job_pod(OVER), NOW)
    assert (recent(cluster)[0], contained(cluster)) == (-150, 150)
    cluster.set_pod(job_pod(OVER, phase="Succeeded"), NOW + 2)
    assert (recent(cluster)[0], contained(cluster)) == (-150, 150), "taken off once"
    cluster.remove_pod("uid-p")
    assert (recent(cluster)[0], contained(cluster)) == (-150, 150)
    reported(cluster, 301)
    assert (recent(cluster)[0], contained(cluster)) == (0, 0)


def test_a_pod_whose_containers_run_again_has_not_ended():
    status = capacity("n", observed=("uid-p",), windows=FULL)
    cluster = cluster_state([node("n")], [job_pod(RUNS)], [status])
    cluster.set_pod(job_pod(OVER), NOW)
    cluster.set_pod(job_pod(RUNS), NOW)
    assert (recent(cluster)[0], contained(cluster)) == (150, 150)


def test_a_pod_whose_containers_have_ended_is_taken_off_though_it_is_counted_otherwise_at_once():
    status = capacity("n", observed=("uid-p",), windows=FULL)
    cluster = cluster_state([node("n")], [job_pod(RUNS)], [status])
    resized = [{"name": "main", "state": {"terminated": {"exitCode": 0}}, "allocatedResources": {"memory": "200"}}]
    cluster.set_pod(job_pod(OVER, containerStatuses=resized), NOW)
    assert recent(cluster)[0] == -150


def test_a_pod_that_has_never_started_has_used_nothing():
    fails = {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}]}
    cluster = cluster_state([node("n")], [job_pod(fails)], [])
    cluster.remove_pod("uid-p")
    assert not cluster.load._ended._slot_of


def ended(*ages, covered=300):
    """A node from whose window pods of these ages have just gone."""
    names = [f"old{i}" for i in range(len(ages))]
    there = [placed(name, age=age) for name, age in zip(names, ages)]
    windows = load((0.5, 0.1), (0.25, 0.0), covered)
    seen = tuple(f"uid-{name}" for name in names)
    cluster = cluster_state([node("n")], there, [capacity("n", observed=seen, windows=windows)])
    recent(cluster)
    for uid in seen:
        cluster.remove_pod(uid)
    return cluster


def reported(cluster, after, version=2, **over):
    """The next status of the node, which counts no pod."""
    cluster.set_capacity(capacity("n", windows=FULL, version=version, at=NOW + after, **over), NOW + after)


ENDS = {
    "one that was there all the time": ([900], 300, 300),
    "two that were there half the time": ([150, 150], 300, 300),
    "one that was there a fifth of the time": ([60], 300, 60),
    "one that was there all of a short window": ([60], 60, 300),
    "more than young pods add": ([900, 900, 900], 300, 900),
    "one that had not begun": ([0], 300, 0),
}


@pytest.mark.parametrize(("ages", "covered", "gone"), ENDS.values(), ids=ENDS)
def test_what_the_window_has_of_pods_that_have_ended_is_taken_off(ages, covered, gone):
    cluster = ended(*ages, covered=covered)
    assert recent(cluster) == pytest.approx([-gone, -gone / 3])
    cluster.set_pod(placed("young"), NOW)
    assert recent(cluster) == pytest.approx([300 - gone, 100 - gone / 3])


def contained(cluster):
    return float(cluster.load.contained("cpu", SETTINGS, np.array([cluster.row_of["n"]]))[0])


def test_the_window_contains_each_pod_with_the_share_in_which_it_was_there():
    there = [placed("a", age=900), placed("b", age=150)]
    cluster = cluster_state([node("n")], there, [capacity("n", observed=("uid-a", "uid-b"), windows=FULL)])
    assert contained(cluster) == pytest.approx(450)
    cluster.set_pod(placed("young"), NOW)
    assert contained(cluster) == pytest.approx(450)
    cluster.remove_pod("uid-b")
    cluster.remove_pod("uid-a")
    assert contained(cluster) == pytest.approx(450)
    reported(cluster, 301)
    assert contained(cluster) == 0


def test_old_pods_without_an_entry_are_contained():
    uids = tuple(f"uid-p{i}" for i in range(600))
    there = [placed(f"p{i}", age=900) for i in range(600)]
    cluster = cluster_state([node("n")], there, [capacity("n", observed=uids, windows=FULL)])
    assert (recent(cluster), contained(cluster)) == ([0, 0], 180_000)
    cluster.remove_pod("uid-p0")
    assert (recent(cluster), contained(cluster)) == ([-300, -100], 180_000)


def test_pods_that_have_ended_leave_the_window():
    cluster = ended(900)
    cluster.set_pod(placed("young"), NOW)
    for after, left in ((75, 75), (150, 150), (299, 299), (300, 300), (1000, 300)):
        reported(cluster, after, version=after)
        assert recent(cluster)[0] == pytest.approx(left)
    assert not cluster.load._ended._slot_of


def test_where_short_pods_follow_each_other_the_mean_is_the_load():
    """Each minute a pod ends, and another comes: nothing is added to a mean that has five such minutes."""
    cluster = cluster_state([node("n")], [placed("p0", age=0)], [capacity("n", observed=("uid-p0",), windows=FULL)])
    for minute in range(1, 8):
        now = NOW + 60 * minute
        cluster.set_pod(placed(f"p{minute - 1}", age=-60 * (minute - 1), phase="Succeeded"), now)
        cluster.set_pod(placed(f"p{minute}", age=-60 * minute), now)
        seen = (f"uid-p{minute}",)
        cluster.set_capacity(capacity("n", observed=seen, windows=FULL, version=minute + 1, at=now), now)
    assert recent(cluster) == [0, 0]


def test_a_pod_that_is_added_again_has_not_ended():
    """As the cluster does where what counts of a pod has changed."""
    cluster = ended(900)
    cluster.set_pod(placed("young"), NOW)
    cluster.load.pod_added(placed("old0", age=900), cluster.row_of["n"])
    assert recent(cluster)[0] == pytest.approx(300)
    assert not cluster.load._ended._slot_of


def test_a_decision_that_is_taken_back_has_used_nothing():
    cluster = cluster_state([node("n")], [placed("young")], [capacity("n", windows=FULL)])
    assignment = Assignment("default", "p", "uid-p", "n", "Capacity", "1", 5.0)
    assert cluster.assume(replace(placed(), node_name=""), assignment, NOW)
    reported(cluster, 30)
    cluster.forget("uid-p")
    assert recent(cluster) == [300, 100]


def test_the_next_node_of_a_row_knows_nothing_of_what_ended_on_the_last_one():
    cluster = ended(900)
    cluster.load.row_assigned(cluster.row_of["n"])
    cluster.set_pod(placed("young"), NOW)
    assert recent(cluster) == [300, 100]


def test_what_is_kept_of_ended_pods_is_bounded(monkeypatch):
    monkeypatch.setattr(ended_pods, "_MAX_KEPT", 2)
    cluster = ended(900, 900, 900)
    assert list(cluster.load._ended._slot_of) == ["uid-old1", "uid-old2"]


@pytest.mark.parametrize("created", [900, 60], ids=["long after they were created", "in the second of their creation"])
def test_pods_of_a_daemon_set_begin_when_they_start_as_no_agent_reports_them(created):
    cluster = cluster_state(
        [node("n")], [placed(owner="DaemonSet", created=at(created))], [capacity("n", windows=FULL)]
    )
    assert recent(cluster)[0] == 300
    cluster.set_pod(placed(age=60, owner="DaemonSet", created=at(created)), NOW)
    assert recent(cluster)[0] == pytest.approx(240)


def test_limits_that_are_resized_alone_are_predicted_by_at_once():
    def limited(cpu):
        resources = {"requests": {"cpu": "200m", "memory": "100"}, "limits": {"cpu": cpu, "memory": "100"}}
        return pod("p", nodeName="n", containers=[{"name": "main", "resources": resources}])

    cluster = cluster_state([node("n")], [limited("500m")], [capacity("n", windows=FULL)])
    assert recent(cluster) == [500, 100]
    cluster.set_pod(limited("2"), NOW)
    assert recent(cluster) == [2000, 100]
    assert cluster.usage.limits[:, cluster.row_of["n"]].tolist() == [2000, 100]
    cluster.remove_pod("uid-p")
    assert cluster.usage.limits[:, cluster.row_of["n"]].tolist() == [0, 0]


def test_another_profiles_settings_give_other_sums():
    cluster = cluster_state([node("n")], [placed(), pod("q", nodeName="n")], [capacity("n", windows=FULL)])
    assert recent(cluster) == [301, 100]
    assert recent(cluster, settings=LoadSettings(request_multiplier=1.0, best_effort_cpu_millicores=9.0)) == [209, 100]


def test_reflected_pods_keep_what_says_when_they_started():
    trimmed = trim_pod(raw_pod("p", nodeName="n", status={"startTime": at(60)}))
    assert PodView.from_raw(trimmed).started == NOW - 60


def test_old_pods_leave_nothing_behind():
    uids = tuple(f"uid-p{i}" for i in range(600))
    cluster = cluster_state(
        [node("n"), node("m")],
        [placed(f"p{i}", age=900) for i in range(600)],
        [capacity("n", observed=uids, windows=FULL), capacity("m", windows=FULL)],
    )
    assert recent(cluster) == [0, 0]
    cluster.set_pod(placed("late", on="m"), NOW)
    assert recent(cluster, "m") == [300, 100]
    for uid in uids:
        cluster.remove_pod(uid)
    assert (recent(cluster), recent(cluster, "m")) == ([-180_000, -60_000], [300, 100])
    for name in "nm":
        cluster.set_capacity(capacity(name, windows=FULL, version=2, at=NOW + 1000), NOW + 1000)
    assert (recent(cluster), recent(cluster, "m")) == ([0, 0], [300, 100])
    assert contained(cluster) == 0


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("nm"), st.sampled_from(["place", "end", "see"])), max_size=40)
)
def test_what_was_built_up_event_by_event_is_what_a_restart_finds(events):
    """The rebuilt sums differ only for pods that were seen to begin late, and there is no such pod here."""
    cluster = cluster_state([node("n"), node("m")], (), [capacity(n, windows=FULL) for n in "nm"])
    alive: dict[str, str] = {}
    seen: dict[str, set[str]] = {"n": set(), "m": set()}
    version = 1
    for index, on, what in events:
        uid = f"uid-p{index}"
        if what == "place" and uid not in alive:
            if cluster.ledger.has_ended(uid):
                continue
            alive[uid] = on
            cluster.set_pod(placed(f"p{index}", age=0, on=on), NOW)
        elif what == "end" and uid in alive:
            seen[alive.pop(uid)].discard(uid)
            cluster.remove_pod(uid)
        elif what == "see" and uid in alive:
            seen[alive[uid]].add(uid)
            version += 1
            on = alive[uid]
            cluster.set_capacity(
                capacity(on, observed=tuple(sorted(seen[on])), windows=FULL, version=version, at=NOW + version / 1e3),
                NOW,
            )
        recent(cluster)  # what is kept between events must not go stale
    fresh = cluster_state(
        [node("n"), node("m")],
        [placed(uid[4:], age=0, on=on) for uid, on in alive.items()],
        [capacity(n, observed=tuple(sorted(seen[n])), windows=FULL) for n in "nm"],
    )
    for name in "nm":
        assert recent(cluster, name) == pytest.approx(recent(fresh, name))


BAD = {
    "not a number": (float("nan"), 0.1, 0.2, [np.nan, 0.1, 0.2], 1),
    "negative": (-0.1, 0.1, 0.2, [np.nan, 0.1, 0.2], 1),
    "over 100 %": (0.5, 0.1, 1.1, [0.5, 0.1, np.nan], 1),
    "all of them": (float("inf"), -1.0, 2.0, [np.nan] * 3, 3),
    "good": (0.0, 0.0, 1.0, [0.0, 0.0, 1.0], 0),
}


@pytest.mark.parametrize(("average", "deviation", "latest", "read", "rejected"), BAD.values(), ids=BAD)
def test_a_metric_that_cannot_be_is_missing_and_counted(average, deviation, latest, read, rejected):
    windows = (Window("cpu", "5m", average, deviation, latest, 300),)
    cluster = cluster_state([node("n")], (), [capacity("n", windows=windows)])
    measured = [cluster.load.measured("cpu", s, SETTINGS, np.array([0]))[0] for s in ("average", "deviation", "latest")]
    np.testing.assert_array_equal(measured, read)
    assert cluster.load.rejected == rejected


def test_a_window_that_covers_nothing_and_other_resources_are_not_read():
    windows = (Window("cpu", "5m", 0.0, 0.0, 0.0, 0), Window("io", "5m", 0.5, 0.0, 0.5, 300))
    cluster = cluster_state([node("n")], (), [capacity("n", windows=windows)])
    assert np.isnan(cluster.load.measured("cpu", "average", SETTINGS, np.array([0]))).all()


def test_each_window_is_read_by_its_name_and_goes_with_its_node_capacity():
    windows = tuple(Window("memory", w, mean, 0.0, mean, 300) for w, mean in (("5m", 0.1), ("10m", 0.2), ("15m", 0.3)))
    cluster = cluster_state([node("n")], (), [capacity("n", windows=windows)])

    def averages():
        return [
            float(cluster.load.measured("memory", "average", LoadSettings(window=w), np.array([0]))[0])
            for w in ("5m", "10m", "15m")
        ]

    assert averages() == [0.1, 0.2, 0.3]
    cluster.remove_capacity("n")
    assert np.isnan(averages()).all()
