"""What real nodes need of a machine, what of it is missing, and how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from e2e.testbed.nodes.cgroups import Machine

_PACKAGES = Path(__file__).with_name("packages.txt")
_COMMANDS = (
    "containerd", "ctr", "containerd-shim-runc-v2", "runc", "busybox", "iptables", "ip", "unshare", "nsenter", "mount",
)  # fmt: skip
_CNI_PLUGINS = ("ptp", "host-local", "loopback")


def packages() -> list[str]:
    """Debian packages that real nodes are made of."""
    return _PACKAGES.read_text().split()


def cni_binaries() -> Path:
    """Where the CNI plugins are: Debian's place, or upstream's.

    Raises:
        FileNotFoundError: neither has them.
    """
    for directory in (Path("/usr/lib/cni"), Path("/opt/cni/bin")):
        if all((directory / plugin).exists() for plugin in _CNI_PLUGINS):
            return directory
    raise FileNotFoundError("no CNI plugins in /usr/lib/cni or /opt/cni/bin")


def missing_programs() -> list[str]:
    """Programs that are not installed."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    try:
        cni_binaries()
    except FileNotFoundError:
        missing.append("CNI plugins")
    return missing


def _kernel_complaint() -> str | None:
    """Tries what nodes do to the kernel, in namespaces that are gone at once."""
    attempts = {
        "namespaces": "mount -t proc proc /proc",
        "bridges": "ip link add b0 type bridge",
        "veth pairs": "ip link add v0 type veth peer name v1",
        "NAT rules": "iptables -t nat -A OUTPUT -d 10.96.0.1/32 -p tcp -j DNAT --to-destination 10.77.0.1:1",
    }
    for what, command in attempts.items():
        argv = ["unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"this kernel gives no {what}: {done.stderr.strip().splitlines()[-1:] or command}"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlayfs"
    return None


@lru_cache
def real_nodes_available(binaries: Path | None = None) -> tuple[bool, str]:
    """Whether real nodes can run here, and why not (or what they will run on).

    The reason is for a person: simulated nodes take over, and the output says so with it.

    Args:
        binaries: the control plane's programs, kubelet among them; not looked at if not given.
    """
    if sys.platform != "linux":
        return False, f"real nodes need Linux, not {sys.platform}"
    if os.geteuid() != 0:
        return False, "real nodes need root (namespaces, cgroups, veth)"
    missing = missing_programs()
    if missing:
        return False, f"not installed: {', '.join(missing)}; install with: apt-get install {' '.join(packages())}"
    if binaries is not None and not os.access(binaries / "kubelet", os.X_OK):
        return False, f"there is no kubelet in {binaries}"
    machine = Machine()
    complaint = machine.complaint() or _kernel_complaint()
    if complaint:
        return False, complaint
    version = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=False).stdout.split()
    return (
        True,
        f"containerd {version[2]}, cgroup {'v2' if machine.v2_only else 'v1'}, {len(os.sched_getaffinity(0))} CPUs",
    )
