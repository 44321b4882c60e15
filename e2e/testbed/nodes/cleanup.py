"""Slots: who holds one, and how everything of it is removed.

A slot is held by an flock on its lock file, which the kernel drops when the holder dies, however it dies. Whoever gets
a lock may therefore remove all that bears the slot's name: its owner is gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.testbed.nodes.cgroups import Machine
from e2e.testbed.nodes.config import SLOTS, Slot


@dataclass
class Claim:
    """A slot that is ours while ``descriptor`` stays open."""

    slot: Slot
    descriptor: int

    def record(self, **facts: Any) -> None:
        """Writes who we are, for `holders` to read."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), **facts}).encode(), 0)

    def release(self) -> None:
        """Gives the slot up; the lock file goes while we still hold it."""
        self.slot.lock.unlink(missing_ok=True)
        os.close(self.descriptor)


def claim(slot: Slot) -> Claim | None:
    """Takes ``slot``, or None if a living process holds it."""
    slot.lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(slot.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        # Between open and flock the former holder may have unlinked the file: then what we locked is nobody's.
        with suppress(FileNotFoundError):
            if slot.lock.stat().st_ino == os.fstat(descriptor).st_ino:
                return Claim(slot, descriptor)
        os.close(descriptor)


def holders() -> dict[Slot, dict[str, Any]]:
    """The slots in use, and what their holders wrote about themselves."""
    found = {}
    for slot in map(Slot, range(SLOTS)):
        if not slot.lock.exists():
            continue
        taken = claim(slot)
        if taken is not None:
            os.close(taken.descriptor)
            continue
        with suppress(FileNotFoundError, json.JSONDecodeError):
            found[slot] = json.loads(slot.lock.read_text())
    return found


def links(prefix: str) -> list[str]:
    """Network links of the machine whose names begin with ``prefix``."""
    return sorted(p.name for p in Path("/sys/class/net").glob(f"{prefix}*"))


def mounts_below(directory: Path) -> list[Path]:
    """Mount points of the machine at or below ``directory``, innermost first."""
    points = [Path(line.split()[4]) for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted((p for p in points if p.is_relative_to(directory)), reverse=True)


def leftovers(slot: Slot, machine: Machine) -> list[str]:
    """Everything of ``slot`` that is still on the machine, in words."""
    return [
        *(f"cgroup {name}" for name in machine.named(slot.cgroup_prefix)),
        *(f"link {name}" for name in links(slot.link_prefix)),
        *(f"mount {path}" for path in mounts_below(slot.state)),
        *([f"directory {slot.state}"] if slot.state.exists() else []),
    ]


def sweep(slot: Slot, machine: Machine) -> list[str]:
    """Removes everything of ``slot`` from the machine; the caller holds it. Returns what there was.

    Processes first (all of a node's are in its cgroup), then what they held: mounts and network namespaces go with
    them, veth pairs with either end.

    Raises:
        TimeoutError: a process would not die.
    """
    found = leftovers(slot, machine)
    for name in machine.named(slot.cgroup_prefix):
        machine.remove(name)
    for name in links(slot.link_prefix):
        # A veth may vanish by itself, as its other end's namespace dies.
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
    for path in mounts_below(slot.state):
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
    if not mounts_below(slot.state):
        shutil.rmtree(slot.state, ignore_errors=True)
    with suppress(OSError):
        slot.state.parent.rmdir()
    return found


def cleanup_stale() -> list[str]:
    """Removes what runs whose owners are gone have left; returns it in words."""
    machine = Machine()
    removed: list[str] = []
    for slot in map(Slot, range(SLOTS)):
        if not slot.lock.exists() and not leftovers(slot, machine):
            continue
        taken = claim(slot)
        if taken is not None:
            try:
                removed += sweep(slot, machine)
            finally:
                taken.release()
    return removed


@contextmanager
def claim_any(machine: Machine) -> Iterator[Claim]:
    """A slot nobody holds, swept clean; swept again and released at the end.

    Raises:
        RuntimeError: all slots are held.
    """
    for slot in map(Slot, range(SLOTS)):
        taken = claim(slot)
        if taken is None:
            continue
        try:
            sweep(slot, machine)
            yield taken
        finally:
            try:
                sweep(slot, machine)
            finally:
                taken.release()
        return
    raise RuntimeError(
        f"all {SLOTS} slots for runs of real nodes are held; `python -m e2e.testbed.nodes list` says by whom"
    )
