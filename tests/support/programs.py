"""Programs of Debian packages that tests run. `make setup` installs those of e2e/testbed/nodes/packages.txt."""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """The path of a program. Without it the test is skipped, and fails in CI, where packages are installed."""
    found = shutil.which(name)
    if found is None:
        reason = f"no {name}: it comes with Debian's package {package}"
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
