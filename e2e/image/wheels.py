"""The wheels that an image holds: what its part of the project depends on, at the versions and hashes of the lock."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from e2e.image.tree import PYTHON
from e2e.testbed import REPOSITORY

LOCK = REPOSITORY / "requirements.lock"
EXTRAS = {"agent": "", "operator": "operator"}
"""What of the project's optional dependencies an image has, by target."""


def closure(extra: str) -> set[str]:
    """Names of all that the project depends on, as its pyproject.toml and the metadata of what is installed say.

    Args:
        extra: one of its optional dependencies; empty for none.
    """
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    environment = {**default_environment(), "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    waiting = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    found: set[tuple[str, str]] = set()
    while waiting:
        needed = Requirement(waiting.pop())
        for part in needed.extras or {""}:
            key = canonicalize_name(needed.name), part
            if key not in found:
                found.add(key)
                markers = {**environment, "extra": part}
                texts = requires(needed.name) or ()
                waiting += [t for t in texts if (m := Requirement(t).marker) is None or m.evaluate(markers)]
    return {name for name, _ in found}


def locked(names: set[str], lock: str) -> str:
    """The part of a lock file that pins ``names``, hashes included.

    Raises:
        KeyError: the lock does not pin one of them.
    """
    blocks = {}
    for block in re.split(r"^(?=[a-zA-Z0-9])", lock, flags=re.MULTILINE):
        if match := re.match(r"([\w.-]+)==", block):
            blocks[canonicalize_name(match[1])] = block
    return "".join(blocks[name] for name in sorted(names))


def download(directory: Path) -> None:
    """Fill ``directory`` with a folder of wheels for each target; the operator's holds what it has beyond the agent's.

    Raises:
        subprocess.CalledProcessError: pip could not get one, or its hash is not the lock's.
    """
    machine = platform.machine()
    common: set[str] = set()
    for target, extra in EXTRAS.items():
        names = closure(extra) - common
        common |= names
        folder = directory / target
        folder.mkdir(parents=True, exist_ok=True)
        pins = folder / "requirements.txt"
        pins.write_text(locked(names, LOCK.read_text()))
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        platforms = [f"--platform={p}_{machine}" for p in ("manylinux_2_34", "manylinux_2_28", "manylinux2014")]
        wanted = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *platforms]
        subprocess.run([*pip, *wanted, "--require-hashes", "-r", pins, "-d", folder], check=True)
