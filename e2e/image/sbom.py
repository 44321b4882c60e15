"""Bills of materials of the images: the libraries that `requirements.lock` pins, with their hashes.

CycloneDX's own program writes them (https://pypi.org/project/cyclonedx-bom/), without times and random numbers: the
same lock gives the same file. The base image has a bill of its own from whoever publishes it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.image.build import OUTPUT, TARGETS
from e2e.image.wheels import EXTRAS, LOCK, REPOSITORY, closure, locked


def write(target: str, folder: Path = OUTPUT) -> Path:
    """Write ``TARGET.cdx.json`` (CycloneDX 1.6) into a folder; returns its path.

    Raises:
        subprocess.CalledProcessError: the program failed; what it said is on stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target}.cdx.json"
    # The warning is about the dependency graph: a lock does not hold it
    program = [sys.executable, "-W", "ignore::UserWarning", "-m", "cyclonedx_py", "requirements"]
    options = ["--pyproject", REPOSITORY / "pyproject.toml", "--output-reproducible", "--validate", "--of", "JSON"]
    pins = locked(closure(EXTRAS[target]), LOCK.read_text())
    subprocess.run([*program, *options, "-o", path, "-"], input=pins, text=True, check=True)
    return path


if __name__ == "__main__":
    for each in TARGETS:
        print(f"sbom: {write(each).relative_to(REPOSITORY)}")
