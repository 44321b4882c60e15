"""The CPU quota of pods whose binding asks for none: lifted while they are pinned, and put back afterwards.

Kubelet writes a quota when a pod or container is made, and when its limit is changed, so that a quota that is missing
though there is a limit is one that was lifted here (unless kubelet is configured to set none). Weights are kubelet's:
they follow requests, and so they should.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from concerto.api.quantities import milli
from concerto_agent.cgroups import container_id
from concerto_agent.files import GONE, write_file

_MIN_QUOTA_US = 1000
"""The kernel takes none below it, and kubelet gives no smaller one."""


@dataclass(frozen=True)
class Quota:
    """CPU time in each period.

    Attributes:
        quota_us: microseconds; None: without limit.
        period_us: microseconds.
    """

    quota_us: int | None
    period_us: int


@dataclass(frozen=True)
class PodLimits:
    """CPU limits that kubelet makes quotas of.

    Attributes:
        pod_millicores: of the whole pod; None if a container has none.
        containers: millicores by container ID, of those that have a limit and run.
    """

    pod_millicores: int | None
    containers: Mapping[str, int]


def spec_limits(spec: Mapping[str, Any]) -> dict[str, int]:
    """CPU limits of a pod's containers by name, millicores; the pod's own under ``""`` if kubelet gives it a quota.

    As kubelet adds them up: init containers that go on running count with the others, one that ends first with those
    that run by then, if that is more; a pod has none as long as any of its containers, init containers too, has none.
    """
    limits: dict[str, int] = {}
    together, most, going_on, complete = 0, 0, 0, True
    for container in spec.get("containers") or ():
        millicores = _cpu_limit(container)
        if millicores:
            limits[container["name"]] = millicores
        together += millicores
        complete &= millicores > 0
    for container in spec.get("initContainers") or ():
        millicores = needs = _cpu_limit(container)
        if millicores:
            limits[container["name"]] = millicores
        if container.get("restartPolicy") == "Always":
            together += millicores
            going_on += millicores
            needs = 0
        most = max(most, needs + going_on)
        complete &= needs + going_on > 0
    whole = _cpu_limit(spec)
    if whole or (complete and together):
        limits[""] = (whole or max(most, together)) + milli((spec.get("overhead") or {}).get("cpu", "0"))
    return limits


def _cpu_limit(holder: Mapping[str, Any]) -> int:
    """Millicores; 0 for none, as kubelet takes a limit of 0 for none."""
    return milli(((holder.get("resources") or {}).get("limits") or {}).get("cpu", "0"))


def kubelet_sets_quotas(config: Path) -> bool | None:
    """Whether kubelet makes quotas of limits; None where its configuration can't be read."""
    try:
        settings = yaml.safe_load(config.read_bytes())
        return settings.get("cpuCFSQuota", True) is not False
    except (OSError, AttributeError, yaml.YAMLError):
        return None


def quota_writes(now: Mapping[str, Quota], pod: str, *, lifted: bool, limits: PodLimits | None) -> dict[str, Quota]:
    """What to write, in order: a parent's limit is never below a child's.

    Args:
        now: of the pod's cgroup and its containers', by path.
        pod: path of the pod's.
        lifted: whether there shall be no quota.
        limits: the pod's; None where they are not known, and nothing is put back.
    """
    ordered = sorted(now, key=lambda path: path != pod)
    if lifted:
        return {path: Quota(None, now[path].period_us) for path in ordered if now[path].quota_us is not None}
    writes: dict[str, Quota] = {}
    if limits is None:
        return writes
    for path in reversed(ordered):
        name = container_id(path.rpartition("/")[2]) or ""
        millicores = limits.pod_millicores if path == pod else limits.containers.get(name)
        if now[path].quota_us is None and millicores is not None:
            quota_us = max(millicores * now[path].period_us // 1000, _MIN_QUOTA_US)
            writes[path] = Quota(quota_us, now[path].period_us)
    return writes


class QuotaFiles:
    """The quotas of one hierarchy."""

    def __init__(self, root: Path, version: int, write: Callable[[Path, str], None] = write_file) -> None:
        """Nothing is read yet; arguments as of `CpusetFiles`."""
        self._root = root
        self._version = version
        self._write = write

    def read(self, path: str) -> Quota | None:
        """A cgroup's quota; None if it is gone, or has none to be set."""
        directory = self._root / path
        try:
            if self._version == 2:
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota, period = ((directory / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period"))
            return Quota(None if quota in ("max", "-1") else int(quota), int(period))
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
        except ValueError as error:
            raise OSError(errno.EIO, "its quota can't be read", path) from error

    def write(self, path: str, quota: Quota) -> None:
        """Set a cgroup's quota; its period stays.

        Raises:
            OSError: the kernel refuses, or the cgroup is gone.
        """
        if self._version == 2:
            text = f"{'max' if quota.quota_us is None else quota.quota_us} {quota.period_us}"
            self._write(self._root / path / "cpu.max", text)
        else:
            text = f"{-1 if quota.quota_us is None else quota.quota_us}"
            self._write(self._root / path / "cpu.cfs_quota_us", text)

    def enforce(self, pod: str, containers: list[str], *, lifted: bool, limits: PodLimits | None) -> OSError | None:
        """Lift the quotas of a pod, or put them back; what the kernel refused first, None if nothing."""
        try:
            read = {path: self.read(path) for path in (pod, *containers)}
            now = {path: quota for path, quota in read.items() if quota is not None}
            for path, quota in quota_writes(now, pod, lifted=lifted, limits=limits).items():
                self.write(path, quota)
        except OSError as error:
            return None if error.errno in GONE else error
        return None


class PodQuotas:
    """The quotas of all pods, lifted or put back as requested."""

    def __init__(
        self, files: QuotaFiles, limits: Callable[[], Mapping[str, PodLimits]], kubelet_sets: Callable[[], bool | None]
    ) -> None:
        """Nothing is read yet.

        Args:
            files: where they are.
            limits: of the pods that are known, by UID.
            kubelet_sets: whether kubelet makes quotas of limits. While that is not known (None), only what this process
                has lifted is put back.
        """
        self._files = files
        self._limits = limits
        self._kubelet_sets = kubelet_sets
        self._lifted: set[str] = set()

    def forget_all_but(self, uids: Collection[str]) -> None:
        """Take note that there are no pods but these: for others nothing has to be put back."""
        self._lifted.intersection_update(uids)

    def enforce(self, pods: Mapping[str, tuple[str, list[str]]], unlimited: Collection[str]) -> dict[str, str]:
        """Look at pods.

        Args:
            pods: by UID, paths of the pod's cgroup and of its containers'.
            unlimited: UIDs of those that shall have no quota.

        Returns:
            What the kernel refused, by UID.
        """
        errors = {}
        kubelet_sets = self._kubelet_sets()
        known = self._limits() if kubelet_sets is not False else {}
        for uid, (path, containers) in pods.items():
            lifted = uid in unlimited
            limits = known.get(uid)
            if lifted:
                self._lifted.add(uid)
            elif limits is None or not (kubelet_sets or uid in self._lifted):
                continue
            error = self._files.enforce(path, containers, lifted=lifted, limits=limits)
            if error is not None:
                errors[uid] = f"{error.strerror} (CPU quota)"
            elif not lifted:
                self._lifted.discard(uid)
        return errors
