"""The ledger against a small honest world, in any order of events, with the operator killed at any point.

The world is what the API server and the nodes hold. The operator learns of it through two queues, one per kind, which
lag behind and repeat; agents report what they see, when they like. Each node has a fixed number of slots, and its agent
publishes the free ones among the pods it has seen, so two promises hold whatever happens:

- no node ever has more pods bound or promised than slots: nothing is given twice;
- once all pods have ended and all agents have spoken, every slot is free and every batch can be deleted.

In between, every number is compared with a naive recomputation of the identity from what the operator has seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment, Reservation, ReservationKey
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.ledger import Ledger
from support.scheduling_builders import capacity, pod, restored_ledger

NODES = ("a", "b")
SLOTS = {"a": 4, "b": 2}
OPEN_ENDED = 1e12


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        # The world
        self.pods: dict[str, PodView] = {}
        self.started: set[str] = set()
        self.over: set[str] = set()  # pods whose containers have ended, though they may run again
        self.versions = 0
        self.capacities: dict[str, NodeCapacity] = {}
        self.batches: dict[str, list[Assignment]] = {}
        self.standing: dict[ReservationKey, Reservation] = {}
        self.created = 0
        # On the way to the operator
        self.pod_events: deque[tuple[str, PodView | None]] = deque()
        self.capacity_events: deque[NodeCapacity] = deque()
        # The operator, and what it has seen or has decided
        self.ledger = Ledger()
        self.cycles = 0
        self.seen: dict[str, PodView] = {}
        self.ended: set[str] = set()
        self.statuses: dict[str, NodeCapacity] = {}
        self.assumed: dict[str, Assignment] = {}
        self.unsure: set[str] = set()

    @initialize()
    def begin(self):
        for node in NODES:
            self.publish(node)

    # --- the world goes on

    @rule(label=st.sampled_from(["x", "y"]))
    def create(self, label):
        self.created += 1
        name = f"p{self.created}"
        self._change(pod(name, uid=name, labels={"app": label}))

    @precondition(lambda self: any(p.node_name and not p.terminal for p in self.pods.values()))
    @rule(data=st.data())
    def start(self, data):
        self.started.add(data.draw(st.sampled_from([u for u, p in self.pods.items() if p.node_name])))

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def finish(self, data, phase):
        uid = data.draw(st.sampled_from(list(self.pods)))
        self._change(replace(self.pods[uid], phase=phase, counted=True, uses_nothing=False))

    @precondition(lambda self: any(p.node_name and not p.terminal for p in self.pods.values()))
    @rule(data=st.data(), over=st.booleans())
    def containers_end_or_start_again(self, data, over):
        uid = data.draw(st.sampled_from([u for u, p in self.pods.items() if p.node_name and not p.terminal]))
        self.over.add(uid)
        self._change(replace(self.pods[uid], counted=not over, uses_nothing=over))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data):
        uid = data.draw(st.sampled_from(list(self.pods)))
        del self.pods[uid]
        self.pod_events.append((uid, None))

    @rule(node=st.sampled_from(NODES))
    def publish(self, node):
        counted = [u for u, p in self.pods.items() if p.node_name == node and p.counted and not p.terminal]
        there = tuple(u for u in counted if u in self.started)
        self.versions += 1
        status = capacity(node, float(SLOTS[node] - len(there)), there, version=self.versions, at=float(self.versions))
        self.capacities[node] = status
        self.capacity_events.append(status)

    @rule(count=st.integers(1, 3), app=st.sampled_from(["x", "y"]), expires=st.sampled_from([None, 5.0]))
    def reserve(self, count, app, expires):
        key = ("default", f"r{len(self.standing)}")
        selector = LabelSelector.from_raw({"matchLabels": {"app": app}})
        self.standing[key] = Reservation(*key, f"uid-{key[1]}", selector, count, expires_at=expires)
        self.ledger.reservations.set(self.standing[key])

    # --- what the operator sees

    @precondition(lambda self: self.pod_events)
    @rule(again=st.booleans())
    def hear_of_pod(self, again):
        uid, seen = self.pod_events[0] if again else self.pod_events.popleft()
        if seen is None:
            last = self.seen.pop(uid, None)
            if uid in self.assumed or (last is not None and last.node_name):
                self.ended.add(uid)
            self.ledger.remove_pod(uid)
            self.assumed.pop(uid, None)
        else:
            self.seen[uid] = seen
            self.ledger.set_pod(seen, float(self.cycles))
            if seen.terminal or seen.node_name:
                self.assumed.pop(uid, None)
            if seen.terminal:
                self.ended.add(uid)

    @precondition(lambda self: self.capacity_events)
    @rule(again=st.booleans())
    def hear_of_capacity(self, again):
        status = self.capacity_events[0] if again else self.capacity_events.popleft()
        self.ledger.set_capacity(status, float(self.cycles))
        if status.name not in self.statuses or (
            int(status.resource_version) > int(self.statuses[status.name].resource_version)
        ):
            self.statuses[status.name] = status

    # --- the operator decides

    @rule(data=st.data(), most=st.integers(1, 4))
    def cycle(self, data, most):
        """Promise, store; then each binding works, fails, or ends with nobody knowing how."""
        decided = []
        for uid, seen in list(self.seen.items()):
            if len(decided) == most or seen.node_name or seen.terminal or uid in self.assumed:
                continue
            key = self.ledger.reservations.for_pod(seen)
            own = self.ledger.reservations.held_by(key) if key is not None else {}
            node = data.draw(st.sampled_from(NODES))
            if (self.ledger.nodes.available(node) or 0) + own.get(node, 0) < 1:
                continue
            claim = key if own.get(node, 0) else None
            made = Assignment("default", seen.name, uid, node, "Capacity", "1", 1.0, reservation=claim)
            assert self.ledger.assume(made, float(self.cycles))
            self.assumed[uid] = made
            decided.append(made)
        if not decided:
            return
        self.cycles += 1
        if data.draw(st.booleans(), label="stored"):
            self.batches[f"cycle-{self.cycles}"] = decided
            self.ledger.open_record(f"cycle-{self.cycles}", decided)
            for made in decided:
                self._bind(made, data.draw(st.sampled_from(["works", "fails", "unknown", "unknown, worked"])))
        else:
            for made in decided:
                self._take_back(made.uid)

    def _bind(self, made: Assignment, end: str) -> None:
        current = self.pods.get(made.uid)
        possible = current is not None and not current.node_name and not current.terminal
        if possible and "work" in end:
            self._change(replace(current, node_name=made.node, phase="Running"))
        if "unknown" in end:
            self.unsure.add(made.uid)
        elif possible and end == "works":
            self.ledger.confirm(made.uid)
        else:
            self._take_back(made.uid)

    @precondition(lambda self: self.unsure)
    @rule(data=st.data())
    def read_back(self, data):
        uid = data.draw(st.sampled_from(sorted(self.unsure)))
        self.unsure.discard(uid)
        current = self.pods.get(uid)
        if current is not None and current.node_name:
            self.ledger.confirm(uid)
        else:
            self._take_back(uid)

    def _take_back(self, uid: str) -> None:
        if self.ledger.forget(uid):
            del self.assumed[uid]

    @precondition(lambda self: self.standing)
    @rule(data=st.data())
    def hold(self, data):
        """Place units that are not held yet where there is room."""
        key = data.draw(st.sampled_from(list(self.standing)))
        state = self.ledger.reservations.state(key)
        placements = dict(state.held)
        for _ in range(state.remaining - sum(placements.values())):
            node = data.draw(st.sampled_from(NODES))
            extra = placements.get(node, 0) - state.held.get(node, 0)
            if (self.ledger.nodes.available(node) or 0) - extra >= 1:
                placements[node] = placements.get(node, 0) + 1
        self.ledger.reservations.hold(key, placements)

    @precondition(lambda self: self.standing)
    @rule(data=st.data())
    def write_standing(self, data):
        key = data.draw(st.sampled_from(list(self.standing)))
        state = self.ledger.reservations.state(key)
        self.standing[key] = replace(self.standing[key], placements=dict(state.held), consumed=dict(state.consumed))
        self.ledger.reservations.set(self.standing[key])

    @rule()
    def expire(self):
        self.ledger.reservations.expire(float(self.cycles))

    @rule()
    def release(self):
        for name in self.ledger.closable_records():
            del self.batches[name]
            self.ledger.close_record(name)

    @rule()
    def crash(self):
        """Whoever takes over lists everything first; what was on the way is in the lists."""
        self.pod_events.clear()
        self.capacity_events.clear()
        self.unsure.clear()
        self.assumed.clear()
        self.seen = dict(self.pods)
        self.statuses = dict(self.capacities)
        self.ended = {u for u, p in self.pods.items() if p.terminal}
        self.ledger = restored_ledger(
            self.pods.values(),
            self.capacities.values(),
            self.batches,
            self.standing.values(),
            now=float(self.cycles),
        )

    def _change(self, new: PodView) -> None:
        self.pods[new.uid] = new
        self.pod_events.append((new.uid, new))

    # --- what must hold

    @invariant()
    def the_numbers_are_those_of_a_naive_recomputation(self):
        for node, status in ((n, self.statuses.get(n)) for n in NODES):
            if status is None:
                continue
            observed = set(status.status.observed_pod_uids)
            there = {
                u: p for u, p in self.seen.items() if p.node_name == node and not p.terminal and u not in self.ended
            }
            live = {u for u, p in there.items() if p.counted}
            live |= {u for u, a in self.assumed.items() if a.node == node}
            held = sum(self.ledger.reservations.state(key).held.get(node, 0) for key in self.standing)
            credited = observed & (self.ended | (there.keys() - live))
            want = status.status.capacity - len(live - observed) + len(credited) - held
            assert self.ledger.nodes.available(node) == want
            assert self.ledger.nodes.in_flight(node) == len(live - observed)

    @invariant()
    def nothing_is_given_twice(self):
        for node in NODES:
            bound = {u for u, p in self.pods.items() if p.node_name == node and not p.terminal} - self.over
            promised = {u for u, a in self.assumed.items() if a.node == node and u in self.pods}
            assert len(bound | promised) <= SLOTS[node]

    @invariant()
    def reservations_hold_no_more_than_is_left_of_them(self):
        for key, view in self.standing.items():
            state = self.ledger.reservations.state(key)
            assert all(units > 0 for units in state.held.values())
            assert sum(state.held.values()) <= (0 if state.expired else max(view.count - len(state.consumed), 0))

    def teardown(self):
        """In the end everything is free again."""
        for uid in sorted(self.unsure):
            self.unsure.discard(uid)
            current = self.pods.get(uid)
            if current is not None and current.node_name:
                self.ledger.confirm(uid)
            else:
                self._take_back(uid)
        while self.pod_events:
            self.hear_of_pod(again=False)
        for uid in list(self.pods):
            del self.pods[uid]
            self.pod_events.append((uid, None))
        while self.pod_events:
            self.hear_of_pod(again=False)
        for node in NODES:
            self.publish(node)
        while self.capacity_events:
            self.hear_of_capacity(again=False)
        self.ledger.reservations.expire(OPEN_ENDED)
        for key, view in self.standing.items():
            consumed = dict(self.ledger.reservations.state(key).consumed)
            self.ledger.reservations.set(replace(view, consumed=consumed))
            self.ledger.reservations.hold(key, {})
        for node in NODES:
            assert self.ledger.nodes.available(node) == SLOTS[node]
            assert self.ledger.nodes.in_flight(node) == 0
        self.release()
        assert self.batches == {}


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
