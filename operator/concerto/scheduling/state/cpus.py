"""Who holds the CPUs of each node, and where a pod of some kind would find its own.

Bindings are known by what their statuses say (the operator's verdict on them), decisions of the scheduler from the
moment they are assumed. Nodes that look alike share what was found out about them, so that a pod that fits on a
thousand empty nodes is fitted in once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args
from weakref import WeakValueDictionary

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.podcpubinding import BindingKey, Level
from concerto.api.podreservation import Assignment
from concerto.api.schedulingprofile import WorkloadAwareSettings
from concerto.pinning.allocator import Placement, allocate
from concerto.pinning.classification import EXCLUSIVENESS_LABEL, LABEL
from concerto.pinning.conflicts import Claim
from concerto.pinning.containers import own_cpus
from concerto.pinning.occupancy import Features, Occupancy, WorkloadType
from concerto.pinning.scoring import allocatable
from concerto.pinning.topology import TopologyIndex, to_mask

LiftedClaims = tuple[tuple[dict[BindingKey, Claim], BindingKey, Claim], ...]
"""Claims that were taken out of the dictionaries they were in."""

_TYPES: dict[str, WorkloadType] = {each: each for each in get_args(WorkloadType)}
_LEVELS: dict[str, Level] = {each: each for each in get_args(Level)}
MAX_WORKLOADS = 64
"""Of which is remembered what a node has for them; pods ask for any number of CPUs."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What a pod that is to be pinned asks of a node.

    Attributes:
        kind: decides how threads are spread.
        threads: CPUs for its containers that request whole ones, else its cpu request, rounded up.
        features: as its profile says.
        level: the exclusiveness that its label asks for; None: that of the kind.
    """

    kind: WorkloadType
    threads: int
    features: Features
    level: Level | None = None


@dataclass(frozen=True, slots=True)
class InvalidPinningRequest:
    """A pod that is to be pinned and can't be anywhere.

    Attributes:
        problem: what is wrong with it, in words that go after a number of nodes.
        lacks_request: whether it is that nobody has said how many CPUs it is to have.
    """

    problem: str
    lacks_request: bool = False


def workload_of(pod: PodView, settings: WorkloadAwareSettings) -> Workload | InvalidPinningRequest | None:
    """What a pod's labels and its cpu request ask for; None for one without a workload type."""
    kind = pod.labels.get(LABEL)
    if kind is None:
        return None
    level = pod.labels.get(EXCLUSIVENESS_LABEL)
    millicores = pod.shape.requests.get("cpu", 0)
    if kind not in _TYPES:
        return InvalidPinningRequest(
            f"node(s) don't know the value of label {LABEL}={kind} (known: {', '.join(_TYPES)})"
        )
    if level is not None and level not in _LEVELS:
        return InvalidPinningRequest(
            f"node(s) don't know the value of label {EXCLUSIVENESS_LABEL}={level} (known: {', '.join(_LEVELS)})"
        )
    if not millicores and kind != "best-effort":
        return InvalidPinningRequest(
            f"node(s) can't derive the number of CPUs: workload type {kind} needs a cpu request", lacks_request=True
        )
    return Workload(
        _TYPES[kind], own_cpus(pod.shape).threads, features(settings), None if level is None else _LEVELS[level]
    )


def features(settings: WorkloadAwareSettings) -> Features:
    """A profile's features, as the allocator takes them."""
    on = settings.features
    return Features("PhysicalCores" in on, "MemoryBoundExclusiveSockets" in on, "BestEffortSharedCPUs" in on)


class _State:
    """One way a node can be, and what has been found out about it; shared by all nodes that are like that."""

    __slots__ = ("__weakref__", "_places", "_rooms", "occupancy")

    def __init__(self, occupancy: Occupancy) -> None:
        self.occupancy = occupancy
        self._places: dict[Workload, Placement | None] = {}
        self._rooms: dict[Workload, tuple[int, int]] = {}

    def place(self, asked: Workload) -> Placement | None:
        if asked not in self._places:
            _make_way(self._places)
            self._places[asked] = allocate(self.occupancy, asked.kind, asked.threads, asked.features, asked.level)
        return self._places[asked]

    def room(self, asked: Workload) -> tuple[int, int]:
        if asked not in self._rooms:
            _make_way(self._rooms)
            self._rooms[asked] = allocatable(self.occupancy, asked.kind, asked.threads, asked.features, asked.level)
        return self._rooms[asked]


@dataclass(slots=True)
class _Node:
    index: TopologyIndex | None = None
    reserved: int = 0
    kubelet_exclusive: int = 0
    pins: bool = True
    claims: dict[BindingKey, Claim] = field(default_factory=dict)
    pods: dict[BindingKey, str] = field(default_factory=dict)  # UIDs, of claims and assumed ones
    assumed: dict[BindingKey, Claim] = field(default_factory=dict)
    avoided_until: float | None = None
    state: _State | None = None

    @property
    def empty(self) -> bool:
        return self.index is None and not self.claims and not self.assumed and self.avoided_until is None


class CPUs:
    """The CPUs of all nodes. Pure; change it through the cluster only.

    Attributes:
        followed: whether NodeCPUTopologies and PodCPUBindings are watched; if not, no pod can be pinned.
    """

    def __init__(self) -> None:
        self.followed = True
        self._nodes: dict[str, _Node] = {}
        self._node_of: dict[BindingKey, str] = {}  # of bindings that hold CPUs by their status
        self._pins: dict[str, tuple[str, BindingKey]] = {}  # node and binding of assumed pods, by UID
        self._states: WeakValueDictionary[tuple[Any, ...], _State] = WeakValueDictionary()

    # --- what plugins ask

    def is_known(self, node: str) -> bool:
        """Whether the node's agent has published its CPUs."""
        found = self._nodes.get(node)
        return found is not None and found.index is not None

    def is_pinning(self, node: str) -> bool:
        """Whether the node's agent pins, as far as it has published that."""
        found = self._nodes.get(node)
        return found is None or found.pins

    def is_avoided(self, node: str) -> bool:
        """Whether its agent did not get ready for a pod's CPUs lately."""
        found = self._nodes.get(node)
        return found is not None and found.avoided_until is not None

    def place(self, node: str, asked: Workload) -> Placement | None:
        """The CPUs that such a pod would get there; None if there is no room for it, or nothing is known."""
        state = self._state(node)
        return None if state is None else state.place(asked)

    def room(self, node: str, asked: Workload) -> tuple[int, int] | None:
        """How many sockets, cores or CPUs can take such a workload, and of how many (Stefanakis, section 6.3)."""
        state = self._state(node)
        return None if state is None else state.room(asked)

    def node_of(self, key: BindingKey) -> str:
        """Node on which the binding of that key holds CPUs; empty if it holds none."""
        return self._node_of.get(key, "")

    def held_exclusively(self, node: str) -> Mapping[str, int]:
        """Number of CPUs that bindings on the node keep from others, by UID of the pod."""
        found = self._nodes.get(node)
        if found is None or found.index is None:
            return {}
        held: dict[str, int] = {}
        for key, claim in (found.claims | found.assumed).items():
            if cpus := found.index.closure(claim.cpus, claim.level).bit_count():
                held[found.pods[key]] = held.get(found.pods[key], 0) + cpus
        return held

    def count(self, node: str) -> int:
        """Number of online CPUs of the node; 0 if nothing is known."""
        found = self._nodes.get(node)
        return 0 if found is None or found.index is None else found.index.online.bit_count()

    def occupancy_without(
        self, node: str, key: BindingKey, more: Mapping[BindingKey, int] | None = None
    ) -> Occupancy | None:
        """The node as it is but for one binding; None if nothing is known of its CPUs.

        Args:
            node: its name.
            key: of the binding that is left out.
            more: further CPUs, as bits, that other bindings of the node are about to get.
        """
        found = self._nodes.get(node)
        if found is None or found.index is None:
            return None
        held = found.claims | found.assumed
        for each, cpus in (more or {}).items():
            if each in held:
                held[each] = replace(held[each], cpus=held[each].cpus | cpus)
        claims = _in_order(claim for each, claim in held.items() if each != key)
        return Occupancy(found.index, found.reserved, found.kubelet_exclusive, claims)

    def exclusive_count(self, node: str, asked: Workload) -> int:
        """Number of CPUs that such a pod would keep from others there."""
        found, placement = self._nodes.get(node), self.place(node, asked)
        if found is None or found.index is None or placement is None:
            return 0
        return found.index.closure(placement.cpus, placement.level).bit_count()

    # --- what is seen

    def set_topology(self, topology: NodeCPUTopology) -> bool:
        """A NodeCPUTopology as the API server has it now; returns whether it says anything new."""
        if topology.topology is None or not topology.topology.cpus:
            return self.remove_topology(topology.name)
        node = self._node(topology.name)
        index = TopologyIndex.build(topology.topology)
        reserved, exclusive = to_mask(topology.pools.reserved), to_mask(topology.pools.kubelet_exclusive)
        pins = topology.cpuset_writer != "None"
        before = (node.index, node.reserved, node.kubelet_exclusive, node.pins)
        if before == (index, reserved, exclusive, pins):
            return False
        node.pins = pins
        node.index, node.reserved, node.kubelet_exclusive, node.state = index, reserved, exclusive, None
        return True

    def remove_topology(self, name: str) -> bool:
        """The NodeCPUTopology is gone, or is empty."""
        node = self._nodes.get(name)
        if node is None or node.index is None:
            return False
        node.index, node.state = None, None
        self._tidy(name)
        return True

    def set_cpu_binding(self, obj: Mapping[str, Any]) -> bool:
        """A PodCPUBinding as the API server has it now; returns whether CPUs came free."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        key = (metadata["namespace"], metadata["name"])
        name, cpus = status.get("nodeName"), status.get("cpus")
        if not name or not cpus or "deletionTimestamp" in metadata:
            return self.remove_cpu_binding(key)
        level: Level = status.get("exclusivenessLevel", obj["spec"].get("exclusivenessLevel", "None"))
        best_effort = level == "None" and (metadata.get("labels") or {}).get(LABEL) == "best-effort"
        claim = Claim(to_mask(parse_cpu_list(cpus)), level, best_effort)
        uid = str(status.get("podUID", ""))
        node = self._nodes.get(name)
        if node is not None and self._node_of.get(key) == name and (node.claims[key], node.pods[key]) == (claim, uid):
            return False
        freed = self.remove_cpu_binding(key)
        self._node_of[key] = name
        node = self._node(name)
        node.claims[key], node.pods[key] = claim, uid
        node.state = None
        return freed

    def remove_cpu_binding(self, key: BindingKey) -> bool:
        """The PodCPUBinding is gone, or holds nothing any more."""
        name = self._node_of.pop(key, None)
        if name is None:
            return False
        node = self._nodes[name]
        del node.claims[key]
        if key not in node.assumed:
            del node.pods[key]
        node.state = None
        self._tidy(name)
        return True

    def avoid(self, name: str, until: float) -> None:
        """The node's agent did not get ready in time: no pinned pod is sent there until then."""
        self._node(name).avoided_until = until

    def end_avoidance(self, now: float) -> bool:
        """Nodes that were avoided for long enough are tried again; returns whether there are any."""
        over = [n for n, node in self._nodes.items() if node.avoided_until is not None and node.avoided_until <= now]
        for name in over:
            self._nodes[name].avoided_until = None
            self._tidy(name)
        return bool(over)

    # --- what is decided

    def assume(self, assignment: Assignment, *, best_effort: bool) -> None:
        """Hold the CPUs of a decision until its pod is seen on its node (its binding holds them then) or it is off."""
        pin = assignment.pin
        if pin is None:
            return
        key = (assignment.namespace, pin.binding)
        claim = Claim(to_mask(parse_cpu_list(pin.cpus)), pin.level, best_effort and pin.level == "None")
        node = self._node(assignment.node)
        node.assumed[key], node.pods[key] = claim, assignment.uid
        node.state = None
        self._pins[assignment.uid] = (assignment.node, key)

    def settle(self, uid: str) -> bool:
        """The pod is bound, or it is not to go there after all; returns whether it had been assumed."""
        found = self._pins.pop(uid, None)
        if found is None:
            return False
        name, key = found
        node = self._nodes[name]
        del node.assumed[key]
        if key not in node.claims:
            del node.pods[key]
        node.state = None
        self._tidy(name)
        return True

    def lift(self, name: str, uid: str) -> LiftedClaims:
        """As if the pod held no CPUs of the node; returns what it holds, for ``put_back``."""
        node = self._nodes.get(name)
        if node is None:
            return ()
        keys = [key for key, owner in node.pods.items() if owner == uid]
        lifted = tuple((claims, key, claims.pop(key)) for claims in (node.claims, node.assumed) for key in keys
                       if key in claims)  # fmt: skip
        if lifted:
            node.state = None
        return lifted

    def put_back(self, name: str, lifted: LiftedClaims) -> None:
        """Undo ``lift``."""
        for claims, key, claim in lifted:
            claims[key] = claim
        if lifted:
            self._nodes[name].state = None

    # --- inside

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node()
        return node

    def _tidy(self, name: str) -> None:
        if self._nodes[name].empty:
            del self._nodes[name]

    def _state(self, name: str) -> _State | None:
        node = self._nodes.get(name)
        if node is None or node.index is None:
            return None
        if node.state is None:
            claims = _in_order((node.claims | node.assumed).values())
            key = (node.index, node.reserved, node.kubelet_exclusive, claims)
            state = self._states.get(key)
            if state is None:
                occupancy = Occupancy(node.index, node.reserved, node.kubelet_exclusive, claims)
                state = self._states[key] = _State(occupancy)
            node.state = state
        return node.state


def _make_way(known: dict[Workload, Any]) -> None:
    """Forget what is known of the workload that was asked about first, where there are too many."""
    if len(known) >= MAX_WORKLOADS:
        del known[next(iter(known))]


def _in_order(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    return tuple(sorted(claims, key=lambda c: (c.cpus, c.level, c.best_effort)))
