"""The fast cycle against a naive one that looks at each node by itself, on random clusters and streams of events.

The naive cycle keeps nothing: for each pod it counts anew what is on every node from the lists of nodes, pods and
statuses. The two must agree on every placement, every recorded number and every event message.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from concerto.api.node import NodeView, Taint
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.pod import PodView
from concerto.api.pod_constraints import WILDCARD, HostPort
from concerto.api.podreservation import Reservation
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.selectors import LabelSelector
from concerto.scheduling.cycle import schedule
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState
from support.scheduling_builders import GI, capacity, node, pod

STALE = 300.0
PROFILES = {
    "concerto": Profile.build(ProfileSettings("concerto", tie_breaking="FirstByName")),
    "careful": Profile.build(
        ProfileSettings("careful", tie_breaking="FirstByName", metrics_policy="Avoid", admit_fraction=0.5)
    ),
}
NAMES = [f"n{i}" for i in range(6)]
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def expressions(*items):
    terms = [{"matchExpressions": [{"key": k, "operator": o, "values": list(v)}]} for k, o, v in items]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def named(operator, name):
    fields = [{"key": "metadata.name", "operator": operator, "values": [name]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": fields}]}}}}


def refusing(app, key="zone"):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def wanting(app, key="zone"):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAffinity": {REQUIRED: [term]}}}


def spreading(app, key="zone", skew=1, unsatisfiable="DoNotSchedule"):
    constraint = {"topologyKey": key, "maxSkew": skew, "labelSelector": {"matchLabels": {"app": app}}}
    return {"topologySpreadConstraints": [constraint | {"whenUnsatisfiable": unsatisfiable}]}


def preferring(app, weight, key="zone"):
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}
    kind = "podAffinity" if weight > 0 else "podAntiAffinity"
    return {"affinity": {kind: {PREFERRED: [{"weight": abs(weight), "podAffinityTerm": term}]}}}


def port(number, ip=None):
    host = {"hostPort": number} | ({"hostIP": ip} if ip else {})
    return {"containers": [{"name": "c", "ports": [host], "resources": {}}]}


TEMPLATES = [
    {},
    {"requests": {"cpu": "700m"}},
    {"requests": {"cpu": "500m", "memory": "1Gi", "example.com/gpu": "1"}},
    {"requests": {"example.com/none": "1"}},
    {"nodeSelector": {"zone": "a"}},
    {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    {"tolerations": [{"operator": "Exists"}]},
    expressions(("zone", "NotIn", "a"), ("size", "Gt", "3")),
    expressions(("size", "Lt", "4"), ("gpu", "DoesNotExist", "")),
    named("In", "n1"),
    named("NotIn", "n2"),
    port(80),
    port(80, "10.0.0.1"),
    port(80, "10.0.0.2"),
    refusing("x"),
    wanting("x"),
    wanting("y", "kubernetes.io/hostname"),
    refusing("y", "kubernetes.io/hostname"),
    spreading("x"),
    spreading("y", "kubernetes.io/hostname", 2),
    spreading("y", skew=2, unsatisfiable="ScheduleAnyway"),
    preferring("x", 5),
    preferring("y", -7),
    {"schedulingGates": [{"name": "g"}]},
    {"owner": "DaemonSet"},
]
nodes = st.builds(
    node,
    st.sampled_from(NAMES),
    labels=st.fixed_dictionaries(
        {}, optional={"zone": st.sampled_from("ab"), "size": st.sampled_from("2345"), "gpu": st.just("")}
    ),
    taints=st.lists(
        st.sampled_from([("gpu", "", "NoSchedule"), ("gpu", "", "PreferNoSchedule"), ("bad", "x", "NoExecute")]),
        max_size=2,
        unique=True,
    ),
    allocatable=st.fixed_dictionaries(
        {"cpu": st.sampled_from([1000, 2500, 4000]), "memory": st.sampled_from([GI, 8 * GI])},
        optional={"example.com/gpu": st.sampled_from([1, 2]), "pods": st.sampled_from([0, 2, 3, 110])},
    ),
    unschedulable=st.sampled_from([False] * 5 + [True]),
    ready=st.sampled_from([True] * 5 + [False]),
)


def conflict(one: HostPort, other: HostPort) -> bool:
    """Whether one node cannot have both."""
    same = (one.port, one.protocol) == (other.port, other.protocol)
    return same and (one.ip == other.ip or WILDCARD in (one.ip, other.ip))


class Naive:
    """All that has been said, and nothing kept of it but the last word."""

    def __init__(self):
        self.nodes: dict[str, NodeView] = {}
        self.capacities: dict[str, tuple[NodeCapacity, float]] = {}
        self.pods: dict[str, PodView] = {}  # waiting or bound
        self.assumed: dict[str, tuple[str, str | None]] = {}  # to node, using the reservation
        self.ended: set[str] = set()
        self.standing: dict[str, dict[str, int]] = {}  # held units by reservation and node
        self.selectors: dict[str, str] = {}  # the app each reservation is for

    def on(self, name):
        return [
            p
            for uid, p in self.pods.items()
            if not p.terminal and (p.node_name or self.assumed.get(uid, ("",))[0]) == name
        ]

    def available(self, name):
        status = self.capacities[name][0].status
        allowed = self.nodes[name].allocatable.get("pods", 0)
        believed = max(-allowed, min(status.capacity, allowed))
        observed = set(status.observed_pod_uids)
        counted = {p.uid for p in self.on(name) if p.counted}
        held = sum(places.get(name, 0) for places in self.standing.values())
        return believed - len(counted - observed) + len(observed & self.ended) - held

    def basis(self, name, profile, now):
        if name in self.capacities and now - self.capacities[name][1] <= STALE:
            return "Capacity"
        return "Requests" if profile.settings.metrics_policy == "FallbackToRequests" else "Avoid"

    def refusals(self, p, n, profile, now, held):
        """Reasons of the first filter that refuses the node; none if none does."""
        shape = p.shape
        tolerates = shape.tolerates
        names = shape.node_selector.named_nodes
        if names is not None and n.name not in names:
            return ["node(s) didn't satisfy plugin(s) [NodeAffinity]"]
        if n.unschedulable and not tolerates(Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")):
            return ["node(s) were unschedulable"]
        if not n.ready and not tolerates(Taint("node.kubernetes.io/not-ready", "", "NoSchedule")):
            return ["node(s) were not ready"]
        for taint in n.taints:
            if taint.effect != "PreferNoSchedule" and not tolerates(taint):
                return ["node(s) had untolerated taint(s)"]
        if not shape.node_selector.matches(n.name, n.labels):
            return ["node(s) didn't match Pod's node affinity/selector"]
        there = self.on(n.name)
        if any(conflict(mine, theirs) for mine in shape.host_ports for o in there for theirs in o.shape.host_ports):
            return ["node(s) didn't have free ports for the requested pod ports"]
        lacking = ["Too many pods"] if len(there) + 1 > n.allocatable.get("pods", 0) else []
        for resource, amount in shape.requests.items():
            if sum(o.requests.get(resource, 0) for o in there) + amount > n.allocatable.get(resource, 0):
                lacking.append(f"Insufficient {resource}")
        if lacking:
            return lacking
        if shape.unsupported:
            return [f"pod has {c}, which Concerto does not evaluate" for c in shape.unsupported]
        return self.of_capacity(p, n, profile, now, held) or self.of_spread(p, n) or self.of_pods(p, n)

    def of_spread(self, p, n):
        for c in p.shape.hard_spread:
            if c.topology_key not in n.labels:
                return ["node(s) didn't match pod topology spread constraints (missing required label)"]
            totals = Counter()
            for other in self.nodes.values():
                domain = other.labels.get(c.topology_key)
                if domain is not None and p.shape.node_selector.matches(other.name, other.labels):
                    totals[domain] += sum(
                        o.namespace == p.namespace and not o.deleting and c.selector.matches(o.labels)
                        for o in self.on(other.name)
                    )
            itself = c.selector.matches(p.labels)
            if totals[n.labels[c.topology_key]] + itself - min(totals.values(), default=0) > c.max_skew:
                return ["node(s) didn't match pod topology spread constraints"]
        return []

    def in_domain(self, n, key):
        place = n.labels.get(key)
        others = [o for o in self.nodes.values() if place is not None and o.labels.get(key) == place]
        return [p for other in others for p in self.on(other.name)]

    def of_pods(self, p, n):
        for term in p.shape.affinity:
            everywhere = [o for other in self.nodes.values() for o in self.in_domain(other, term.topology_key)]
            some = any(term.selects(p.namespace, o.namespace, o.labels, {}) for o in everywhere)
            first = not some and term.selects(p.namespace, p.namespace, p.labels, {})
            here = any(
                term.selects(p.namespace, o.namespace, o.labels, {}) for o in self.in_domain(n, term.topology_key)
            )
            if term.topology_key not in n.labels or not (here or first):
                return ["node(s) didn't match pod affinity rules"]
        for term in p.shape.anti_affinity:
            if any(term.selects(p.namespace, o.namespace, o.labels, {}) for o in self.in_domain(n, term.topology_key)):
                return ["node(s) didn't match pod anti-affinity rules"]
        for other in self.nodes.values():
            for o in self.on(other.name):
                for term in o.shape.anti_affinity:
                    place = other.labels.get(term.topology_key)
                    same = place is not None and n.labels.get(term.topology_key) == place
                    if same and term.selects(o.namespace, p.namespace, p.labels, {}):
                        return ["node(s) didn't satisfy existing pods anti-affinity rules"]
        return []

    def of_capacity(self, p, n, profile, now, held):
        if not p.counted:
            return []
        by_requests = self.basis(n.name, profile, now) == "Requests"
        if by_requests and n.name not in self.capacities:
            any_measured = any(self.basis(other, profile, now) == "Capacity" for other in self.nodes)
            if any_measured and sum(o.counted for o in self.on(n.name)) >= 5:
                return ["node(s) had their ration of 5 pods until their agent reports"]
            return []
        match "Capacity" if by_requests else self.basis(n.name, profile, now):
            case "Capacity" if self.available(n.name) + held.get(n.name, 0) < profile.settings.admit_fraction:
                all_held = sum(places.get(n.name, 0) for places in self.standing.values())
                if self.available(n.name) + all_held >= profile.settings.admit_fraction:
                    return ["node(s) had their measured capacity held by PodReservations"]
                return ["Insufficient measured capacity"]
            case "Avoid" if n.name in self.capacities:
                return ["node(s) had stale telemetry"]
            case "Avoid":
                return ["node(s) had no measured capacity"]
        return []

    def with_wishes(self, p, capacities):
        """Weighted means with the scores for soft taints, constraints and terms, where nodes differ by them."""
        given = [(2, capacities)]
        taints = {
            n: sum(t.effect == "PreferNoSchedule" and not p.shape.tolerates(t) for t in self.nodes[n].taints)
            for n in self.nodes
        }
        if any(taints.values()):
            most = max(taints[n] for n in capacities)
            given.append((3, {n: 100 - 100 * taints[n] // most if most else 100 for n in capacities}))
        if p.shape.soft_spread and (spread := self.soft_spread(p, capacities)):
            given.append((2, spread))
        sums = {n: sum(self.weights(p, self.nodes[n])) for n in capacities}
        least, most = min(sums.values()), max(sums.values())
        if least < most:
            given.append((2, {n: math.floor(100 * ((s - least) / (most - least))) for n, s in sums.items()}))
        weights = sum(w for w, _ in given)
        return {n: sum(w * s[n] for w, s in given) / weights for n in capacities}

    def soft_spread(self, p, names):
        (c,) = p.shape.soft_spread
        candidates = [n for n in names if c.topology_key in self.nodes[n].labels]
        counts = Counter()
        for other in self.nodes.values():
            if c.topology_key in other.labels and p.shape.node_selector.matches(other.name, other.labels):
                counts[other.labels[c.topology_key]] += sum(
                    o.namespace == p.namespace and not o.deleting and c.selector.matches(o.labels)
                    for o in self.on(other.name)
                )
        domain = {n: self.nodes[n].labels[c.topology_key] for n in candidates}
        weight = math.log(len(set(domain.values())) + 2)
        sums = {n: math.floor(counts[domain[n]] * weight + c.max_skew - 1 + 0.5) for n in candidates}
        if not sums:
            return {}
        least, most = min(sums.values()), max(sums.values())
        return {n: (100 * (most + least - sums[n]) // most if most else 100) if n in sums else 0 for n in names}

    def weights(self, p, n):
        """Of each preferred term that is met on the node: the pod's, and those of pods there, required ones as 1."""
        for weight, term in p.shape.soft_affinity:
            for o in self.in_domain(n, term.topology_key):
                if term.selects(p.namespace, o.namespace, o.labels, {}):
                    yield weight
        for other in self.nodes.values():
            for o in self.on(other.name):
                for weight, term in (*o.shape.soft_affinity, *((1, term) for term in o.shape.affinity)):
                    place = other.labels.get(term.topology_key)
                    same = place is not None and n.labels.get(term.topology_key) == place
                    if same and term.selects(o.namespace, p.namespace, p.labels, {}):
                        yield weight

    def by_requests(self, p, n):
        there = self.on(n.name)
        cpu, memory = p.shape.nonzero_cpu_millicores, p.shape.nonzero_memory_bytes
        return max(
            0.0,
            min(
                n.allocatable.get("pods", 0) - len(there),
                (n.allocatable["cpu"] - sum(o.shape.nonzero_cpu_millicores for o in there)) / cpu,
                (n.allocatable["memory"] - sum(o.shape.nonzero_memory_bytes for o in there)) / memory,
            ),
        )

    def decide(self, p, profile, now):
        """(node, basis, available, score, reservation), or the event's message."""
        key = next(
            (
                k
                for k in sorted(self.standing)
                if any(self.standing[k].values())
                and p.counted
                and p.namespace == "default"
                and p.labels.get("app") == self.selectors[k]
            ),
            None,
        )
        held = self.standing.get(key, {})
        reasons = Counter()
        feasible = {}
        for n in self.nodes.values():
            refused = self.refusals(p, n, profile, now, held)
            reasons.update(refused)
            if not refused:
                basis = self.basis(n.name, profile, now)
                room = self.available(n.name) + held.get(n.name, 0) if basis == "Capacity" else self.by_requests(p, n)
                feasible[n.name] = (basis, room)
        if not feasible:
            if not self.nodes:
                return "no nodes available to schedule pods"
            counted = sorted(f"{c} {r}" for r, c in reasons.items())
            return f"0/{len(self.nodes)} nodes are available: {', '.join(counted)}."
        measured = [room for basis, room in feasible.values() if basis == "Capacity"]
        mean = sum(measured) / len(measured) if measured else math.inf
        rooms = {}
        for n, (basis, room) in feasible.items():
            rooms[n] = room
            if basis != "Capacity":
                last = self.available(n) + held.get(n, 0) if n in self.capacities else math.inf
                rooms[n] = min(max(0.0, min(room, last)), mean)
        greatest = max(rooms.values())
        second = sorted([0.0, *rooms.values()])[-2]
        if second > 0:
            greatest = min(greatest, 10 * second)
        scores = {
            n: min(100.0, math.floor(100 * room / greatest + 0.5)) if greatest > 0 else 0.0 for n, room in rooms.items()
        }
        scores = self.with_wishes(p, scores)
        if any(held.get(n, 0) for n in scores):
            scores = {n: s for n, s in scores.items() if held.get(n, 0)}
        best = min(scores, key=lambda n: (-scores[n], n))
        basis, room = feasible[best]
        return best, basis, room, scores[best], key if held.get(best, 0) else None

    def assume(self, p, target, key):
        self.assumed[p.uid] = (target, key)
        if key is not None:
            self.standing[key][target] -= 1


class CycleMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.naive = Naive()
        self.cluster = ClusterState()
        self.now = 1000.0
        self.versions = 0
        self.created = 0

    @rule(view=nodes)
    def set_node(self, view):
        self.naive.nodes[view.name] = view
        self.cluster.set_node(view)

    @precondition(lambda self: self.naive.nodes)
    @rule(data=st.data())
    def remove_node(self, data):
        name = data.draw(st.sampled_from(sorted(self.naive.nodes)))
        del self.naive.nodes[name]
        self.cluster.remove_node(name)

    @rule(data=st.data(), name=st.sampled_from(NAMES), quarters=st.integers(0, 24), age=st.sampled_from([0.0, 900.0]))
    def publish(self, data, name, quarters, age):
        candidates = sorted({p.uid for p in self.naive.on(name) if p.counted} | self.naive.ended)
        seen = data.draw(st.lists(st.sampled_from(candidates), unique=True, max_size=6) if candidates else st.just([]))
        self.versions += 1
        at = self.now - age - self.versions / 1000
        published = capacity(name, quarters / 4, tuple(seen), version=self.versions, at=at)
        received = at if name not in self.naive.capacities else self.now
        self.naive.capacities[name] = (published, received)
        self.cluster.set_capacity(published, self.now)

    @precondition(lambda self: self.naive.capacities)
    @rule(data=st.data())
    def remove_capacity(self, data):
        name = data.draw(st.sampled_from(sorted(self.naive.capacities)))
        del self.naive.capacities[name]
        self.cluster.remove_capacity(name)

    @rule(
        template=st.sampled_from(TEMPLATES),
        app=st.sampled_from(["x", "y"]),
        namespace=st.sampled_from(["default", "other"]),
        scheduler=st.sampled_from(["concerto", "concerto", "careful", "default-scheduler"]),
        count=st.integers(1, 3),
    )
    def create(self, template, app, namespace, scheduler, count):
        if "owner" in template and scheduler == "careful":
            scheduler = "concerto"  # its pods may go to nodes that are avoided, where Capacity has no score
        for _ in range(count):
            self.created += 1
            over = {"labels": {"app": app}, "namespace": namespace, "schedulerName": scheduler, **template}
            self._set(pod(f"p{self.created}", uid=f"p{self.created}", **over))

    @precondition(lambda self: self.naive.pods)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def somebody_else_binds(self, data, name):
        uid = data.draw(st.sampled_from(list(self.naive.pods)))
        p = self.naive.pods[uid]
        if not p.node_name and not p.terminal and uid not in self.naive.assumed:
            self._set(replace(p, node_name=name, phase="Running"))

    @precondition(lambda self: self.naive.assumed)
    @rule(data=st.data(), bound=st.booleans())
    def hear_of_binding(self, data, bound):
        uid = data.draw(st.sampled_from(sorted(self.naive.assumed)))
        target, key = self.naive.assumed.pop(uid)
        if bound:
            self._set(replace(self.naive.pods[uid], node_name=target, phase="Running"))
        else:
            if key is not None:
                self.naive.standing[key][target] += 1
            self.cluster.forget(uid)

    @precondition(lambda self: self.naive.pods)
    @rule(data=st.data(), gone=st.booleans())
    def end(self, data, gone):
        uid = data.draw(st.sampled_from(list(self.naive.pods)))
        p = self.naive.pods[uid]
        target, key = self.naive.assumed.pop(uid, (None, None))
        if key is not None:
            self.naive.standing[key][target] += 1
        if p.counted and (p.node_name or target or not gone):
            self.naive.ended.add(uid)
        if gone:
            del self.naive.pods[uid]
            self.cluster.remove_pod(uid)
        else:
            self._set(replace(p, phase="Succeeded"))

    @precondition(lambda self: self.naive.pods)
    @rule(data=st.data())
    def repeat(self, data):
        self.cluster.set_pod(data.draw(st.sampled_from(list(self.naive.pods.values()))), self.now)

    @rule(name=st.sampled_from(NAMES), units=st.integers(1, 2), app=st.sampled_from(["x", "y"]))
    def reserve(self, name, units, app):
        if len(self.naive.standing) == 2:
            return
        key = f"r{len(self.naive.standing)}"
        selector = LabelSelector.from_raw({"matchLabels": {"app": app}})
        self.naive.standing[key] = {name: units}
        self.naive.selectors[key] = app
        self.cluster.set_reservation(Reservation("default", key, key, selector, units, placements={name: units}))

    @rule(seconds=st.sampled_from([1.0, 400.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def cycle(self):
        heads = sorted(self.naive.pods.values(), key=lambda p: p.uid)
        result = schedule(self.cluster, heads, PROFILES, now=self.now, generator=np.random.default_rng(0), limit=10_000)
        got = {d.pod.uid: d for d in result.decisions}
        failed = {u.pod.uid: u.diagnosis for u in result.unschedulable}
        reported = set()
        for p in heads:
            waits = not p.node_name and not p.terminal and p.uid not in self.naive.assumed and not p.gates
            if not waits or p.scheduler_name not in PROFILES:
                assert p.uid not in got
                assert p.uid not in failed
                continue
            want = self.naive.decide(p, PROFILES[p.scheduler_name], self.now)
            if isinstance(want, str):
                # Siblings share the diagnosis of the first of them, though the cycle has gone on since
                diagnosis = failed.pop(p.uid)
                assert id(diagnosis) in reported or diagnosis.message == want
                reported.add(id(diagnosis))
                continue
            made = got.pop(p.uid)
            reservation = made.assignment.reservation[1] if made.assignment.reservation else None
            a = made.assignment
            assert (a.node, a.basis, a.available, made.score, reservation) == want
            self.naive.assume(p, a.node, reservation)
        assert not got
        assert not failed

    def _set(self, p):
        self.naive.pods[p.uid] = p
        self.cluster.set_pod(p, self.now)

    def teardown(self):
        self.cycle()


TestCycleMachine = CycleMachine.TestCase
TestCycleMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
