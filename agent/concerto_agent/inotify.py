"""Linux inotify through libc: the kernel reports directories that come and go. No package is worth its weight here."""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

# <sys/inotify.h>
IN_MODIFY = 0x00000002
IN_MOVED_FROM = 0x00000040
IN_MOVED_TO = 0x00000080
IN_CREATE = 0x00000100
IN_DELETE = 0x00000200
IN_Q_OVERFLOW = 0x00004000
IN_IGNORED = 0x00008000
IN_ONLYDIR = 0x01000000
IN_ISDIR = 0x40000000

_HEADER = struct.Struct("iIII")
_READ_BYTES = 65536


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        watch: the number that ``Inotify.watch`` gave for the directory; -1 for an overflow of the queue.
        mask: what happened, ``IN_*``.
        name: of the entry within the directory; empty if it is about the directory itself.
    """

    watch: int
    mask: int
    name: str


class Inotify:
    """One inotify instance, never blocking.

    Raises:
        OSError: the user has no instances left (EMFILE), or the kernel has no inotify (ENOSYS).
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._check(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    @staticmethod
    def _check(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def fileno(self) -> int:
        """The descriptor that becomes readable when something happened."""
        return self._descriptor

    def watch(self, directory: Path) -> int:
        """Watch a directory for entries that come and go; asking again gives the same number.

        Raises:
            OSError: it is not there (ENOENT, ENOTDIR), or the user has no watches left (ENOSPC).
        """
        mask = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR
        return self._check(self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask))

    def watch_file(self, file: Path) -> int:
        """Watch a file for writes; asking again gives the same number.

        Raises:
            OSError: it is not there (ENOENT, ENOTDIR), or the user has no watches left (ENOSPC).
        """
        return self._check(self._libc.inotify_add_watch(self._descriptor, os.fsencode(file), IN_MODIFY))

    def read(self) -> list[Event]:
        """What has happened since the last read, in order; empty if nothing has."""
        events: list[Event] = []
        while True:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return events
            offset = 0
            while offset < len(data):
                watch, mask, _, length = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                name = data[offset : offset + length].rstrip(b"\0")
                offset += length
                events.append(Event(watch, mask, os.fsdecode(name)))

    def close(self) -> None:
        """Give the instance back, with all its watches."""
        os.close(self._descriptor)
