"""Writes the cpusets of a node's pods so that they equal the grants. Knows nothing of the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from concerto.api.nodecputopology import CPUTopology
from concerto.api.podcpubinding import BindingKey
from concerto.kube.failpoints import point
from concerto_agent.bindings import Outcome
from concerto_agent.cgroups import container_id, find_cpusets
from concerto_agent.container_start import NewContainer, StartCpus, choose_start_cpus
from concerto_agent.cpuset_files import CpusetFiles, find_obstacle, read_rule
from concerto_agent.cpusets import (
    KUBELETS,
    Claim,
    Grant,
    KubeletRule,
    Numbers,
    Plan,
    PodCgroups,
    Refusal,
    Write,
    granted,
    intruders,
    make_plan,
)
from concerto_agent.grants import resolve
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.memory_writes import MemoryWrites
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinning_settings import PinningSettings
from concerto_agent.quotas import PodLimits, PodQuotas, QuotaFiles
from concerto_agent.topology_reader import TopologyReader

log = logging.getLogger(__name__)

_CPU = {1: "cpu", 2: ""}
"""Where the hierarchy of the controller cpu is; on v1 a link of this name is there if it shares one with cpuacct."""


class NodeCpusets:
    """The cpusets of a node's pods, written as grants say.

    Attributes:
        grants: by pod UID.
        outcomes: how the grants stand, by pod UID.
        refusals: of the claims that are no grants.
        written_at: when a bound pod's cgroups last had to be written, seconds since the epoch.
        repairs: pods whose cpusets somebody else had changed and that were set again, since the start.
        memory: makes the writes that move memory.
        late: pods whose containers ran on other CPUs when their binding came, since the start.
    """

    def __init__(
        self,
        files: CpusetFiles,
        pods: Callable[[], Mapping[str, str] | None],
        topology: Callable[[], CPUTopology],
        rule: Callable[[], KubeletRule],
        settings: PinningSettings,
        wall: Callable[[], float],
        quotas: PodQuotas | None = None,
        names: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            files: where they are.
            pods: paths of the pods' cgroups by UID, as they are now; None where it is unknown which there are.
            topology: reads the CPUs.
            rule: reads what kubelet decides.
            settings: how to write.
            wall: seconds since the epoch.
            quotas: lifts and puts back CPU quotas; None: they are left alone.
            names: of a pod's running containers, by their IDs, as far as they are known; takes the pod's UID. None:
                every cgroup counts as a container's.
        """
        self.grants: dict[str, Grant] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.refusals: dict[BindingKey, Refusal] = {}
        self.written_at: dict[str, float] = {}
        self.memory = MemoryWrites(files.apply)
        self._files = files
        self._pods = pods
        self._topology = topology
        self._rule_now = rule
        self._rule = rule()
        self._settings = settings
        self._wall = wall
        self._quotas = quotas
        self._names = names
        self._claims: dict[BindingKey, Claim] = {}  # that the last look at every pod was for
        self._blocked: dict[str, str] = {}  # UID of a bound pod -> who is in its way
        self._looked_at: set[str] = set()  # since the last look at every pod began
        self.repairs, self.late = 0, 0
        self._settled: dict[str, frozenset[str]] = {}  # by UID, cgroups that the last look left as these claims say

    def enforce(self, claims: Iterable[Claim]) -> None:
        """Look at every pod, and write what is not as the claims say; see `steps`."""
        for _ in self.steps(claims):
            continue

    def steps(self, claims: Iterable[Claim]) -> Iterator[None]:
        """The same, one pod a step, so that a caller can see to containers that start meanwhile (`look_at`).

        Between two steps no bound pod enters CPUs that others may still have, and nothing is said of claims that have
        changed. Without claims every pod gets what the cgroup above it has, for which nobody has to know the topology.

        Raises:
            OSError, ValueError: there are claims, and the topology can't be read.
        """
        self._refresh_rule()
        self.memory.retry()
        now = {claim.key: claim for claim in claims}
        before = self.grants
        self._looked_at.clear()
        pods: dict[str, PodCgroups] = {}
        for uid, path in dict(self._pods() or {}).items():
            pods |= self._read({uid: path})
            yield
        # What came meanwhile was looked at under the grants before
        paths = self._pods()
        changed = {u: p for u, p in (paths or {}).items() if u not in pods or u in self._looked_at}
        pods = {uid: pod for uid, pod in pods.items() if uid not in changed} | self._read(changed)
        if (obstacle := find_obstacle(self._files, paths, pods)) is not None:
            self.grants, self.refusals = {}, dict.fromkeys(now, obstacle)
        else:
            claimed, limits = tuple(now.values()), {uid: pod.limit.effective_cpus for uid, pod in pods.items()}
            self.grants, self.refusals = resolve(claimed, self._topology(), self._rule, limits) if claimed else ({}, {})
        pods = {uid: self._with_others(uid, pod) for uid, pod in pods.items()}
        same = {uid for uid, grant in self.grants.items() if before.get(uid) == grant}
        self.outcomes = {uid: outcome for uid, outcome in self.outcomes.items() if uid in same}
        self.written_at = {uid: at for uid, at in self.written_at.items() if uid in self.grants}
        still = {uid: who for uid, who in self._blocked.items() if uid in same}
        self._blocked = dict.fromkeys(self.grants.keys() - same, "other pods") | still
        self.late += sum(
            bool(granted(pods[uid])[0] - self.grants[uid].claim.cpus)
            for uid in pods.keys() & self.grants.keys() - before
        )
        if now != self._claims:
            self._settled = {}
        # A claim that was refused up to now is one that has come: nothing is said of it before the end
        self._claims = {
            key: claim for key, claim in self._claims.items() if key in self.refusals or claim.pod_uid in same
        }
        errors: dict[str, str] = {}
        yield from self._carry_out(pods, errors)
        for uid in list(pods):
            errors |= self._set_quotas({uid: pods[uid]}, errors)
            yield
        # Containers of bound pods may have come since these were read, and could not enter then
        for uid in self.grants.keys() & self._looked_at:
            self.look_at(uid)
        paths = self._pods() or {}
        bound = self._read({uid: paths[uid] for uid in self.grants if paths.get(uid)})
        self.outcomes = {uid: self._outcome(uid, bound.get(uid), errors.get(uid, "")) for uid in self.grants}
        self._claims = now
        self._settled = {u: frozenset(pod.cpusets) for u, pod in pods.items() if u not in errors} | self._settled
        if (there := self._pods()) is not None:
            self._settled = {uid: paths for uid, paths in self._settled.items() if uid in there}
            self._files.forget_all_but(there.values())
            if self._quotas is not None:
                self._quotas.forget_all_but(there)
        for uid in errors.keys() - self.grants.keys():
            log.warning("the cpusets of pod %s could not be written: %s", uid, _with_unread(errors[uid], pods.get(uid)))

    def _carry_out(self, pods: dict[str, PodCgroups], errors: dict[str, str]) -> Iterator[None]:
        """Write until every pod has what it is to have; what the kernel refused goes into ``errors``, by UID."""
        blocked: Mapping[str, str] = {}
        for _ in range(self._settings.attempts):
            errors.clear()
            entering: dict[str, Sequence[Write]] = {}
            written = False
            for uid in list(pods):
                plan = self._plan({uid: pods[uid]}, blocked)
                entering |= plan.enter
                written |= bool(plan.leave)
                errors |= self._write(pods, plan.leave)
                yield
            if not written and not entering:
                break
            blocked = yield from self._in_the_way(pods)
            for uid, writes in entering.items():
                if uid not in blocked and uid not in errors:
                    errors |= self._write(pods, {uid: writes})
                    yield
        self._blocked = yield from self._in_the_way(pods)

    def _plan(self, pods: Mapping[str, PodCgroups], blocked: Iterable[str]) -> Plan:
        return self.memory.due(make_plan(self._files.version, pods, self.grants, self._rule, blocked))

    def look_at(self, uid: str) -> bool:
        """Look at one pod, of which something has changed; True if what is to be said of it has changed.

        What kubelet gave to its containers is read again first: a pod that it pins has just come.
        """
        self._looked_at.add(uid)
        if not (self.grants or self._claims or self.memory.has_moved(uid)):
            # There is nothing to keep. A pod may start and end processes in hundreds of cgroups of its own all the time
            return False
        if self._rule.containers_only:
            self._refresh_rule()
        path = (self._pods() or {}).get(uid)
        if path is None:
            return False
        pods, error = self._read({uid: path}), ""
        for _ in range(self._settings.attempts):
            plan = self._plan(pods, self._blocked)
            if not plan.leave and not plan.enter:
                break
            errors = self._write(pods, plan.leave) or self._write(pods, plan.enter)
            error = errors.get(uid, "")
        if uid in pods and not error:
            self._settled[uid] = frozenset(pods[uid].cpusets)
        if uid not in self.grants:
            return False
        error = error or self._set_quotas(pods, [uid] if error else []).get(uid, "")
        before, now = self.outcomes.get(uid), self._outcome(uid, pods.get(uid), error)
        self.outcomes[uid] = now
        return now != before

    def start_cpus(self, container: NewContainer) -> StartCpus:
        """What a container is to be created with, if its pod was looked at just before."""
        path = (self._pods() or {}).get(container.pod_uid)
        pod = None if path is None else self._read({container.pod_uid: path}).get(container.pod_uid)
        if pod is None:
            return StartCpus("Unknown")
        return choose_start_cpus(pod, container, self.grants, self._rule, self._blocked)

    def standing(self, claim: Claim) -> tuple[Grant, Outcome] | Refusal | None:
        """How a claim stands; None if it has come, or has changed, since the last look at every pod."""
        if self._claims.get(claim.key) != claim:
            return None
        grant = self.grants.get(claim.pod_uid)
        if grant is None or grant.claim != claim:
            return self.refusals.get(claim.key)
        outcome = self.outcomes.get(claim.pod_uid)
        return None if outcome is None or self.memory.is_under_way(claim.pod_uid) else (grant, outcome)

    def held(self) -> HeldCPUs:
        """What the grants hold, and which claims kubelet's static CPU manager stands in the way of."""
        grants = self.grants.values()
        conflicts = (key for key, refusal in self.refusals.items() if refusal.reason in KUBELETS)
        return HeldCPUs(
            frozenset[int]().union(*(grant.claim.cpus for grant in grants)),
            frozenset[int]().union(*(grant.kept for grant in grants)),
            tuple(sorted("/".join(key) for key in conflicts)),
        )

    @property
    def knows_kubelet(self) -> bool:
        """Whether it is known what kubelet decides; if not, nothing is written."""
        return self._rule.known

    @property
    def kubelet_exclusive(self) -> Numbers:
        """CPUs that kubelet's static CPU manager has given to containers."""
        return self._rule.all_exclusive

    def _refresh_rule(self) -> None:
        rule = self._rule_now()
        if rule.known or not self._rule.known:  # kubelet's file is away while an administrator changes the policy
            self._rule = rule

    def _read(self, paths: Mapping[str, str]) -> dict[str, PodCgroups]:
        found = {uid: self._files.pod(path) for uid, path in paths.items()}
        return {uid: self._with_others(uid, pod) for uid, pod in found.items() if pod is not None}

    def _with_others(self, uid: str, pod: PodCgroups) -> PodCgroups:
        """With the containers that its grant is not for; it is for those whose names are not known yet."""
        grant = self.grants.get(uid)
        if grant is None or self._names is None:
            return replace(pod, others=frozenset(), sandbox_only=False)
        names = self._names(uid)
        called = {path: names.get(container_id(path.rpartition("/")[2]) or "") for path in pod.containers}
        meant = grant.claim.containers
        others = frozenset(path for path, name in called.items() if name and meant and name not in meant)
        sandbox_only = not any(name and path not in others for path, name in called.items())
        return replace(pod, others=others, sandbox_only=sandbox_only)

    def _write(self, pods: dict[str, PodCgroups], plan: Mapping[str, Sequence[Write]]) -> dict[str, str]:
        """Write, and read back what the kernel made of it; what it refused, by UID."""
        errors = {}
        for uid, writes in plan.items():
            if uid not in pods:
                continue  # gone by now
            if self._settled.get(uid, frozenset()) & {write.path for write in writes}:
                del self._settled[uid]  # once a look
                self.repairs += 1
            point("before-cpuset")
            error = self._files.apply(self.memory.divert(uid, pods[uid], writes))
            point("after-cpuset")
            if error is not None:
                errors[uid] = f"{error.strerror} ({error.filename})"
            if uid in self.grants:
                now, before = self._wall(), self.written_at.get(uid, 0.0)
                # A conflict with another writer is not reported each time
                self.written_at[uid] = now if now - before >= self._settings.repair_seconds else before
            again = self._read({uid: pods[uid].path})
            if again:
                pods |= again
            else:
                del pods[uid]
        return errors

    def _set_quotas(self, pods: Mapping[str, PodCgroups], errors: Collection[str]) -> dict[str, str]:
        if self._quotas is None:
            return {}
        unlimited = {
            uid
            for uid, grant in self.grants.items()
            # Only on CPUs that nobody else has may a pod take what there is
            if grant.claim.unlimited and uid not in self._blocked and uid not in errors
            and uid in pods and granted(pods[uid])[0] <= grant.claim.cpus
        }  # fmt: skip
        # Kubelet lifts those of containers that it pins
        mine = {uid: pod for uid, pod in pods.items() if uid not in self._rule.exclusive}
        return self._quotas.enforce({uid: (pod.path, pod.containers) for uid, pod in mine.items()}, unlimited)

    def _in_the_way(self, pods: Mapping[str, PodCgroups]) -> Generator[None, None, dict[str, str]]:
        """Who still has CPUs of each grant, by UID of its pod; one grant a step."""
        found = {}
        for uid, grant in list(self.grants.items()):
            if grant.kept and (others := intruders(pods, grant, self._rule)):
                found[uid] = f"pod {' and '.join(others[:3])}"
            yield
        return found

    def _outcome(self, uid: str, pod: PodCgroups | None, error: str) -> Outcome:
        blocked, error = self._blocked.get(uid, ""), error or self.memory.error(uid)
        if pod is None:
            return Outcome(intruder=blocked)
        error = _with_unread(error, pod)
        cpus, mems, same = granted(pod)
        if not cpus:
            return Outcome(intruder=blocked, error=error)
        claim = self.grants[uid].claim
        memory = pod.memory_of(claim)
        as_wished = cpus == claim.cpus and (self._rule.mems or not memory or mems == memory)
        return Outcome(cpus, mems, same and as_wished, blocked, error, started=not pod.sandbox_only)


def _with_unread(error: str, pod: PodCgroups | None) -> str:
    """What the kernel refused, and that it may be for cgroups of the pod that are not read, and so not written."""
    return f"{error}; of the pod's cgroups {pod.unread} are not read" if error and pod and pod.unread else error


def open_cpusets(
    where: NodeFiles,
    settings: PinningSettings,
    pods: Callable[[], Mapping[str, str] | None],
    wall: Callable[[], float],
    limits: Callable[[], Mapping[str, PodLimits]] | None,
    names: Callable[[str], Mapping[str, str]] | None = None,
) -> NodeCpusets:
    """The cpusets of the node's pods.

    Args:
        where: the node's files.
        settings: further files, and how to write.
        pods: paths of the pods' cgroups by UID, as they are now; None where it is unknown which there are.
        wall: seconds since the epoch.
        limits: CPU limits of the node's pods by UID; None: CPU quotas are left alone.
        names: of a pod's running containers, by their IDs; takes the pod's UID. None: see `NodeCpusets`.

    Raises:
        OSError: the node has no cpuset hierarchy.
    """
    hierarchies, root = find_cpusets(where.sys)
    quotas = None
    if limits is not None:
        files = QuotaFiles(where.sys / "fs/cgroup" / _CPU[hierarchies.version], hierarchies.version)
        quotas = PodQuotas(files, limits, settings.sets_quotas)
    return NodeCpusets(
        CpusetFiles(root, hierarchies.version),
        pods,
        TopologyReader(where).read,
        lambda: read_rule(settings.kubelet_state, settings.kubelet_state.with_name("memory_manager_state")),
        settings,
        wall,
        quotas,
        names,
    )
