"""The CPUs of the node, those of its cgroup where nodes share a machine, read again when some have come or gone."""

from __future__ import annotations

from concerto.api.nodecputopology import CPUTopology
from concerto.linux.cpu_topology import fingerprint, read_topology
from concerto_agent.cgroups import Cgroup, Hierarchies, kubepods_below
from concerto_agent.node_files import NodeFiles


class TopologyReader:
    """The CPUs of the node, read again when some have come or gone."""

    def __init__(self, where: NodeFiles) -> None:
        """Nothing is read before `read`."""
        self._where = where
        self._cgroup: Cgroup | None = None
        self._seen: object = None
        self._topology: CPUTopology | None = None

    def cgroup_cpus(self) -> frozenset[int] | None:
        """CPUs of the node's cgroup; None where the node is the machine."""
        if self._where.scope != "Cgroup":
            return None
        if self._cgroup is None:
            self._cgroup = Cgroup(Hierarchies.detect(self._where.sys), self._where.cgroup)
        return self._cgroup.effective_cpus()

    def pod_cpus(self) -> frozenset[int] | None:
        """CPUs that kubelet's pods can have; None where their cgroup, or the hierarchy with cpusets, is not found.

        ``AllowedCPUs`` of systemd, and a cpuset partition of other programs, take the others away from all pods.
        """
        hierarchies = Hierarchies.detect(self._where.sys)
        if hierarchies.cpuset is None:
            return None
        path = next(iter(kubepods_below(hierarchies.cpuset, self._where.cgroup.strip("/"))), None)
        return None if path is None else Cgroup(hierarchies, path).effective_cpus()

    def read(self) -> CPUTopology:
        """The CPUs as they are now.

        Raises:
            OSError, ValueError: not even the list of online CPUs can be read.
        """
        cpus = self.cgroup_cpus()
        seen = (cpus, fingerprint(self._where.sys))
        if self._topology is None or seen != self._seen:
            topology = read_topology(self._where.sys).topology
            self._topology, self._seen = topology if cpus is None else topology.only(cpus), seen
        return self._topology
