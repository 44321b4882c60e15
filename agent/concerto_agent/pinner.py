"""Pins pods to CPUs: follows the node's PodCPUBindings, has cpusets written, and publishes the outcome.

`cpusets.make_plan` decides what is written; this module decides when. All pods are looked at when a binding changes and
every few seconds; one pod is looked at as soon as a container of it appears, a process enters one, or somebody writes a
cpuset of it. Nothing is written before all bindings of the node are known, and no status claims CPUs for a pod
before all others are off them. The API server and the kernel hold the truth: a restart reads both.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from concerto.api.object_bounds import bound_metadata
from concerto.api.podcpubinding import BindingKey
from concerto.api.timestamps import format_timestamp
from concerto.kube import KubeError, NotFound, Reflector, Session
from concerto.kube.errors import Forbidden, Unauthorized
from concerto.kube.reflector import Decoding, key_of
from concerto.kube.reflector_settings import ONE_OF_MANY
from concerto.kube.resources import DAEMON_SETS, POD_CPU_BINDINGS
from concerto_agent.binding_statuses import BindingStatuses
from concerto_agent.bindings import Object, build_agent_status, read_claim
from concerto_agent.cgroups import find_cpusets
from concerto_agent.cpuset_files import ContainerWatcher
from concerto_agent.cpuset_writer import CpusetWriter, WriterName
from concerto_agent.cpusets import Claim, Refusal
from concerto_agent.error_log import ErrorLog
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.inotify import Inotify
from concerto_agent.large_objects import decode_bindings
from concerto_agent.memory_writes import Work
from concerto_agent.node_cpusets import open_cpusets
from concerto_agent.node_files import NodeFiles
from concerto_agent.pin_counts import PinCounts, count_pins
from concerto_agent.pinning_settings import PinningSettings, kubelet_unknown
from concerto_agent.pod_watcher import PodWatcher
from concerto_agent.quotas import PodLimits
from concerto_agent.runtime_plugin import RuntimePlugin
from concerto_agent.topology_reader import TopologyReader
from concerto_agent.workload_fit import Fits

log = logging.getLogger(__name__)


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
        names: Callable[[str], Mapping[str, str]] = lambda uid: {},
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is read before `run`.

        Args:
            session: the way to the API server.
            node_name: the node's name.
            where: the node's files.
            settings: how to pin.
            limits: CPU limits of the node's pods by UID, of those that are known.
            names: of a pod's running containers, by their IDs; takes the pod's UID.
            wall: seconds since the epoch.
            clock: monotonic seconds.

        Raises:
            OSError: the node has no cpuset hierarchy.
        """
        self._session = session
        self._node_name = node_name
        self._settings = settings
        self._wall = wall
        self._clock = clock
        hierarchies, root = find_cpusets(where.sys)
        self._watcher = PodWatcher(root, where.cgroup, self._pod_changed, lambda uid: None)
        self._containers = ContainerWatcher(root, self._look_at, Inotify)
        self._names_in_status = names
        cpusets = open_cpusets(where, settings, self._pods, wall, limits, self._names)
        self._memory = cpusets.memory
        self._memory.move_to(self._in_thread, self._memory_moved)
        self._moving: set[asyncio.Future[OSError | None]] = set()
        self._cpusets: CpusetWriter = cpusets
        self._plugin = (
            None
            if settings.nri is None
            else RuntimePlugin(settings.nri, self._watcher, self._look_at, self._cpusets.start_cpus)
        )
        self._topology = TopologyReader(where)
        self._reflector = Reflector(
            session,
            POD_CPU_BINDINGS,
            field_selector=f"status.nodeName={node_name}",
            trim=bound_metadata,
            decoding=Decoding(decode_bindings, decode_bindings),
            on_change=self._binding_changed,
            settings=ONE_OF_MANY,
        )
        self._claims: dict[BindingKey, Claim] = {}
        self._statuses = BindingStatuses(session, settings, self._status, clock, log)
        self._fits = Fits(hierarchies, settings.fit)
        self._enforced = asyncio.Event()
        self._errors = ErrorLog(log)
        self._missed: set[str] = set()  # pods that changed before the first look at all of them was over
        self._wake = asyncio.Event()

    @property
    def held(self) -> HeldCPUs:
        """What the bindings of the node hold now."""
        return self._cpusets.held()

    @property
    def writer(self) -> WriterName:
        """How cpusets are written now."""
        return "NRI" if self._plugin is not None and self._plugin.is_registered else "Files"

    def counts(self) -> PinCounts:
        """The numbers for metrics."""
        try:
            online = self._topology.read().cpus
        except (OSError, ValueError):
            online = frozenset()
        return count_pins(self._cpusets, self._claims.values(), online, self._plugin)

    def containers_known(self, uid: str) -> None:
        """The names of a pod's running containers have changed."""
        grant = self._cpusets.grants.get(uid)
        if grant is None:
            return
        standing = self._cpusets.standing(grant.claim)
        started = isinstance(standing, tuple) and standing[1].started
        # Each look holds up containers of other pods that start just now
        if grant.claim.containers or not started:
            self._look_at(uid)

    async def run(self) -> None:
        """Pin until cancelled."""
        self._listen()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watcher.run())
                tasks.create_task(self._reflector.run())
                tasks.create_task(self._enforce())
                tasks.create_task(self._statuses.run(self._enforced))
                if self._plugin is not None:
                    tasks.create_task(self._answer_runtime(self._plugin))
        finally:
            if (descriptor := self._containers.fileno()) is not None:
                asyncio.get_running_loop().remove_reader(descriptor)
            self._containers.close()

    def _listen(self) -> None:
        """Have the loop tell of changes in containers' cgroups, if the kernel has given an inotify instance by now."""
        if (descriptor := self._containers.fileno()) is not None:
            asyncio.get_running_loop().add_reader(descriptor, self._containers.drain)

    async def release_on_uninstall(self) -> None:
        """Release every pin if the product is being removed; an agent that is only restarted leaves them."""
        reason = await self._removed()
        if reason:
            log.info("releasing every pin: %s", reason)
            self._memory.run = None
            await asyncio.gather(*self._moving)
            self._watcher.refresh()
            self._cpusets.enforce(())
            self._watcher.close()
            if not self._cpusets.knows_kubelet:
                log.error("pins stay: %s", kubelet_unknown(self._settings))

    async def _removed(self) -> str:
        if self._settings.daemon_set is None:
            return ""
        namespace, name = self._settings.daemon_set
        path = DAEMON_SETS.path(namespace, name)
        try:
            found = await self._session.request(
                "GET", path, timeout_seconds=self._settings.release_timeout_seconds, attempts=1
            )
        except NotFound:
            return f"DaemonSet {namespace}/{name} is gone"
        except (Unauthorized, Forbidden) as error:
            return f"the API server no longer accepts this agent ({error})"
        except KubeError as error:
            log.warning(
                "pins stay, because it is unknown whether DaemonSet %s/%s is being removed: %s", namespace, name, error
            )
            return ""
        return f"DaemonSet {namespace}/{name} is being deleted" if "deletionTimestamp" in found["metadata"] else ""

    async def _answer_runtime(self, plugin: RuntimePlugin) -> None:
        # A runtime that waits for this plugin must not create containers before all bindings are known
        await self._enforced.wait()
        await plugin.run()

    def _names(self, uid: str) -> Mapping[str, str]:
        """Names of a pod's containers by their IDs: the runtime gives them before the pod's status has them."""
        return {**self._names_in_status(uid), **(self._plugin.names(uid) if self._plugin is not None else {})}

    def _pods(self) -> Mapping[str, str] | None:
        return None if self._watcher.kubepods is None else self._watcher.pods

    # Changes in the API and in the cgroups

    def _binding_changed(self, old: Object | None, new: Object | None) -> None:
        key = key_of(new or old or {})
        before = self._claims.get(key)
        claim = None
        if new is not None:
            try:
                claim = read_claim(new, self._node_name, before)
            except Exception as error:  # Concerto writes no such status, and it must not end the agent
                log.error("PodCPUBinding %s/%s is not usable: %s: %s", *key, type(error).__name__, error)
        if claim is None:
            self._claims.pop(key, None)
        else:
            self._claims[key] = claim
        if claim != before:
            self._wake.set()
        self._statuses.put(key, new, asks_anew=claim != before)

    def _pod_changed(self, uid: str, came: bool) -> None:
        if came:
            self._containers.follow(uid, self._watcher.pods[uid])
            self._look_at(uid)
        else:
            self._containers.forget(uid)
            if self._plugin is not None:
                self._plugin.forget(uid)

    def _look_at(self, uid: str) -> None:
        # No await between the event and the write: the container's program starts some 20 ms after its first process
        if not self._enforced.is_set():
            self._missed.add(uid)
            return
        try:
            changed = self._cpusets.look_at(uid)
        except Exception as error:  # the other pods that have changed must have their turn, too
            self._errors.note(f"pod {uid}", error)
            return
        self._errors.forget(f"pod {uid}")
        if changed:
            self._statuses.look()

    # Writing

    def _in_thread(self, work: Work, done: Callable[[OSError | None], None]) -> None:
        moving = asyncio.get_running_loop().run_in_executor(None, work)
        self._moving.add(moving)

        def finished(future: asyncio.Future[OSError | None]) -> None:
            self._moving.discard(future)
            if not future.cancelled():
                done(future.result())

        moving.add_done_callback(finished)

    def _memory_moved(self, uid: str) -> None:
        self._look_at(uid)
        self._statuses.look()

    async def _enforce(self) -> None:
        await self._reflector.synced.wait()
        while True:
            self._wake.clear()
            for _ in self._containers.renew():
                await asyncio.sleep(0)
            self._listen()
            try:
                for _ in self._cpusets.steps(list(self._claims.values())):
                    await asyncio.sleep(0)  # containers that have just started come first
                self._enforced.set()
                self._errors.forget("CPUs can't be given to pods")
                while self._missed:
                    self._look_at(self._missed.pop())
                self._fits.look(self._cpusets.grants, self._watcher.pods, self._clock())
            except Exception as error:  # the next look may succeed, and to end would give up the pins of all pods
                self._errors.note("CPUs can't be given to pods", error)
            self._statuses.look()
            try:
                await asyncio.wait_for(self._wake.wait(), self._settings.repair_seconds)
            except TimeoutError:
                continue

    def _status(self, key: BindingKey, obj: Object) -> Object | None:
        """The status to write for a binding; None while it is not known."""
        claim = self._claims.get(key)
        if claim is None:
            return {}
        standing = self._cpusets.standing(claim)
        if standing is None:
            return None
        grant, said = (None, standing) if isinstance(standing, Refusal) else standing
        if not isinstance(said, Refusal):
            said = replace(said, fit=self._fits.of(claim.pod_uid))
        now = format_timestamp(self._wall())
        at = self._cpusets.written_at.get(claim.pod_uid)
        applied = (obj.get("status") or {}).get("applied") or {}
        last = applied.get("at") if applied.get("podUID") == claim.pod_uid else None
        return build_agent_status(obj, claim, grant, said, format_timestamp(at) if at else last, now)
