"""What the container runtime's calls mean for cpusets: NRI's side of pinning.

A container gets its CPUs when it is created, and its cgroup is checked once more before its program starts: bindings
may have come or gone in between. Both are answered from memory and a few files of one pod. What changes while
containers run is written to cgroup files, with this plugin and without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto_agent.container_start import NewContainer, StartCpus, StartResult
from concerto_agent.nri.client import NriClient, NriSettings
from concerto_agent.nri.messages import Container
from concerto_agent.nri.session import CpusetChange, Moment
from concerto_agent.pod_watcher import PodWatcher


class RuntimePlugin:
    """Gives containers their CPUs before their programs start.

    Attributes:
        created: containers that the runtime has created since the start, by what they got.
    """

    def __init__(
        self,
        settings: NriSettings,
        watcher: PodWatcher,
        look_at: Callable[[str], None],
        start_cpus: Callable[[NewContainer], StartCpus],
    ) -> None:
        """Nothing is connected before `run`.

        Args:
            settings: where the runtime is.
            watcher: knows the cgroups of the node's pods.
            look_at: brings the cgroups of one pod to what they are to have; takes its UID.
            start_cpus: what a container is to be created with.
        """
        self.created: Counter[StartResult] = Counter()
        self._client = NriClient(settings, self._decide)
        self._watcher = watcher
        self._look_at = look_at
        self._start_cpus = start_cpus
        self._identities: dict[str, dict[str, str]] = {}  # by UID of the pod and name of the container, the latest

    @property
    def is_registered(self) -> bool:
        """Whether the runtime calls for each container now."""
        return self._client.runtime is not None

    @property
    def registrations(self) -> int:
        """Times that the plugin was registered, since the start."""
        return self._client.connections

    def names(self, uid: str) -> dict[str, str]:
        """Names of a pod's latest containers, by their IDs, as the runtime gave them."""
        return {identity: name for name, identity in self._identities.get(uid, {}).items()}

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._identities.pop(uid, None)

    async def run(self) -> None:
        """Answer the runtime until cancelled. Every binding of the node has to be known."""
        await self._client.run()

    def _decide(self, container: Container, moment: Moment) -> CpusetChange:
        uid = container.pod_uid
        if uid not in self._watcher.pods:
            self._watcher.refresh()  # its events may be waiting behind this call
        known = uid in self._watcher.pods
        if known:
            if container.identity:
                self._identities.setdefault(uid, {})[container.name] = container.identity
            self._look_at(uid)
        if moment == "Start":
            return CpusetChange()
        chosen = StartCpus("Unknown")
        if known:
            asked = parse_cpu_list(container.cpus)
            chosen = self._start_cpus(NewContainer(uid, container.name, asked, exists=moment == "Update"))
        if moment == "Create":
            self.created[chosen.result] += 1
        return CpusetChange(format_cpu_list(chosen.cpus), format_cpu_list(chosen.mems))
