"""The guest's initial RAM disk: loads the few modules that it needs, as there is no udev, and has our units."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from e2e.testbed.guest.image import GuestImage

_HERE = Path(__file__).parent


def make_initrd(target: Path, image: GuestImage, work: Path) -> None:
    """Write it; ``work`` is a folder that is made for what goes into it."""
    shutil.copytree(image.modules, work / "modules")
    shutil.copytree(_HERE / "units", work / "units")
    (work / "bin").mkdir()
    shutil.copy(shutil.which("busybox") or "/bin/busybox", work / "bin/busybox")
    shutil.copy(_HERE / "init.sh", work / "init")
    (work / "init").chmod(0o755)
    names = "\n".join(path.relative_to(work).as_posix() for path in sorted(work.rglob("*")))
    with target.open("wb") as output:
        subprocess.run(
            ["cpio", "--quiet", "-o", "-H", "newc"], cwd=work, input=names.encode(), stdout=output, check=True
        )
    shutil.rmtree(work)
