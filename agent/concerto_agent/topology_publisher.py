"""Publishes NodeCPUTopology: when the CPUs, kubelet's files or the object's spec have changed, and at no other time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from concerto.api.conditions import Condition, merge_conditions, with_progress
from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.timestamps import format_timestamp
from concerto.kube import KubeError, Reflector, Session
from concerto.kube.reflector_settings import ONE_OF_MANY
from concerto.kube.resources import NODE_CPU_TOPOLOGIES
from concerto.linux.cpu_topology import (
    KubeletCPUs,
    TopologyReading,
    fingerprint,
    memory_size,
    read_kubelet,
    read_topology,
)
from concerto.linux.reserved_cpus import reserved_cpus
from concerto_agent.held_cpus import HeldCPUs
from concerto_agent.node_files import NodeFiles
from concerto_agent.topology_reader import TopologyReader
from concerto_agent.writer import NodeMissing, Object, Writer

if TYPE_CHECKING:
    from concerto_agent.cpuset_writer import WriterName

log = logging.getLogger(__name__)

_MAX_NAMED = 8
"""Bindings that a condition names one by one."""
_MEMORY_BLOCK = 128 * 2**20
"""Bytes: the smallest block in which Linux plugs memory in, on x86."""
_MAX_RESERVED = 9999
"""Of ``spec.reservedCPUs``: an earlier CRD took numbers of four digits, and the API server serves what it has taken."""


@dataclass(frozen=True)
class TopologySettings:
    """Where kubelet's files are, and how often to look.

    Attributes:
        kubelet_state: kubelet's ``cpu_manager_state``.
        kubelet_config: kubelet's KubeletConfiguration.
        look_seconds: between two looks at whether something has changed.
        retry_seconds: wait after a failed write.
    """

    kubelet_state: Path = Path("/var/lib/kubelet/cpu_manager_state")
    kubelet_config: Path = Path("/var/lib/kubelet/config.yaml")
    look_seconds: float = 2.0
    retry_seconds: float = 5.0


class TopologyPublisher:
    """The NodeCPUTopology of one node."""

    def __init__(
        self,
        session: Session,
        node_name: str,
        writer: Writer,
        where: NodeFiles,
        settings: TopologySettings,
        wall: Callable[[], float],
        held: Callable[[], HeldCPUs],
        cpuset_writer: Callable[[], WriterName],
        reserved_count: Callable[[], int | None],
        reserved_by_name: Callable[[], frozenset[int] | None] = lambda: None,
    ) -> None:
        """Nothing is read before `run`.

        Args:
            session: the way to the API server.
            node_name: the node's name.
            writer: writes the object.
            where: the node's files.
            settings: further files.
            wall: seconds since the epoch.
            held: what the bindings of the node hold.
            cpuset_writer: how cpusets are written.
            reserved_count: CPUs that the Node has not allocatable; None: not known.
            reserved_by_name: CPUs that kubelet says it reserves by name; None: its configuration file is read for them.
        """
        self._cpuset_writer = cpuset_writer
        self._held = held
        self._reserved_by_name = reserved_by_name
        # A node that shares its machine has the Node of the whole machine
        self._reserved_count = reserved_count if where.scope == "Machine" else lambda: None
        self._writer = writer
        self._where = where
        self._cpus = TopologyReader(where)
        self._settings = settings
        self._wall = wall
        self._object: Object | None = None
        self._memory: int | None = None
        own = f"metadata.name={node_name}"
        self._reflector = Reflector(
            session, NODE_CPU_TOPOLOGIES, field_selector=own, on_change=self._changed, settings=ONE_OF_MANY
        )
        self._wake = asyncio.Event()

    def _changed(self, _: Object | None, new: Object | None) -> None:
        self._object = new
        self._writer.saw(NODE_CPU_TOPOLOGIES, new)
        self._wake.set()

    async def run(self) -> None:
        """Look and publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._publish())

    async def _publish(self) -> None:
        await self._reflector.synced.wait()
        seen: object = None
        failed = False
        while True:
            self._wake.clear()
            obj = self._object
            metadata = {} if obj is None else obj["metadata"]
            now = (
                (self._fingerprint(), self._held(), self._cpuset_writer()),
                metadata.get("uid"),
                metadata.get("generation"),
            )
            wait = self._settings.look_seconds
            if now != seen:
                try:
                    written = await self._look_and_write(obj)
                    metadata = written["metadata"]
                    seen = (now[0], metadata["uid"], metadata["generation"])
                    failed = False
                except Exception as error:
                    if not failed:
                        expected = isinstance(error, KubeError | NodeMissing | OSError | ValueError)
                        log.warning(
                            "NodeCPUTopology was not published: %s", error, exc_info=None if expected else error
                        )
                    failed = True
                    wait = self._settings.retry_seconds
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    def _fingerprint(self) -> object:
        files = (self._settings.kubelet_state, self._settings.kubelet_config)
        reserved = (self._reserved_count(), self._reserved_by_name())
        cpus = (self._cpus.cgroup_cpus(), self._cpus.pod_cpus())
        return cpus, reserved, self._memory_size(), fingerprint(self._where.sys, *files)

    def _memory_size(self) -> int | None:
        """Bytes of memory, at the last change by a block or more: a balloon's driver changes a little all the time."""
        now, before = memory_size(self._where.proc), self._memory
        if now is None or before is None or abs(now - before) >= _MEMORY_BLOCK:
            self._memory = now
        return self._memory

    async def _look_and_write(self, obj: Object | None) -> Object:
        reading = read_topology(self._where.sys)
        if (cpus := self._cpus.cgroup_cpus()) is not None:
            reading = TopologyReading(reading.topology.only(cpus), reading.problems)
        named = self._reserved_by_name()
        kubelet = read_kubelet(self._settings.kubelet_state, self._settings.kubelet_config, named)
        if not named:  # else kubelet has said itself which
            reserved, problem = reserved_cpus(reading.topology, kubelet, self._reserved_count())
            problems = (*kubelet.problems, problem) if problem else kubelet.problems
            kubelet = replace(kubelet, reserved=reserved, problems=problems)
        pods = self._cpus.pod_cpus()
        status = build_topology_status(obj or {}, reading, kubelet, self._wall(), self._held(), pods)
        status["cpusetWriter"] = self._cpuset_writer()
        written = await self._writer.apply_status(NODE_CPU_TOPOLOGIES, status)
        log.info("topology published: %s", status["counts"])
        return written


def build_topology_status(
    obj: Object,
    reading: TopologyReading,
    kubelet: KubeletCPUs,
    now: float,
    held: HeldCPUs | None = None,
    pod_cpus: frozenset[int] | None = None,
) -> Object:
    """The status of a NodeCPUTopology. CPUs that no pod can have are left out, as bindings of them can't be applied.

    Args:
        obj: the object as it is, for its spec, generation and conditions; empty if it is about to be made.
        reading: what sysfs said.
        kubelet: what kubelet's files said.
        now: seconds since the epoch.
        held: what the bindings of the node hold; None: nothing.
        pod_cpus: CPUs that the cgroup of all pods has; None: not known, so all.
    """
    held = held or HeldCPUs()
    topology = reading.topology
    if pod_cpus is not None and topology.cpus & pod_cpus:
        # A pod of kubelet's can be a partition of its own, and the cgroup of all pods then lacks its CPUs
        topology = topology.only(pod_cpus | kubelet.exclusive | topology.offline)
    online, without_pods = topology.cpus, reading.topology.cpus - topology.cpus
    generation = obj.get("metadata", {}).get("generation", 1)
    asked = obj.get("spec", {}).get("reservedCPUs")
    reserved = kubelet.reserved if asked is None else parse_cpu_list(asked, _MAX_RESERVED)
    pools = held.pools(online, kubelet.exclusive, reserved)
    return {
        "observedGeneration": generation,
        "observedAt": format_timestamp(now),
        "counts": topology.counts(),
        "pools": pools.to_raw(),
        "topology": topology.to_raw(),
        "conditions": merge_conditions(
            (obj.get("status") or {}).get("conditions") or (),
            [
                *_conditions(
                    reading.problems,
                    kubelet.problems,
                    () if asked is None else reserved - reading.topology.cpus,
                    without_pods,
                ),
                _kubelet_conflict(held.kubelet_conflicts),
            ],
            now=format_timestamp(now),
            observed_generation=generation,
        ),
    }


def _kubelet_conflict(bindings: tuple[str, ...]) -> Condition:
    if not bindings:
        return Condition("KubeletConflict", "False", "AsExpected", "No binding names what kubelet controls.")
    shown = ", ".join(bindings[:_MAX_NAMED])
    more = f" and {len(bindings) - _MAX_NAMED} more" if len(bindings) > _MAX_NAMED else ""
    text = (
        f"kubelet's static CPU manager controls CPUs or containers that these PodCPUBindings name: {shown}{more}. "
        "Delete the bindings, or leave out the CPU limits of the pods."
    )
    return Condition("KubeletConflict", "True", "StaticPolicy", text)


def _conditions(
    hidden: Iterable[str], kubelet: Iterable[str], offline: Iterable[int], without_pods: Iterable[int]
) -> list[Condition]:
    problems, unknown, absent = " ".join(hidden), " ".join(kubelet), format_cpu_list(offline)
    if problems:
        ready = Condition("Ready", "False", "Incomplete", problems)
    elif unknown:
        ready = Condition("Ready", "False", "KubeletUnknown", unknown)
    elif absent:
        text = f"spec.reservedCPUs names CPUs that are not online: {absent}. The others are reserved."
        ready = Condition("Ready", "True", "ReservedOffline", text)
    else:
        ready = Condition("Ready", "True", "Read", "All CPUs are known, and which of them kubelet keeps.")
    if left_out := format_cpu_list(without_pods):
        text = f"CPUs {left_out} are left out: kubelet's cgroup kubepods is kept off them, so no pod can have them."
        if ready.reason == "Read":
            ready = Condition("Ready", "True", "CPUsNotForPods", text)
        else:  # no other condition says so
            ready = replace(ready, message=f"{ready.message} {text}")
    return with_progress(ready)
