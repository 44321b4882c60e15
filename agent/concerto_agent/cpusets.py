"""Which cpusets the cgroups of a node's pods shall have, and in which order to write them. No I/O.

A plan has two halves. In the first everybody *leaves* the CPUs that are kept for others; only then does anybody *enter*
what it was granted: at no instant does a CPU belong to two exclusive owners, whatever moves at once. Within a pod, a
cgroup's set contains those of its children at all times (v1 refuses anything else): what grows is written from the pod
downwards, what shrinks from the leaves upwards.

How deep is written depends on kubelet. With its CPU manager's policy ``none``, the pod's cgroup and all below it: new
containers then start with their pod's set. With ``static`` only containers: the runtime gives them sets of kubelet's
choice, which the pod's cgroup must contain, also if the policy was another one before. Where the policy is not known
nothing is written: a set could be kubelet's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from concerto.api.cpulist import format_cpu_list
from concerto.api.podcpubinding import BindingKey, Level

Numbers = frozenset[int]
CpusetFile = Literal["cpuset.cpus", "cpuset.mems"]
_NONE: Numbers = frozenset()
KUBELETS = frozenset({"KubeletConflict", "KubeletExclusive"})
"""Reasons of refusals for what kubelet's static CPU manager controls."""


@dataclass(frozen=True)
class Claim:
    """A validated binding of a pod on this node.

    Attributes:
        key: namespace and name of the binding.
        created: its creation time, RFC 3339: the older is served first.
        generation: of the spec that was validated.
        pod_uid: the pod.
        cpus: CPUs to run on.
        mems: memory nodes to take memory from, those of them that have any; if none, they are left alone.
        level: what is kept from others.
        unlimited: no CPU quota while the pod is pinned.
        workload_type: that the operator chose the CPUs for; empty for a binding made by a person.
        containers: names of the containers that the CPUs are for; empty: the whole pod.
    """

    key: BindingKey
    created: str
    generation: int
    pod_uid: str
    cpus: Numbers
    mems: Numbers
    level: Level
    unlimited: bool = False
    workload_type: str = ""
    containers: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Grant:
    """A claim that this node honours.

    Attributes:
        claim: the claim.
        kept: CPUs that no other pod may run on.
    """

    claim: Claim
    kept: Numbers


@dataclass(frozen=True)
class Refusal:
    """Why a claim is not honoured.

    Attributes:
        reason: CamelCase.
        message: a sentence.
    """

    reason: str
    message: str


@dataclass(frozen=True)
class KubeletRule:
    """What kubelet's own managers decide.

    Attributes:
        containers_only: its CPU manager gives containers their sets.
        default: CPUs of the containers that it gives none of their own; None where it has no such set.
        exclusive: CPU sets that it gave to containers, by pod UID.
        mems: its memory manager gives containers their memory nodes, or it is not known whether it does.
        known: whether it is known what its CPU manager decides.
    """

    containers_only: bool = False
    default: Numbers | None = None
    exclusive: Mapping[str, frozenset[Numbers]] = field(default_factory=dict)
    mems: bool = False
    known: bool = True

    @property
    def all_exclusive(self) -> Numbers:
        """Every CPU that it gave away."""
        return _NONE.union(*(cpus for sets in self.exclusive.values() for cpus in sets))

    def shared_by_default(self, limit: Numbers) -> Numbers:
        """CPUs of containers that it gives none of their own, within what the cgroup above the pod has."""
        return limit if self.default is None else (self.default & limit) or limit


@dataclass(frozen=True)
class Cpuset:
    """A cgroup's cpuset as the kernel shows it.

    Attributes:
        cpus: as written; empty where nobody has: v2 inherits then, v1 takes no task.
        mems: likewise.
        effective_cpus: what its tasks get.
        effective_mems: likewise.
    """

    cpus: Numbers
    mems: Numbers
    effective_cpus: Numbers
    effective_mems: Numbers

    def written(self, file: CpusetFile) -> Numbers:
        """What is written in one of its files."""
        return self.cpus if file == "cpuset.cpus" else self.mems


@dataclass(frozen=True)
class PodCgroups:
    """The cgroups of one pod.

    Attributes:
        path: of the pod's own, relative to the hierarchy's root.
        limit: the cpuset of the cgroup above it.
        cpusets: by path: the pod's own first, each before those below it.
        others: paths of containers that the pod's grant is not for.
        sandbox_only: whether no container is known to run yet, so that all its cgroups may be the sandbox's.
        unread: which of its cgroups are left out, because they are too many; empty if none is. By the kernel's rules
            they have no CPU that the cgroup above them, which is not left out, does not have.
    """

    path: str
    limit: Cpuset
    cpusets: Mapping[str, Cpuset]
    others: frozenset[str] = frozenset()
    sandbox_only: bool = False
    unread: str = ""

    @property
    def containers(self) -> list[str]:
        """Paths of the cgroups directly below the pod's: containers, and the sandbox where it has one."""
        return [path for path in self.cpusets if path.rpartition("/")[0] == self.path]

    def memory_of(self, claim: Claim) -> Numbers:
        """Memory nodes of a claim that a pod here can be given: a node may have CPUs and no memory."""
        return claim.mems & self.limit.effective_mems

    def tree(self, path: str) -> list[str]:
        """A cgroup and all below it, parents first."""
        return [each for each in self.cpusets if each == path or each.startswith(f"{path}/")]


@dataclass(frozen=True)
class Write:
    """One file to write.

    Attributes:
        path: of the cgroup, relative to the hierarchy's root.
        file: which of its files.
        value: a list of numbers; empty means to inherit (v2).
    """

    path: str
    file: CpusetFile
    value: str


@dataclass(frozen=True)
class Plan:
    """Writes by pod UID, those of one pod in order; nobody enters before all have left.

    Attributes:
        leave: out of what is kept for others.
        enter: into what each shall have.
    """

    leave: Mapping[str, Sequence[Write]]
    enter: Mapping[str, Sequence[Write]]


def foreign(grants: Mapping[str, Grant], uid: str) -> Numbers:
    """CPUs that are kept from a pod."""
    return _NONE.union(*(grant.kept for holder, grant in grants.items() if holder != uid))


def make_plan(
    version: int,
    pods: Mapping[str, PodCgroups],
    grants: Mapping[str, Grant],
    rule: KubeletRule,
    blocked: Iterable[str] = (),
) -> Plan:
    """What to write so that each pod has what it shall have; empty if all have it.

    Args:
        version: of the cgroups, 1 or 2.
        pods: the pods whose cgroups are to be looked at, by UID.
        grants: all grants of the node, by pod UID.
        rule: kubelet's.
        blocked: UIDs whose CPUs somebody else can't be moved from: they enter nothing.
    """
    if not rule.known:
        return Plan({}, {})
    kept = _NONE.union(*(grant.kept for grant in grants.values()))
    leave: dict[str, list[Write]] = {}
    enter: dict[str, list[Write]] = {}
    blocked = frozenset(blocked)
    for uid, pod in pods.items():
        others = kept if uid not in grants else foreign(grants, uid)
        layout = _Layout(version, pod, rule, rule.exclusive.get(uid, frozenset()))
        now = {path: cpuset.cpus for path, cpuset in pod.cpusets.items()}
        if writes := layout.write("cpuset.cpus", now, layout.left(others, kept)):
            leave[uid] = writes
        if uid in blocked:
            continue
        grant = grants.get(uid)
        writes = layout.write("cpuset.cpus", now, layout.cpus(grant, others))
        mems = {path: cpuset.mems for path, cpuset in pod.cpusets.items()}
        if writes := writes + layout.write("cpuset.mems", mems, layout.mems(grant)):
            enter[uid] = writes
    return Plan(leave, enter)


@dataclass(frozen=True)
class _Layout:
    """What one pod's cgroups are to be set to; targets are by path, and a path that is left out is left alone."""

    version: int
    pod: PodCgroups
    rule: KubeletRule
    kubelets: frozenset[Numbers]

    def _free_containers(self) -> list[str]:
        """Containers that kubelet has not pinned itself: it gives just them the sets of its state file."""
        return [path for path in self.pod.containers if self.pod.cpusets[path].cpus not in self.kubelets]

    def _all(self, root: str, numbers: Numbers, file: CpusetFile = "cpuset.cpus") -> dict[str, Numbers]:
        """A cgroup's set, and that of all below it.

        On v2 these inherit, unless they have a set already, which can't be emptied while there are processes. Nested
        ones limit themselves at most.
        """
        if not numbers:
            return {}  # on v1 the kernel takes no such set, on v2 it means all that the parent has
        if self.version == 1:
            return dict.fromkeys(self.pod.tree(root), numbers)
        below = (path for path in self.pod.containers if path.startswith(f"{root}/"))
        return {root: numbers} | {path: numbers for path in below if self.pod.cpusets[path].written(file)}

    def left(self, others: Numbers, kept: Numbers) -> dict[str, Numbers]:
        """Sets without what is kept for others: those of cgroups that have some of it now."""
        effective = {path: cpuset.effective_cpus for path, cpuset in self.pod.cpusets.items()}
        if self.pod.others and not self.rule.containers_only:
            # Its containers have different sets, each of which has to leave for itself
            if not any(cpus & others for cpus in effective.values()):
                return {}
            shared = self._default() - kept
            # On v2 the cgroups that a container made for itself inherit
            paths = self.pod.cpusets if self.version == 1 else (self.pod.path, *self.pod.containers)
            left = {path: (effective[path] - others) or shared for path in paths}
            return {path: cpus for path, cpus in left.items() if cpus}
        roots = self._free_containers() if self.rule.containers_only else [self.pod.path]
        targets: dict[str, Numbers] = {}
        for root in roots:
            if any(effective[path] & others for path in self.pod.tree(root)):
                # Nothing of it may be left; then it waits in the shared pool, which belongs to nobody
                rest = (effective[root] - others) or (self._default() - kept)
                if rest:
                    targets |= self._all(root, rest)
        return targets

    def cpus(self, grant: Grant | None, others: Numbers) -> dict[str, Numbers]:
        """The sets that the pod's cgroups shall have."""
        pod, rule = self.pod, self.rule
        if rule.containers_only:
            targets = self._widened()
            for path in self._free_containers():
                own = grant if path not in pod.others else None
                kept = others if grant is None or own is not None else others | grant.kept
                has, shared = pod.cpusets[path].effective_cpus, self._default() - kept
                wide_enough = own is None and has >= shared and not has & kept
                if not wide_enough:
                    targets |= self._all(path, shared if own is None else own.claim.cpus)
            return targets
        if grant is not None and pod.others:
            rest = pod.limit.effective_cpus - others - grant.kept
            targets = {pod.path: grant.claim.cpus | rest}
            for path in pod.containers:
                targets |= self._all(path, rest if path in pod.others else grant.claim.cpus)
            return targets
        if grant is not None:
            return self._all(pod.path, grant.claim.cpus)
        if others:
            return self._all(pod.path, pod.limit.effective_cpus - others)
        return self._inherited(pod.limit.effective_cpus, "cpuset.cpus")

    def _widened(self) -> dict[str, Numbers]:
        """The pod's own cgroup as kubelet made it, if it was written before kubelet's policy became ``static``."""
        pod = self.pod
        written, limit = pod.cpusets[pod.path].cpus, pod.limit.effective_cpus
        is_kept = not written or limit <= written or written in self.kubelets
        return {} if is_kept else {pod.path: limit}

    def mems(self, grant: Grant | None) -> dict[str, Numbers]:
        """The memory nodes that the pod's cgroups shall have; none of our business where kubelet gives them."""
        pod = self.pod
        if self.rule.mems:
            return {}
        if grant is not None:
            return self._all(pod.path, pod.memory_of(grant.claim), "cpuset.mems")
        return self._inherited(pod.limit.effective_mems, "cpuset.mems")

    def _inherited(self, limit: Numbers, file: CpusetFile) -> dict[str, Numbers]:
        """Back to what it would be without us; what a container made of it for cgroups of its own stays.

        On v2 that is the whole set of the cgroup above: the kernel refuses to empty one while there are processes.
        """
        now = {path: cpuset.written(file) for path, cpuset in self.pod.cpusets.items()}
        if self.version == 2:
            return {path: limit for path in (self.pod.path, *self.pod.containers) if now[path]}
        targets = {self.pod.path: limit} if limit else {}
        for path in self.pod.containers:
            if now[path] != limit:
                targets |= self._all(path, limit, file)
        return targets

    def _default(self) -> Numbers:
        return self.rule.shared_by_default(self.pod.limit.effective_cpus)

    def write(self, file: CpusetFile, now: dict[str, Numbers], targets: Mapping[str, Numbers]) -> list[Write]:
        """The writes that lead from ``now`` to the targets; ``now`` is brought up to date."""
        writes: list[Write] = []

        def put(path: str, numbers: Numbers) -> None:
            now[path] = numbers
            writes.append(Write(path, file, format_cpu_list(numbers)))

        if self.version == 1:
            for path, goal in targets.items():
                if not goal <= now[path]:
                    below = (now[each] for each in self.pod.tree(path)[1:])
                    put(path, goal if all(numbers <= goal for numbers in below) else goal | now[path])
        ordered = list(targets) if self.version == 2 else reversed(list(targets))
        for path in ordered:
            if now[path] != targets[path]:
                put(path, targets[path])
        return writes


def intruders(pods: Mapping[str, PodCgroups], grant: Grant, rule: KubeletRule) -> list[str]:
    """UIDs of other pods that have CPUs of a grant. Where only containers are written, a pod's own set is no sign."""
    return [
        uid
        for uid, pod in pods.items()
        if uid != grant.claim.pod_uid
        and any(
            cpuset.effective_cpus & grant.kept
            for path, cpuset in pod.cpusets.items()
            if path != pod.path or not rule.containers_only
        )
    ]


def granted(pod: PodCgroups) -> tuple[Numbers, Numbers, bool]:
    """CPUs and memory nodes of the containers that the grant is for, by the kernel, and whether all have the same."""
    sets = {
        (pod.cpusets[path].effective_cpus, pod.cpusets[path].effective_mems)
        for path in pod.containers
        if path not in pod.others and pod.cpusets[path].effective_cpus
    }
    cpus = _NONE.union(*(each for each, _ in sets))
    mems = _NONE.union(*(each for _, each in sets))
    return cpus, mems, len(sets) <= 1
