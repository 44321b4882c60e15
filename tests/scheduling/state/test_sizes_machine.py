"""The cluster's account of large pods against a naive one, after any events in any order.

Nodes, their capacities and pods come, change and go, decisions are assumed, confirmed and taken back, and agents name
pods as large, rightly or not. After each event, what every node's pods take is counted again from what is there.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import NOW, capacity, node, pod

NAMES = ("a", "b", "c")
UIDS = tuple(f"p{i}" for i in range(6))
MINUTE = 60.0
CPUS = {"a": 1000, "b": 4000, "c": 64000}


class SnapshotMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.cluster = ClusterState()
        self.version = 0
        self.now = NOW
        self.nodes: set[str] = set()
        self.reported: dict[str, NodeCapacity] = {}
        self.reported_at: dict[str, float] = {}
        self.placed: dict[str, str] = {}  # node by pod that has not ended
        self.bound: set[str] = set()
        self.ended: set[str] = set()
        self.claims: dict[str, tuple[float, float | None]] = {}  # share, and when it was first counted
        self.failing: set[str] = set()  # on nodes, and using nothing
        self.over: set[str] = set()  # of these, those of which all containers have ended
        self.set_aside: dict[str, float] = {}  # share that is claimed for them again when they start

    # --- nodes

    @rule(name=st.sampled_from(NAMES))
    def node_comes(self, name):
        self.cluster.set_node(node(name, allocatable={"cpu": CPUS[name]}))
        if name not in self.nodes and name in self.reported:
            self.counts(name)  # shares of the node's CPUs can be amounts now
        self.nodes.add(name)

    @rule(name=st.sampled_from(NAMES))
    def node_goes(self, name):
        self.cluster.remove_node(name)
        self.nodes.discard(name)

    @rule(
        name=st.sampled_from(NAMES),
        observed=st.sets(st.sampled_from(UIDS)),
        large=st.dictionaries(st.sampled_from(UIDS), st.sampled_from([0.3, 1.0]), max_size=3),
        share=st.sampled_from([None, 0.0, 0.1, 0.4]),
        spare=st.sampled_from([0.0, 0.5, 1.0]),
        later=st.sampled_from([0.0, MINUTE / 2, MINUTE]),
    )
    def agent_speaks(self, name, observed, large, share, spare, later):
        self.now += later
        self.version += 1
        status = capacity(
            name, 5.0, tuple(observed), version=self.version, at=self.now, large=large, pod_share=share,
            spare_share=spare,
        )  # fmt: skip
        self.cluster.set_capacity(status, self.now)
        self.reported[name] = status
        self.reported_at[name] = self.now
        self.counts(name)

    def counts(self, name: str) -> None:
        """The node's last status is read: claims of pods that it names end, of those that it counts within a minute."""
        at, status = self.reported_at[name], self.reported[name].status
        for uid in [uid for uid in self.set_aside if self.placed[uid] == name and uid in status.large_pods]:
            del self.set_aside[uid]
        named = {*status.observed_pod_uids, *status.large_pods}
        for uid in [uid for uid in self.claims if self.placed[uid] == name and uid in named]:
            kept, since = self.claims[uid]
            since = at if since is None else min(at, since)
            if uid in status.large_pods or at - since >= MINUTE:
                del self.claims[uid]
            else:
                self.claims[uid] = (kept, since)

    @rule(name=st.sampled_from(NAMES))
    def capacity_goes(self, name):
        self.cluster.remove_capacity(name)
        self.reported.pop(name, None)

    # --- pods

    @precondition(lambda self: self.nodes)
    @rule(uid=st.sampled_from(UIDS), millicores=st.sampled_from([0.0, 900.0, 3900.0]), data=st.data())
    def assume(self, uid, millicores, data):
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        made = Assignment("default", uid, uid, name, "Capacity", "1", 1.0)
        done = self.cluster.assume(self.view(uid), made, self.now, millicores)
        assert done == (uid not in self.placed and uid not in self.ended)
        if done:
            self.placed[uid] = name
            if millicores:
                self.claims[uid] = (min(1.0, millicores / CPUS[name]), None)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def confirm(self, data):
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        self.cluster.confirm(uid)
        self.bound.add(uid)

    @rule(uid=st.sampled_from(UIDS))
    def forget(self, uid):
        self.cluster.forget(uid)
        if uid not in self.bound:
            self.leave(uid)

    @rule(uid=st.sampled_from(UIDS), name=st.sampled_from(NAMES), resized=st.booleans())
    def seen_bound(self, uid, name, resized):
        view = self.view(uid, name)
        placed = self.cluster._placed.get(uid)
        before = placed and placed.pod
        self.cluster.set_pod(replace(view, requests={"cpu": 500}) if resized else view, self.now)
        if uid in self.ended:
            return
        as_before = before is not None and dict(before.requests) == ({"cpu": 500} if resized else {})
        if self.placed.get(uid) != name or not as_before:
            self.claims.pop(uid, None)
            self.set_aside.pop(uid, None)
        elif uid in self.set_aside:
            self.claims[uid] = (self.set_aside.pop(uid), None)
        self.failing.discard(uid)
        self.placed[uid] = name
        self.bound.add(uid)

    @precondition(lambda self: self.placed)
    @rule(data=st.data(), has_run=st.booleans())
    def does_not_start_or_is_over(self, data, has_run):
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        requests = self.cluster._placed.get(uid).pod.requests
        nothing = {"counted": False, "uses_nothing": True, "start_fails": not has_run}
        self.cluster.set_pod(replace(self.view(uid, self.placed[uid]), requests=requests, **nothing), self.now)
        self.failing.add(uid)
        (self.over.add if has_run else self.over.discard)(uid)
        self.bound.add(uid)
        if uid in self.claims:
            self.set_aside[uid] = self.claims.pop(uid)[0]

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def ends(self, data):
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        self.cluster.set_pod(replace(self.view(uid, self.placed[uid]), phase="Succeeded"), self.now)
        self.leave(uid)
        self.ended.add(uid)

    @precondition(lambda self: self.placed)
    @rule(data=st.data())
    def goes(self, data):
        uid = data.draw(st.sampled_from(sorted(self.placed)))
        self.cluster.remove_pod(uid)
        if uid not in self.failing or uid in self.over:  # what has used nothing is not remembered
            self.ended.add(uid)
        self.leave(uid)

    def view(self, uid: str, name: str = "") -> PodView:
        return pod(uid, uid=uid, labels={"kind": (uid[-1:] < "3" and "x") or "y"}, nodeName=name)

    def leave(self, uid: str) -> None:
        self.placed.pop(uid, None)
        self.claims.pop(uid, None)
        self.bound.discard(uid)
        self.failing.discard(uid)
        self.set_aside.pop(uid, None)

    # --- what must hold

    @invariant()
    def every_node_s_account_is_what_is_there(self):
        made = self.cluster
        assert made.large_pods._claims.keys() == self.claims.keys()
        assert made.large_pods._set_aside.keys() == self.set_aside.keys()
        assert sorted(uid for uids in made.large_pods._claims_on.values() for uid in uids) == sorted(self.claims)
        for name, row in made.row_of.items():
            here = {uid for uid, on in self.placed.items() if on == name and uid not in self.failing}
            claims = here & self.claims.keys()
            claimed = sum(self.claims[uid][0] for uid in claims)
            status = self.reported[name].status if name in self.reported else None
            named = set() if status is None else status.large_pods.keys()
            units = len(here - claims - named)
            assert made.large_pods._live[row] == len(here)
            assert made.large_pods._units[row] == units
            assert made.large_pods._claimed[row] == pytest.approx(claimed)
            if status is None:
                assert (
                    made.large_pods.taken(slice(0, made.size))[row] != made.large_pods.taken(slice(0, made.size))[row]
                )  # NaN
                continue
            share = status.pod_share
            others = max(0.0, claimed / share - len(claims)) if share and claims else 0.0
            assert made.measured.available[row] == pytest.approx(made.ledger.nodes.available(name) - others)
            if share is not None:
                taken = 1.0 - status.spare_share + claimed + units * share
                assert made.large_pods.taken(slice(0, made.size))[row] == pytest.approx(taken)

    @invariant()
    def what_is_known_of_pods_is_of_those_that_are_there(self):
        sizes = self.cluster.large_pods.sizes
        assert sizes._placed.keys() == self.placed.keys()
        nodes = {
            kind: {on for other, on in sizes._placed.values() if other == kind} for kind, _ in sizes._placed.values()
        }
        assert {kind: {*sizes._nodes.of(kind)} for kind in sizes._nodes._nodes} == nodes
        assert sizes._max_millicores.keys() <= self.placed.keys()
        assert sizes._reported.keys() <= self.reported.keys()
        assert all(kind.large >= 0.0 and kind.ordinary >= 0.0 for kind in sizes._kinds.values())
        assert not self.cluster.large_pods.draining.any()


TestSnapshot = SnapshotMachine.TestCase
TestSnapshot.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
