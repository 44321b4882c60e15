"""Boots a guest under QEMU, and runs commands in it by way of the QEMU guest agent."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.testbed.clusters.process import Child
from e2e.testbed.guest.image import GuestImage
from e2e.testbed.guest.initrd import make_initrd
from e2e.testbed.started import Started
from e2e.testbed.waiting import PATIENCE_SECONDS

GATEWAY = "10.0.2.2"
"""This machine, as the guest sees it."""
ADDRESS = "10.0.2.15"
_KERNEL_ARGUMENTS = (
    "console=ttyS0 root=/dev/vda rw quiet panic=-1 mitigations=off nowatchdog psi=1 random.trust_cpu=on "
    "systemd.show_status=false systemd.log_target=console systemd.log_level=warning"
)
# The name of a processor decides which leaves of CPUID say where cores and threads are; TCG's own is AMD's without them
_CPU = "max,vendor=GenuineIntel,family=6,model=85,stepping=7"
_BOOT_SECONDS = 300.0
_SYNC_SECONDS = 2.0

Say = Callable[[str], None]


class GuestError(RuntimeError):
    """The guest did not do what it was asked to; the message says where to look."""


@dataclass(frozen=True)
class Shape:
    """What the guest's processors look like; each socket has a memory node of its own.

    Attributes:
        sockets: of the machine.
        cores: of each socket.
        threads: of each core.
        node_mib: memory of each socket.
    """

    sockets: int = 2
    cores: int = 2
    threads: int = 2
    node_mib: int = 1536

    @property
    def cpus(self) -> int:
        """CPUs of the machine, as its kernel counts them."""
        return self.sockets * self.cores * self.threads

    def arguments(self) -> list[str]:
        """QEMU's arguments."""
        each = self.cores * self.threads
        found = [
            "-smp", f"{self.cpus},sockets={self.sockets},cores={self.cores},threads={self.threads}",
            "-m", f"{self.node_mib * self.sockets}M",
        ]  # fmt: skip
        for number in range(self.sockets):
            found += ["-object", f"memory-backend-ram,id=memory{number},size={self.node_mib}M"]
            cpus = f"{number * each}-{(number + 1) * each - 1}"
            found += ["-numa", f"node,nodeid={number},cpus={cpus},memdev=memory{number}"]
        return found


@dataclass(frozen=True)
class Ran:
    """How a command in the guest ended.

    Attributes:
        code: its exit status; 128 and the signal's number if a signal ended it.
        output: its standard output.
        errors: its standard error.
    """

    code: int
    output: str
    errors: str


class Guest(Started):
    """A machine of its own for as long as the context lasts; what it writes is gone afterwards.

    Attributes:
        boot_seconds: from QEMU's start until a command can be run.
    """

    def __init__(self, image: GuestImage, shape: Shape, payload: Path, work_dir: Path, say: Say) -> None:
        """Nothing runs before `start`.

        Args:
            image: what it boots from.
            shape: its processors.
            payload: a file system image, mounted read-only at /payload.
            work_dir: where its initial RAM disk and its logs go.
            say: prints a line of progress.
        """
        self.boot_seconds = 0.0
        self.shape = shape
        self._image = image
        self._payload = payload
        self._say = say
        # The path of a Unix socket has at most 107 bytes
        self._socket = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp") / f"concerto-guest-{os.getpid()}.sock"
        self._initrd = work_dir / "guest-initrd"
        self.console = work_dir / "guest-console.log"
        self._log = work_dir / "guest-qemu.log"
        self._child: Child | None = None
        self._channel: socket.socket | None = None
        self._received = b""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Boot it; returns when commands can be run.

        Raises:
            GuestError: it does not come up; with the end of its console.
        """
        self._say(f"guest: booting {self.shape.cpus} emulated CPUs")
        began = time.monotonic()
        make_initrd(self._initrd, self._image, self._initrd.with_suffix(".d"))
        self._child = Child("guest", self._command(), self._log)
        try:
            self._wait_for_agent(began)
        except BaseException:
            self.stop()
            raise
        self.boot_seconds = time.monotonic() - began
        self._say(f"guest: booted in {self.boot_seconds:.0f} s")

    def stop(self) -> None:
        """End it as if its power went."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._child is not None:
            self._child.kill()
            self._child = None
        self._socket.unlink(missing_ok=True)

    def run(self, *command: str, stdin: str = "", check: bool = True, seconds: float = PATIENCE_SECONDS) -> Ran:
        """Run a program in the guest, as root, and wait for its end.

        Args:
            command: the program, found on PATH, and its arguments.
            stdin: what it reads.
            check: raise if it fails.
            seconds: patience.

        Raises:
            GuestError: it failed (with ``check``), or did not end in time.
        """
        arguments: dict[str, Any] = {"path": command[0], "arg": list(command[1:]), "capture-output": True}
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin.encode()).decode()
        pid = self._ask("guest-exec", arguments)["pid"]
        deadline = time.monotonic() + seconds
        pause = 0.02
        while not (status := self._ask("guest-exec-status", {"pid": pid}))["exited"]:
            if time.monotonic() > deadline:
                raise GuestError(f"{' '.join(command)} has not ended after {seconds:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.5)
        output, errors = (
            base64.b64decode(status.get(key, "")).decode(errors="replace") for key in ("out-data", "err-data")
        )
        ran = Ran(status.get("exitcode", 128 + status.get("signal", 0)), output, errors)
        if check and ran.code:
            raise GuestError(f"{' '.join(command)} ended with {ran.code}: {ran.errors.strip() or ran.output.strip()}")
        return ran

    def shell(self, script: str, *, check: bool = True) -> str:
        """What a shell script prints; arguments as of `run`."""
        return self.run("sh", "-c", script, check=check).output

    def write(self, path: str, text: str) -> None:
        """Write a file in the guest, readable by root alone; its folder is made."""
        self.run("sh", "-c", 'umask 077; mkdir -p "$(dirname "$1")"; cat >"$1"', "sh", path, stdin=text)

    def _command(self) -> list[str]:
        program = shutil.which("qemu-system-x86_64") or "qemu-system-x86_64"
        disks = ("-drive", f"file={self._image.disk},if=none,id=root,format=raw,snapshot=on")
        payload = ("-drive", f"file={self._payload},if=none,id=payload,format=raw,readonly=on")
        return [
            program, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
            "-machine", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", _CPU,
            *self.shape.arguments(),
            "-kernel", str(self._image.kernel), "-initrd", str(self._initrd), "-append", _KERNEL_ARGUMENTS,
            "-serial", f"file:{self.console}",
            *disks, "-device", "virtio-blk-pci,drive=root",
            *payload, "-device", "virtio-blk-pci,drive=payload",
            "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
            "-device", "virtio-serial-pci",
            "-chardev", f"socket,id=agent,path={self._socket},server=on,wait=off",
            "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0,nr=1",
        ]  # fmt: skip

    def _wait_for_agent(self, began: float) -> None:
        said = began
        while True:
            assert self._child is not None
            if not self._child.is_running():
                raise GuestError(f"QEMU ended: {self._child.log_tail()}")
            now = time.monotonic()
            if now - began > _BOOT_SECONDS:
                raise GuestError(f"no answer from the guest after {_BOOT_SECONDS:.0f} s; {self._console_tail()}")
            if now - said > 15:
                self._say(f"guest: booting, {now - began:.0f} s so far")
                said = now
            if self._channel is None:
                channel = socket.socket(socket.AF_UNIX)
                try:
                    channel.connect(str(self._socket))
                except OSError:
                    channel.close()
                    time.sleep(0.1)
                    continue
                self._channel = channel
            if self._synchronize():
                return

    def _synchronize(self) -> bool:
        """Whether the agent answers; what it was asked before, while nobody read, is left behind."""
        assert self._channel is not None
        number = time.monotonic_ns() % 2**31
        self._channel.settimeout(_SYNC_SECONDS)
        request = {"execute": "guest-sync", "arguments": {"id": number}}
        try:
            self._channel.sendall(json.dumps(request).encode() + b"\n")
            while True:
                with contextlib.suppress(ValueError):
                    if json.loads(self._line()).get("return") == number:
                        self._channel.settimeout(PATIENCE_SECONDS)
                        return True
        except TimeoutError:
            return False

    def _ask(self, command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._channel is None:
                raise GuestError("the guest does not run")
            try:
                request = {"execute": command, "arguments": arguments}
                self._channel.sendall(json.dumps(request).encode() + b"\n")
                answer = json.loads(self._line())
            except OSError as error:
                raise GuestError(f"the guest does not answer: {error}; {self._console_tail()}") from error
        if "error" in answer:
            raise GuestError(f"{command}: {answer['error'].get('desc')}")
        found: dict[str, Any] = answer["return"]
        return found

    def _line(self) -> bytes:
        assert self._channel is not None
        while b"\n" not in self._received:
            data = self._channel.recv(65536)
            if not data:
                raise ConnectionError("QEMU has closed the channel")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _console_tail(self, lines: int = 20) -> str:
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return "\n".join([f"{self.console}:", *text.splitlines()[-lines:]])
