"""Named points at which a test ends or stops this process, to show that nothing is lost there.

They do nothing unless the environment variable ``CONCERTO_FAILPOINT`` names a file. A test writes ``POINT kill`` or
``POINT stop`` into the file; the process that reaches that point first removes the file and sends itself SIGKILL or
SIGSTOP.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

VARIABLE = "CONCERTO_FAILPOINT"
_FILE = os.environ.get(VARIABLE)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def point(name: str) -> None:
    """The process is about to do what the name says."""
    if _FILE is not None:
        _act(Path(_FILE), name)


def _act(file: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        wanted, _, action = file.read_text().strip().partition(" ")
        if wanted == name:
            file.unlink()  # of several processes, one acts
            os.kill(os.getpid(), _SIGNALS[action])
