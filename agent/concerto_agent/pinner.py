"""Keeps the cpusets of the node's pods equal to what the PodCPUBindings of the node say, and says how they stand.

What is to be written is `cpusets.make_plan`'s to say. Here is when: for all pods when a binding changes and every few
seconds; for one pod at once when a container of it appears, a process enters one, or somebody writes a cpuset of it.
Nothing is written before all bindings of the node are known, and nobody is told that CPUs are held for a pod before all
others are off them. The truth is in the API and in the kernel: there is no file of ours, and a restart reads both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from concerto.api.nodecputopology import CPUTopology
from concerto.api.podcpubinding import BindingKey
from concerto.api.timestamps import format_timestamp
from concerto.kube import ApiError, Conflict, Invalid, KubeError, NotFound, Reflector, Session, apply_status
from concerto.kube.errors import Forbidden, Unauthorized
from concerto.kube.resources import DAEMON_SETS, POD_CPU_BINDINGS
from concerto.linux.cpu_topology import fingerprint, read_topology
from concerto_agent.bindings import Object, Outcome, build_agent_status, own_part, read_claim
from concerto_agent.cgroups import Cgroup, Hierarchies
from concerto_agent.cpuset_files import ContainerWatcher, CpusetFiles, read_rule
from concerto_agent.cpusets import (
    Claim,
    Grant,
    KubeletRule,
    Numbers,
    PodCgroups,
    Refusal,
    Write,
    granted,
    intruders,
    make_plan,
    resolve,
)
from concerto_agent.inotify import Inotify
from concerto_agent.node_files import NodeFiles
from concerto_agent.pods import PodWatcher
from concerto_agent.quotas import PodLimits, PodQuotas, QuotaFiles, kubelet_sets_quotas

log = logging.getLogger(__name__)

_FIELD_MANAGER = "concerto-agent"
_CPU = {1: "cpu", 2: ""}
"""Where the hierarchy of the controller cpu is; on v1 a link of this name is there if it shares one with cpuacct."""


@dataclass(frozen=True)
class PinningSettings:
    """How cpusets are written.

    Attributes:
        kubelet_state: kubelet's ``cpu_manager_state``; its ``memory_manager_state`` lies beside it.
        kubelet_config: kubelet's KubeletConfiguration.
        daemon_set: namespace and name of the DaemonSet that the agent belongs to; None: of none.
        repair_seconds: between two looks at every pod, and at the topology.
        attempts: how often a pod is looked at again whose cgroups change while they are written.
        retry_seconds: wait after a status could not be written.
        farewell_seconds: how long the API server may take to say whether the DaemonSet is gone.
    """

    kubelet_state: Path = Path("/var/lib/kubelet/cpu_manager_state")
    kubelet_config: Path = Path("/var/lib/kubelet/config.yaml")
    daemon_set: tuple[str, str] | None = None
    repair_seconds: float = 15.0
    attempts: int = 5
    retry_seconds: float = 2.0
    farewell_seconds: float = 5.0


class NodeCpusets:
    """The cpusets of a node's pods, written as grants say. Knows nothing of the API server.

    Attributes:
        grants: by pod UID.
        outcomes: how the grants stand, by pod UID.
        refusals: of the claims that are no grants.
        written_at: when a bound pod's cgroups last had to be written, seconds since the epoch.
    """

    def __init__(
        self,
        files: CpusetFiles,
        pods: Callable[[], dict[str, str]],
        topology: Callable[[], CPUTopology],
        rule: Callable[[], KubeletRule],
        settings: PinningSettings,
        wall: Callable[[], float],
        quotas: PodQuotas | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            files: where they are.
            pods: paths of the pods' cgroups by UID, as they are now.
            topology: reads the CPUs.
            rule: reads what kubelet decides.
            settings: how to write.
            wall: seconds since the epoch.
            quotas: lifts and puts back CPU quotas; None: they are left alone.
        """
        self.grants: dict[str, Grant] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.refusals: dict[BindingKey, Refusal] = {}
        self.written_at: dict[str, float] = {}
        self._files = files
        self._pods = pods
        self._topology = topology
        self._rule_now = rule
        self._rule = rule()
        self._settings = settings
        self._wall = wall
        self._quotas = quotas
        self._claims: dict[BindingKey, Claim] = {}  # that the last look at every pod was for
        self._blocked: dict[str, str] = {}  # UID of a bound pod -> who is in its way

    def enforce(self, claims: Iterable[Claim]) -> None:
        """Look at every pod, and write what is not as the claims say.

        Without claims every pod gets what the cgroup above it has, for which nobody has to know the topology.

        Raises:
            OSError, ValueError: there are claims, and the topology can't be read.
        """
        self._refresh_rule()
        claims = tuple(claims)
        self.grants, self.refusals = resolve(claims, self._topology(), self._rule) if claims else ({}, {})
        self.written_at = {uid: at for uid, at in self.written_at.items() if uid in self.grants}
        pods = self._read(self._pods())
        errors: dict[str, str] = {}
        self._blocked = {}
        for _ in range(self._settings.attempts):
            plan = make_plan(self._files.version, pods, self.grants, self._rule, self._blocked)
            if not plan.leave and not plan.enter:
                self._blocked = self._in_the_way(pods)
                break
            errors = self._write(pods, plan.leave)
            self._blocked = self._in_the_way(pods)
            ready = {u: w for u, w in plan.enter.items() if u not in self._blocked and u not in errors}
            errors |= self._write(pods, ready)
        errors |= self._set_quotas(pods, errors)
        self.outcomes = {uid: self._outcome(uid, pods.get(uid), errors.get(uid, "")) for uid in self.grants}
        self._claims = {claim.key: claim for claim in claims}
        for uid in errors.keys() - self.grants.keys():
            log.warning("the cpusets of pod %s are not what they should be: %s", uid, errors[uid])

    def look_at(self, uid: str) -> bool:
        """Look at one pod, of which something has changed; True if what is to be said of it has changed.

        What kubelet gave to its containers is read again first: a pod that it pins has just come.
        """
        if self._rule.containers_only:
            self._refresh_rule()
        path = self._pods().get(uid)
        if path is None:
            return False
        pods, error = self._read({uid: path}), ""
        for _ in range(self._settings.attempts):
            plan = make_plan(self._files.version, pods, self.grants, self._rule, self._blocked)
            if not plan.leave and not plan.enter:
                break
            errors = self._write(pods, plan.leave) or self._write(pods, plan.enter)
            error = errors.get(uid, "")
        if uid not in self.grants:
            return False
        error = error or self._set_quotas(pods, [uid] if error else []).get(uid, "")
        before, now = self.outcomes.get(uid), self._outcome(uid, pods.get(uid), error)
        self.outcomes[uid] = now
        return now != before

    def standing(self, claim: Claim) -> tuple[Grant, Outcome] | Refusal | None:
        """How a claim stands; None if it has come, or has changed, since the last look at every pod."""
        if self._claims.get(claim.key) != claim:
            return None
        grant = self.grants.get(claim.pod_uid)
        if grant is None or grant.claim != claim:
            return self.refusals.get(claim.key)
        outcome = self.outcomes.get(claim.pod_uid)
        return None if outcome is None else (grant, outcome)

    @property
    def knows_kubelet(self) -> bool:
        """Whether it is known what kubelet decides; if not, nothing is written."""
        return self._rule.known

    def _refresh_rule(self) -> None:
        rule = self._rule_now()
        if rule.known or not self._rule.known:  # kubelet's file is away while an administrator changes the policy
            self._rule = rule

    def _read(self, paths: dict[str, str]) -> dict[str, PodCgroups]:
        found = {uid: self._files.pod(path) for uid, path in paths.items()}
        return {uid: pod for uid, pod in found.items() if pod is not None}

    def _write(self, pods: dict[str, PodCgroups], plan: Mapping[str, Sequence[Write]]) -> dict[str, str]:
        """Write, and read back what the kernel made of it; what it refused, by UID."""
        errors = {}
        for uid, writes in plan.items():
            if uid not in pods:
                continue  # gone by now
            error = self._files.apply(writes)
            if error is not None:
                errors[uid] = f"{error.strerror} ({error.filename})"
            if uid in self.grants:
                now, before = self._wall(), self.written_at.get(uid, 0.0)
                # What somebody else fights over is not told each time
                self.written_at[uid] = now if now - before >= self._settings.repair_seconds else before
            again = self._files.pod(pods[uid].path)
            if again is None:
                del pods[uid]
            else:
                pods[uid] = again
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

    def _in_the_way(self, pods: dict[str, PodCgroups]) -> dict[str, str]:
        found = {uid: intruders(pods, grant, self._rule) for uid, grant in self.grants.items() if grant.kept}
        return {uid: f"pod {' and '.join(others[:3])}" for uid, others in found.items() if others}

    def _outcome(self, uid: str, pod: PodCgroups | None, error: str) -> Outcome:
        blocked = self._blocked.get(uid, "")
        if pod is None:
            return Outcome(intruder=blocked)
        cpus, mems, same = granted(pod)
        if not cpus:
            return Outcome(intruder=blocked, error=error)
        claim = self.grants[uid].claim
        memory = pod.memory_of(claim)
        as_wished = cpus == claim.cpus and (self._rule.mems or not memory or mems == memory)
        return Outcome(cpus, mems, same and as_wished, blocked, error)


class Pinner:
    """The part of a node's agent that pins."""

    def __init__(
        self,
        session: Session,
        node_name: str,
        where: NodeFiles,
        settings: PinningSettings,
        wall: Callable[[], float],
        limits: Callable[[], Mapping[str, PodLimits]],
    ) -> None:
        """Nothing is read before `run`.

        Args:
            session: the way to the API server.
            node_name: the node's name.
            where: the node's files.
            settings: how to pin.
            limits: CPU limits of the node's pods by UID, of those that are known.
            wall: seconds since the epoch.

        Raises:
            OSError: the node has no cpuset hierarchy, or gives no inotify instance.
        """
        self._session = session
        self._node_name = node_name
        self._settings = settings
        self._wall = wall
        hierarchies = Hierarchies.detect(where.sys)
        if hierarchies.cpuset is None:
            raise OSError(f"no cpuset hierarchy below {where.sys}/fs/cgroup")
        root = hierarchies.cpuset
        self._watcher = PodWatcher(root, where.cgroup, self._pod_changed, lambda uid: None)
        self._containers = ContainerWatcher(root, self._look_at, Inotify)
        self._cpusets = NodeCpusets(
            CpusetFiles(root, hierarchies.version),
            lambda: self._watcher.pods,
            TopologyReader(where).read,
            lambda: read_rule(settings.kubelet_state, settings.kubelet_state.with_name("memory_manager_state")),
            settings,
            wall,
            _quotas(where, hierarchies, settings, limits),
        )
        self._reflector = Reflector(
            session,
            POD_CPU_BINDINGS,
            field_selector=f"status.nodeName={node_name}",
            on_change=self._binding_changed,
        )
        self._claims: dict[BindingKey, Claim] = {}
        self._objects: dict[BindingKey, Object] = {}
        self._enforced = False
        self._wake = asyncio.Event()
        self._say = asyncio.Event()

    @property
    def allocated(self) -> tuple[Numbers, Numbers]:
        """CPUs that bound pods run on, and those that are kept from pods without a binding."""
        grants = self._cpusets.grants.values()
        run_on, kept = (
            frozenset[int]().union(*each) for each in ((g.claim.cpus for g in grants), (g.kept for g in grants))
        )
        return run_on, kept

    async def run(self) -> None:
        """Pin until cancelled."""
        asyncio.get_running_loop().add_reader(self._containers.fileno(), self._containers.drain)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watcher.run())
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._enforce())
                tasks.create_task(self._publish())
        finally:
            asyncio.get_running_loop().remove_reader(self._containers.fileno())
            self._containers.close()

    async def say_goodbye(self) -> None:
        """Release every pin if the product is being removed; an agent that is only restarted leaves them."""
        reason = await self._removed()
        if reason:
            log.info("releasing every pin: %s", reason)
            self._watcher.refresh()
            self._cpusets.enforce(())
            self._watcher.close()
            if not self._cpusets.knows_kubelet:
                log.error("pins stay: %s", _any_could_be_kubelets(self._settings))

    async def _removed(self) -> str:
        if self._settings.daemon_set is None:
            return ""
        namespace, name = self._settings.daemon_set
        path = DAEMON_SETS.path(namespace, name)
        try:
            found = await self._session.request(
                "GET", path, timeout_seconds=self._settings.farewell_seconds, attempts=1
            )
        except NotFound:
            return f"DaemonSet {namespace}/{name} is gone"
        except (Unauthorized, Forbidden) as error:
            return f"our rights are gone ({error})"
        except KubeError as error:
            log.warning("pins stay: not known whether DaemonSet %s/%s is being removed: %s", namespace, name, error)
            return ""
        return f"DaemonSet {namespace}/{name} is being deleted" if "deletionTimestamp" in found["metadata"] else ""

    # What is heard

    def _binding_changed(self, old: Object | None, new: Object | None) -> None:
        metadata = (new or old or {})["metadata"]
        key = (metadata["namespace"], metadata["name"])
        before = self._claims.get(key)
        if new is None:
            self._objects.pop(key, None)
            claim = None
        else:
            self._objects[key] = new
            try:
                claim = read_claim(new, self._node_name, before)
            except ValueError as error:  # nobody of ours writes such a status, and it must not end the agent
                log.error("PodCPUBinding %s/%s is not usable: %s", *key, error)
                claim = None
        if claim is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = claim
        if claim != before:
            self._wake.set()
        self._say.set()

    def _pod_changed(self, uid: str, came: bool) -> None:
        if came:
            self._containers.follow(uid, self._watcher.pods[uid])
            self._look_at(uid)
        else:
            self._containers.forget(uid)

    def _look_at(self, uid: str) -> None:
        # No await between the event and the write: the container's program starts some 20 ms after its first process
        if self._enforced and self._cpusets.look_at(uid):
            self._say.set()

    # What is done

    async def _enforce(self) -> None:
        await self._reflector.synced.wait()
        complaint = ""
        while True:
            self._wake.clear()
            try:
                self._cpusets.enforce(self._claims.values())
                self._enforced, complaint = True, ""
            except (OSError, ValueError) as error:
                if str(error) != complaint:
                    log.error("CPUs can't be given to pods: %s", error)
                complaint = str(error)
            self._say.set()
            try:
                await asyncio.wait_for(self._wake.wait(), self._settings.repair_seconds)
            except TimeoutError:
                continue

    async def _publish(self) -> None:
        complaint = ""
        while True:
            await self._say.wait()
            self._say.clear()
            if not self._enforced:
                continue
            problem = ""
            for key, obj in list(self._objects.items()):
                status = self._status(key, obj)
                if status is None or status == own_part(obj.get("status") or {}):
                    continue
                try:
                    await self._write_status(key, obj, status)
                except (NotFound, Invalid, Conflict):
                    continue  # it is gone, or no longer what was meant: the watch tells in a moment
                except KubeError as error:
                    problem = "PodCPUBinding {}/{}: not told how it stands: {}".format(*key, error)
                    if not isinstance(error, ApiError):
                        break  # nobody answers; a refusal is of this one, and others wait for their word
            if problem:
                if not complaint:
                    log.warning("%s", problem)
                self._say.set()
                await asyncio.sleep(self._settings.retry_seconds)
            complaint = problem

    async def _write_status(self, key: BindingKey, obj: Object, status: Object) -> None:
        written = await apply_status(
            self._session,
            POD_CPU_BINDINGS,
            key[1],
            status,
            field_manager=_FIELD_MANAGER,
            namespace=key[0],
            uid=obj["metadata"]["uid"],
            force=True,
        )
        if self._objects.get(key) is obj:
            self._objects[key] = written

    def _status(self, key: BindingKey, obj: Object) -> Object | None:
        """What is to be said of a binding; None while it is not known."""
        claim = self._claims.get(key)
        if claim is None:
            return {}
        standing = self._cpusets.standing(claim)
        if standing is None:
            return None
        grant, said = (None, standing) if isinstance(standing, Refusal) else standing
        now = format_timestamp(self._wall())
        at = self._cpusets.written_at.get(claim.pod_uid)
        told = (obj.get("status") or {}).get("applied") or {}
        last = told.get("at") if told.get("podUID") == claim.pod_uid else None
        return build_agent_status(obj, claim, grant, said, format_timestamp(at) if at else last, now)


class TopologyReader:
    """The CPUs of the node, read again when some have come or gone."""

    def __init__(self, where: NodeFiles) -> None:
        """Nothing is read yet."""
        self._where = where
        self._seen: object = None
        self._topology: CPUTopology | None = None

    def read(self) -> CPUTopology:
        """The CPUs as they are now.

        Raises:
            OSError, ValueError: not even the list of online CPUs can be read.
        """
        cpus = None
        if self._where.scope == "Cgroup":
            cgroup = Cgroup(Hierarchies.detect(self._where.sys), self._where.cgroup)
            cpus = cgroup.effective_cpus()
            cgroup.close()
        seen = (cpus, fingerprint(self._where.sys))
        if self._topology is None or seen != self._seen:
            topology = read_topology(self._where.sys).topology
            self._topology, self._seen = topology if cpus is None else topology.only(cpus), seen
        return self._topology


def release(
    where: NodeFiles,
    settings: PinningSettings,
    wall: Callable[[], float],
    limits: Mapping[str, PodLimits] | None,
) -> None:
    """Give every pod of the node its unpinned cpuset back, and its CPU quota.

    Args:
        where: the node's files.
        settings: further files.
        wall: seconds since the epoch.
        limits: CPU limits of the node's pods by UID; None: not known, and quotas are left alone.

    Raises:
        OSError: there is no cpuset hierarchy, or kubelet's state can't be read.
    """
    hierarchies = Hierarchies.detect(where.sys)
    if hierarchies.cpuset is None:
        raise OSError(f"no cpuset hierarchy below {where.sys}/fs/cgroup")
    watcher = PodWatcher(hierarchies.cpuset, where.cgroup, lambda uid, came: None, lambda uid: None)
    watcher.refresh()
    watcher.close()
    cpusets = NodeCpusets(
        CpusetFiles(hierarchies.cpuset, hierarchies.version),
        lambda: watcher.pods,
        TopologyReader(where).read,
        lambda: read_rule(settings.kubelet_state, settings.kubelet_state.with_name("memory_manager_state")),
        settings,
        wall,
        None if limits is None else _quotas(where, hierarchies, settings, lambda: limits),
    )
    cpusets.enforce(())
    if not cpusets.knows_kubelet:
        raise OSError(_any_could_be_kubelets(settings))


def _any_could_be_kubelets(settings: PinningSettings) -> str:
    return f"{settings.kubelet_state} can't be read, so that any cpuset could be kubelet's (--kubelet-state)"


def _quotas(
    where: NodeFiles,
    hierarchies: Hierarchies,
    settings: PinningSettings,
    limits: Callable[[], Mapping[str, PodLimits]],
) -> PodQuotas:
    files = QuotaFiles(where.sys / "fs/cgroup" / _CPU[hierarchies.version], hierarchies.version)
    return PodQuotas(files, limits, kubelet_sets_quotas(settings.kubelet_config))
