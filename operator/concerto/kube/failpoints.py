"""Named points at which a test ends or stops this process, to show that nothing is lost there.

They do nothing unless the environment variable ``CONCERTO_FAILPOINT`` names a file. A test writes ``POINT kill`` or
``POINT stop`` into the file; the process that reaches that point first removes the file and sends itself SIGKILL or
SIGSTOP. With a number after that, such as ``POINT kill 3``, it does so when it reaches the point for the third time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from pathlib import Path

VARIABLE = "CONCERTO_FAILPOINT"
_FILE = os.environ.get(VARIABLE)
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_reached: Counter[str] = Counter()


def point(name: str) -> None:
    """The process is about to do what the name says."""
    if _FILE is not None:
        _act(Path(_FILE), name)


def _act(file: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        wanted, action, times, *_ = [*file.read_text().split(), "1"]
        if wanted != name:
            return
        _reached[name] += 1
        if _reached[name] >= int(times):
            file.unlink()  # of several processes, one acts
            del _reached[name]
            os.kill(os.getpid(), _SIGNALS[action])
