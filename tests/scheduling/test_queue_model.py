"""The queue against one that sorts all pods for each cycle: namespaces, PodGroups, and selectors that part pods."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from concerto.api.pod import PodView
from concerto.api.selectors import LabelSelector
from concerto.scheduling.queue import Queue, QueueSettings
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod

SETTINGS = QueueSettings()
SELECTORS = [LabelSelector.from_raw({"matchLabels": {"app": name}}) for name in ("x", "y")]
ALL_KEYS = LabelSelector.from_raw({"matchExpressions": [{"key": "app", "operator": "Exists"}]})


@dataclass
class Waiting:
    pod: PodView
    arrival: int
    key: tuple
    version: int
    ready_at: float | None = None

    @property
    def place(self):
        return self.pod.created, self.arrival, self.pod.uid


@dataclass
class State:
    """Of alike pods.

    Attributes:
        since: since when they are unschedulable.
        failed: the cycle in which they have failed last.
    """

    since: float | None = None
    requeue_on: Change = Change.NOTHING
    considered: bool = False
    failed: int = -1


class SortedQueue:
    """What the queue does, without any order that is kept."""

    def __init__(self, signatures):
        self.signatures = signatures
        self.pods: dict[str, Waiting] = {}
        self.states: dict[tuple, State] = {}
        self.failures: dict[str, int] = {}
        self.last: dict[int, str] = {}
        self.arrivals = self.cycle = self.pass_began = 0

    def set(self, each):
        known = self.pods.pop(each.uid, None)
        key = kind = self.kind(each)
        if each.group and (known is None or known.key != kind):
            key = (each.priority, each.namespace, None, each.group)
        if known is None or known.key != key:
            arrival, ready_at = (self.arrivals, None) if known is None else (known.arrival, known.ready_at)
            self.arrivals += 1
            self.tidy()
            known = Waiting(each, arrival, key, 0, ready_at)
        known.pod, known.version = each, self.signatures.version
        self.pods[each.uid] = known
        self.tidy()

    def take(self, uid):
        self.pods.pop(uid, None)
        self.tidy()

    def kind(self, each):
        return each.priority, each.namespace, self.signatures.of(each), each.group

    def mark_one(self, uid, requeue_on, now, considered):
        """It waits with its like from now on, if it has waited with others of its PodGroup."""
        known = self.pods[uid]
        if known.ready_at is None:
            known.key = self.kind(known.pod)
            self.tidy()
            self.mark([known.key], requeue_on, now, considered)

    def tidy(self):
        """There are states of alike pods of which some do not back off, and of no others."""
        keys = {each.key for each in self.pods.values() if each.ready_at is None}
        self.states = {key: self.states.get(key, State()) for key in keys}

    def retry(self, uid, now):
        failures = self.failures.get(uid, 0)
        self.failures[uid] = failures + 1
        self.pods[uid].ready_at = now + min(2.0**failures, SETTINGS.max_backoff_seconds)
        self.tidy()

    def mark(self, keys, requeue_on, now, considered):
        for state in (self.states[key] for key in keys):
            if state.since is None:
                state.since, state.requeue_on, state.considered = now, requeue_on, False
            elif state.considered:
                state.requeue_on |= requeue_on
            state.considered |= considered
            state.failed = self.cycle

    def of_pod_group(self, key):
        return [each for each in self.states if (each[1], each[3]) == key and each[3]]

    def heads(self, now, limit, resume, held_back):
        for each in list(self.pods.values()):
            if each.version != self.signatures.version:
                self.set(each.pod)
        ripe = [each for each in self.pods.values() if each.ready_at is not None and each.ready_at <= now]
        for each in ripe:
            each.ready_at = None
        self.tidy()
        for each in ripe:
            if each.pod.group:
                self.states[each.key].since = None
        for state in self.states.values():
            if state.since is not None and state.since + SETTINGS.flush_seconds <= now:
                state.since = None
        self.cycle += 1
        is_idle = all(state.since is not None or key[1] in held_back for key, state in self.states.items())
        if is_idle or not resume:
            self.pass_began = self.cycle
        if is_idle:
            return []
        lanes: dict[tuple[int, int], dict[str, list[Waiting]]] = {}
        for key, state in self.states.items():
            if (state.since is None or state.considered) and key[1] not in held_back:
                turn = state.failed if state.failed >= self.pass_began else -1
                alike = sorted((p for p in self.pods.values() if p.key == key and p.ready_at is None), key=place)
                lanes.setdefault((turn, -key[0]), {}).setdefault(key[1], []).extend(alike[:limit])
        found = []
        for (_, priority), by_namespace in sorted(lanes.items()):
            names = sorted(by_namespace)
            at = bisect_right(names, self.last.get(-priority, ""))
            queues = [sorted(by_namespace[name], key=place) for name in names[at:] + names[:at]]
            while any(queues):
                found += [pods.pop(0).pod for pods in queues if pods]
        return found


def young(name, namespace, second, **over):
    return pod(name, namespace=namespace, created=f"2026-03-01T12:00:0{second}Z", **over)


def place(waiting):
    return waiting.place


class Both(RuleBasedStateMachine):
    """Both queues have the same pods, and the same happens to them."""

    def __init__(self):
        super().__init__()
        self.signatures = PodSignatures()
        self.queue, self.model = Queue(SETTINGS, self.signatures), SortedQueue(self.signatures)
        self.selectors = []
        self.now, self.count = 1000.0, 0

    # --- pods come and go

    def make(self, data, name, namespace, second):
        over = {
            "priority": data.draw(st.sampled_from([0, 0, 5])),
            "labels": {"app": data.draw(st.sampled_from("xyz"))},
            "nodeSelector": {"of": data.draw(st.sampled_from("abcd"))},
        }
        if group := data.draw(st.sampled_from(["", "", "g"])):
            over["schedulingGroup"] = {"podGroupName": group}
        return young(name, namespace, second, **over)

    def set(self, each):
        self.queue.set(each)
        self.model.set(each)

    @initialize(unlike=st.sampled_from([0, 6, 40]))
    def begin(self, unlike):
        """With so many pods of a PodGroup, each unlike the others, and two that are of none."""
        for i in range(unlike):
            second, member = (unlike - i) % 4, {"schedulingGroup": {"podGroupName": "g"}}
            self.set(young(f"unlike-{i}", "n1", second, nodeSelector={"of": str(i)}, **member))
        for i in range(min(unlike, 2)):
            self.set(young(f"other-{i}", "n1", 3 * i, nodeSelector={"of": f"other-{i}"}))

    @rule(data=st.data(), namespace=st.sampled_from(["n1", "n2", "n3"]), second=st.integers(0, 3))
    def arrive(self, data, namespace, second):
        self.count += 1
        self.set(self.make(data, f"p{self.count}", namespace, second))

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data())
    def change(self, data):
        known = self.model.pods[self.one(data)].pod
        self.set(self.make(data, known.name, known.namespace, int(known.created) % 60))

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data())
    def remove(self, data):
        uid = self.one(data)
        self.queue.remove(uid)
        self.model.take(uid)
        self.model.failures.pop(uid, None)

    @precondition(lambda self: self.model.pods)
    @rule(data=st.data(), is_known=st.booleans())
    def fail_to_bind(self, data, is_known):
        uid = self.one(data)
        decided = self.model.pods[uid].pod
        if not is_known:  # it was taken from the queue when it was decided on
            self.queue.take(uid)
            self.model.take(uid)
            self.set(decided)
        self.queue.retry(uid, self.now)
        self.model.retry(uid, self.now)

    def one(self, data):
        return data.draw(st.sampled_from(sorted(self.model.pods)))

    # --- cycles

    @rule(
        resume=st.booleans(),
        limit=st.sampled_from([1, 2, 250]),
        held_back=st.sampled_from([(), (), ("n1",), ("n1", "n2"), ("n1", "n2", "n3")]),
        looked_at=st.integers(0, 4),
        requeue_on=st.sampled_from([Change.NODE, Change.CAPACITY]),
        data=st.data(),
    )
    def cycle(self, resume, limit, held_back, looked_at, requeue_on, data):
        """Looks at some of the heads, and finds nodes for some of these."""
        heads = list(self.queue.heads(self.now, limit, resume=resume, held_back=held_back.__contains__))
        want = self.model.heads(self.now, limit, resume, held_back)
        assert [each.name for each in heads] == [each.name for each in want]
        turns = {each.priority: each.namespace for each in heads[:looked_at]}
        self.queue.note_turns(turns)
        self.model.last.update(turns)
        for each in heads[:looked_at]:
            what = data.draw(st.sampled_from(["gang failed", "failed", "placed", "considered"]))
            if what == "placed":
                self.queue.take(each.uid)
                self.model.take(each.uid)
            elif what == "gang failed" and each.group:
                key = each.namespace, each.group
                self.queue.mark_pod_group(key, requeue_on, self.now)
                self.model.mark(self.model.of_pod_group(key), requeue_on, self.now, False)
            elif each.uid in self.model.pods:
                considered = what == "considered"
                self.queue.mark_all([(each.uid, requeue_on, considered)], self.now)
                self.model.mark_one(each.uid, requeue_on, self.now, considered)

    @rule(change=st.sampled_from([Change.NODE, Change.CAPACITY, Change.NODE | Change.CAPACITY]))
    def requeue(self, change):
        self.queue.requeue(change)
        for state in self.model.states.values():
            if state.since is not None and state.requeue_on & change:
                state.since = None

    @rule(namespace=st.sampled_from(["n1", "n2"]))
    def requeue_pod_group(self, namespace):
        self.queue.requeue_pod_group((namespace, "g"))
        for key in self.model.of_pod_group((namespace, "g")):
            self.model.states[key].since = None

    # --- time, and selectors that part pods

    @rule(seconds=st.sampled_from([0.5, 3.0, 20.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(selector=st.sampled_from([*SELECTORS, ALL_KEYS]))
    def select(self, selector):
        self.signatures.add_selector(selector)
        self.selectors.append(selector)

    @precondition(lambda self: self.selectors)
    @rule(data=st.data())
    def select_no_more(self, data):
        at = data.draw(st.integers(0, len(self.selectors) - 1))
        self.signatures.remove_selector(self.selectors.pop(at))

    @invariant()
    def both_have_the_same_pods(self):
        assert len(self.queue) == len(self.model.pods)
        assert all(self.queue.is_ready(uid) == (each.ready_at is None) for uid, each in self.model.pods.items())

    @invariant()
    def time_that_ends_a_wait_is_known(self):
        times = [each.ready_at for each in self.model.pods.values() if each.ready_at is not None]
        times += [each.since + SETTINGS.flush_seconds for each in self.model.states.values() if each.since is not None]
        if any(each.version != self.signatures.version for each in self.model.pods.values()):
            times = [-math.inf]
        assert self.queue.next_ready() == min(times, default=None)

    def teardown(self):
        """Nothing is kept of pods that are gone."""
        for uid in list(self.model.pods):
            self.queue.remove(uid)
        queue = self.queue
        assert not any((queue._waiting, queue._groups, queue._unschedulable, queue._index, queue._order._lanes))


TestBoth = Both.TestCase
TestBoth.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
