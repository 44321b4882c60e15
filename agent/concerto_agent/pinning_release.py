"""Gives every pod of a node its unpinned cpuset and its CPU quota back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from concerto_agent.cgroups import find_cpusets
from concerto_agent.node_cpusets import open_cpusets
from concerto_agent.node_files import NodeFiles
from concerto_agent.pinning_settings import PinningSettings, kubelet_unknown
from concerto_agent.pod_watcher import PodWatcher
from concerto_agent.quotas import PodLimits


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
    _, root = find_cpusets(where.sys)
    watcher = PodWatcher(root, where.cgroup, lambda uid, came: None, lambda uid: None)
    watcher.refresh()
    watcher.close()
    by_uid = None if limits is None else (lambda: limits)
    cpusets = open_cpusets(where, settings, lambda: watcher.pods, wall, by_uid)
    cpusets.enforce(())
    if not cpusets.knows_kubelet:
        raise OSError(kubelet_unknown(settings))
