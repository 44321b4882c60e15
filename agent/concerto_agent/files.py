"""Reading the kernel's text files: descriptors that stay open, and parsers that return None for what is not there.

A parser never guesses: a field that is missing or no number gives None, and the caller says so in a condition.
"""

from __future__ import annotations

import errno
import os
import re
from functools import lru_cache
from pathlib import Path

from concerto.api.cpulist import parse_cpu_list

_READ_BYTES = 65536
"""What is asked for at first; few files are longer."""
_MOST_BYTES = 4 * 2**20
"""Of one file: /proc/stat has some 100 bytes for each CPU, and a list of all interrupts."""
GONE = (errno.ENOENT, errno.ENODEV, errno.ENOTDIR)
"""Numbers of the errors by which a file's cgroup is known to be gone."""


class KeptFile:
    """A file that is read again and again through one descriptor (2-6 µs a read; opening would cost as much again).

    The file may come and go: a read that fails closes the descriptor and tries once to open the path anew, so that a
    cgroup that was removed and made again is found with the next read.

    Attributes:
        path: the file.
        error: why the last read gave None.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.error: OSError | None = None
        self._descriptor: int | None = None
        self._read_bytes = _READ_BYTES
        self._held: tuple[bytes | None] | None = None

    def hold(self, content: bytes | None) -> None:
        """Have `read` give what the file held at an earlier time, until `release`."""
        self._held = (content,)

    def release(self) -> None:
        """Have `read` read the file again."""
        self._held = None

    def read(self) -> bytes | None:
        """The file's content (its first 4 MiB), or None if it can't be read now."""
        if self._held is not None:
            return self._held[0]
        if self._descriptor is not None:
            try:
                return self._read_all(self._descriptor)
            except OSError:
                self.close()
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            return self._read_all(self._descriptor)
        except OSError as error:
            self.error = error
            self.close()
            return None

    def _read_all(self, descriptor: int) -> bytes:
        """In one read, as the parts of two would be of two moments."""
        while True:
            data = os.pread(descriptor, self._read_bytes, 0)
            if len(data) < self._read_bytes or self._read_bytes >= _MOST_BYTES:
                return data
            self._read_bytes *= 2

    def close(self) -> None:
        """Give the descriptor back; the next read opens the file again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read_once(path: str) -> bytes | None:
    """The file's content (its first 4 MiB), or None if it can't be read; half as dear as ``Path.read_bytes``."""
    file = KeptFile(path)
    try:
        return file.read()
    finally:
        file.close()


def subdirectories(path: Path | str) -> list[str]:
    """Names of the directories that lie in one, in no order.

    Raises:
        OSError: it can't be listed.
    """
    with os.scandir(path) as entries:
        return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def is_directory(path: str) -> bool:
    """Whether there is a directory; half as dear as ``Path.is_dir``."""
    try:
        os.close(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def write_file(path: Path, text: str) -> None:
    """One write, as the kernel wants it.

    Raises:
        OSError: the kernel refuses, or the cgroup is gone.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def parse_number(data: bytes | None) -> float | None:
    """The one number that the file holds; None if it holds anything else (``max`` included)."""
    if data is None:
        return None
    try:
        return float(data)
    except ValueError:
        return None


@lru_cache(maxsize=64)
def _field_pattern(name: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"^%s\s+(\d+)\b" % re.escape(name), re.MULTILINE)


def parse_field(data: bytes | None, name: bytes) -> float | None:
    """The number after ``name`` at the start of a line (memory.stat, cpu.stat; meminfo with ``MemTotal:``)."""
    match = _field_pattern(name).search(data) if data is not None else None
    return float(match[1]) if match else None


def parse_pressure(data: bytes | None) -> float | None:
    """Seconds for which at least one task was held back since boot: ``some ... total=`` of a PSI file."""
    return None if data is None else _pressure_line(data.partition(b"\n")[0], b"some")


def parse_pressure_full(data: bytes | None) -> float | None:
    """Seconds for which all tasks were held back since boot: ``full ... total=`` of a PSI file."""
    return None if data is None else _pressure_line(data.partition(b"\n")[2], b"full")


def _pressure_line(line: bytes, kind: bytes) -> float | None:
    head, found, total = line.partition(b"total=")
    microseconds = parse_number(total) if found and head.startswith(kind) else None
    return None if microseconds is None else microseconds / 1e6


def parse_cpu_times(data: bytes | None, cpus: frozenset[int] | None = None) -> tuple[int, ...] | None:
    """user, nice, system, idle, iowait, irq, softirq, steal in ticks, from /proc/stat.

    guest and guest_nice are inside user and nice already, so they are left out. Kernels before 2.6.11 have no steal:
    it counts as 0 then.

    Args:
        data: the file.
        cpus: the CPUs to add up, those that are offline left out; None: all, from the first line.
    """
    if data is None:
        return None
    if cpus is None:
        return _cpu_line(data.partition(b"\n")[0], b"cpu")
    head = data.partition(b"\nintr")[0]  # the lines of CPUs come first; the one of interrupts may have kilobytes
    lines = {line.partition(b" ")[0]: line for line in head.split(b"\n") if line.startswith(b"cpu")}
    names = [name for name in (b"cpu%d" % cpu for cpu in cpus) if name in lines]
    times = [_cpu_line(lines[name], name) for name in names]
    found = [each for each in times if each is not None]
    return tuple(sum(field) for field in zip(*found)) if found else None


def _cpu_line(line: bytes, name: bytes) -> tuple[int, ...] | None:
    words = line.split()
    if len(words) < 8 or words[0] != name:
        return None
    try:
        times = tuple(int(word) for word in words[1:9])
    except ValueError:
        return None
    return times if len(times) == 8 else (*times, 0)


def parse_cpus(data: bytes | None) -> frozenset[int] | None:
    """CPU numbers of a list such as ``0-3,8``; empty for an empty file."""
    if data is None:
        return None
    try:
        return parse_cpu_list(data.decode())
    except ValueError:
        return None
