"""The demo's Job, whose pods compute for about two seconds each on a slow machine as well."""

from __future__ import annotations

import re
from typing import Any

import yaml

from e2e.compare.shell_work import steps_per_second
from e2e.testbed.system import SAMPLES

SAMPLE = SAMPLES / "burn.yaml"
ORDINARY_STEPS_PER_SECOND = 1_000_000.0
"""Of the manifest's loop, on the machine that its "about two seconds" is of."""


def burn(steps: float) -> dict[str, Any]:
    """The Job of the manifest; where a machine takes fewer steps in a second, its pods take as many fewer.

    Args:
        steps: that the machine takes in a second of CPU time.
    """
    job: dict[str, Any] = yaml.safe_load(SAMPLE.read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    slower = min(steps / ORDINARY_STEPS_PER_SECOND, 1.0)
    *shell, script = container["command"]
    script, loops = re.subn(r"(?<=-lt )\d+", lambda found: str(round(slower * int(found[0]))), script)
    assert loops == 1, f"{SAMPLE} has no loop"
    container["command"] = [*shell, script]
    return job


def burn_here() -> dict[str, Any]:
    """The same for this machine; as the manifest has it where there is no busybox to measure with."""
    try:
        return burn(steps_per_second())
    except FileNotFoundError:
        return burn(ORDINARY_STEPS_PER_SECOND)
