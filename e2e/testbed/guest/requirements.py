"""What an emulated guest needs of this machine, what of it is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_PACKAGES = Path(__file__).with_name("packages.txt")
_COMMANDS = (
    "qemu-system-x86_64",
    "mmdebstrap",
    "cpio",
    "depmod",
    "mke2fs",
    "busybox",
    "apt-get",
    "dpkg-deb",
    "openssl",
)


def guest_available(binaries: Path) -> tuple[bool, str]:
    """Whether a guest can be built and booted here, and why not.

    Args:
        binaries: the control plane's programs, kubelet among them.
    """
    if os.geteuid() != 0:
        return False, "the guest's disk is built by root"
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    missing = [command for command in _COMMANDS if shutil.which(command, path=path) is None]
    if missing:
        packages = " ".join(_PACKAGES.read_text().split())
        return False, f"not installed: {', '.join(missing)}; install with: apt-get install {packages}"
    if not os.access(binaries / "kubelet", os.X_OK):
        return False, f"there is no kubelet in {binaries}"
    return True, ""
