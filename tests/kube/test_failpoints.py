"""A failpoint acts once, where it was asked for, and nowhere else."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from concerto.kube.failpoints import VARIABLE

PROGRAM = """
from concerto.kube.failpoints import point
for name in ("before-store", "after-store", "after-store"):
    point(name)
    print(name, flush=True)
"""


def run(tmp_path, text: str | None) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "failpoint"
    if text is not None:
        file.write_text(text)
    environment = {VARIABLE: str(file), "PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("text", "code", "passed"),
    [
        (None, 0, 3),
        ("before-store kill", -signal.SIGKILL, 0),
        ("after-store kill\n", -signal.SIGKILL, 1),
        ("after-store kill 2", -signal.SIGKILL, 2),
        ("elsewhere kill", 0, 3),
    ],
    ids=["no file", "the first", "a later one", "one that is reached again", "a point that is not reached"],
)
def test_a_process_ends_at_the_point_that_the_file_names(tmp_path, text, code, passed):
    ended = run(tmp_path, text)
    assert (ended.returncode, len(ended.stdout.splitlines())) == (code, passed)
    assert (tmp_path / "failpoint").exists() == (text == "elsewhere kill")
