"""Child processes that cannot outlive us."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

_jobs: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], Path]] = queue.SimpleQueue()
_starting = threading.Lock()
_spawner: threading.Thread | None = None


def _spawn_for_ever() -> None:
    while True:
        future, command, log = _jobs.get()
        try:
            with log.open("ab") as output:
                future.set_result(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        # as in an image: a program's own bytecode is kept from one start to the next
                        env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
                        # out of the terminal's Ctrl-C: we stop our children in order
                        start_new_session=True,
                    )
                )
        except OSError as error:
            future.set_exception(error)


def ends_with_us(*command: str | Path) -> list[str]:
    """The command, for a program that the kernel kills when the thread that starts it ends, SIGKILL included."""
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *map(str, command)]


class Child:
    """One running program, its output in a log file.

    Attributes:
        name: for messages.
        log: where its output goes; appended to on a restart.
        process: the running program.
        stopped_by_us: by us.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, *, outlives_us: bool = False) -> None:
        """Start the program.

        Unless ``outlives_us``, the kernel kills it when we end, however we end (SIGKILL included). That is a matter
        of the *thread* that started it (PR_SET_PDEATHSIG), so a thread that never ends starts all of them: callers
        may themselves live in short-lived ones.
        """
        self.name = name
        self.log = log
        self.stopped_by_us = False
        arguments = [str(part) for part in command] if outlives_us else ends_with_us(*command)
        global _spawner
        with _starting:
            if _spawner is None:
                _spawner = threading.Thread(target=_spawn_for_ever, name="spawner", daemon=True)
                _spawner.start()
        started: Future[subprocess.Popen[bytes]] = Future()
        _jobs.put((started, arguments, log))
        self.process = started.result()

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def stop(self, grace_seconds: float = 10.0) -> None:
        """SIGTERM, and SIGKILL for what is still there after the grace; returns when it is gone."""
        stop_all([self], grace_seconds)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.stopped_by_us = True
        self.process.kill()
        self.process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def stop_all(children: Sequence[Child], grace_seconds: float = 10.0) -> None:
    """Stop several at once, as `Child.stop` does one."""
    for child in children:
        child.stopped_by_us = True
        child.process.terminate()
    deadline = time.monotonic() + grace_seconds
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()


def stop_pid(pid: int, mark: str, grace_seconds: float = 10.0) -> None:
    """Stop a process that an earlier run of ours started: only if ``mark`` stands in its command line."""
    command_line = Path(f"/proc/{pid}/cmdline")

    def is_ours() -> bool:
        try:
            return mark.encode() in command_line.read_bytes()
        except OSError:
            return False

    deadline = time.monotonic() + grace_seconds
    with contextlib.suppress(ProcessLookupError):
        if is_ours():
            os.kill(pid, signal.SIGTERM)
        while is_ours():
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
