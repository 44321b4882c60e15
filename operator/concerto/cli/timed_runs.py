"""Runs a command on given CPUs, in a cpuset cgroup of its own, and says how long it took."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from concerto.api.cpulist import format_cpu_list, parse_cpu_list

# The shell joins before it becomes the command: no instruction of the command runs anywhere else
_JOIN = 'echo $$ >"$0" && exec "$@"'


class CpusetError(Exception):
    """No cpuset can be had here, or the command failed in it; the message says which."""


class Cpuset:
    """A cgroup with the cpuset controller (v1 or v2), below the root of the hierarchy; removed on leaving it.

    Needs root. Other programs may still run on the command's CPUs.
    """

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        """Nothing is made before it is entered.

        Args:
            root: where the cgroup hierarchies are mounted.
        """
        self._v2 = (root / "cgroup.controllers").exists()
        self._parent = root if self._v2 else root / "cpuset"
        self._path = self._parent / f"concerto-classify-{os.getpid()}"

    def __enter__(self) -> Self:
        try:
            if self._v2:
                (self._parent / "cgroup.subtree_control").write_text("+cpuset")
            self._path.mkdir()
        except OSError as error:
            raise CpusetError(
                f"no cpuset cgroup can be made in {self._parent}: {error.strerror}; are you root?"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._path.rmdir()

    def available(self) -> frozenset[int]:
        """The CPUs that can be given to it.

        Raises:
            CpusetError: that can't be read.
        """
        name = "cpuset.cpus.effective" if self._v2 else "cpuset.effective_cpus"
        try:
            return parse_cpu_list((self._parent / name).read_text()) & os.sched_getaffinity(0)
        except OSError as error:
            raise CpusetError(f"{self._parent / name}: {error.strerror}") from error

    def seconds(self, command: Sequence[str], cpus: Iterable[int], mems: Iterable[int]) -> float:
        """Wall time of the command on just these CPUs, with its memory from these memory nodes.

        Raises:
            CpusetError: the kernel does not grant the CPUs, or the command does not exit with 0.
        """
        wanted = format_cpu_list(cpus)
        try:
            (self._path / "cpuset.cpus").write_text(wanted)
            (self._path / "cpuset.mems").write_text(format_cpu_list(mems))
            granted = (self._path / ("cpuset.cpus.effective" if self._v2 else "cpuset.effective_cpus")).read_text()
        except OSError as error:
            raise CpusetError(f"CPUs {wanted} are not granted: {error.strerror}") from error
        if parse_cpu_list(granted) != parse_cpu_list(wanted):
            raise CpusetError(f"CPUs {wanted} are not granted, but {granted.strip() or 'none'}")
        began = time.monotonic()
        done = subprocess.run(
            ["sh", "-c", _JOIN, str(self._path / "cgroup.procs"), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        took = time.monotonic() - began
        if done.returncode:
            raise CpusetError(f"{command[0]} ended with status {done.returncode}")
        return took
