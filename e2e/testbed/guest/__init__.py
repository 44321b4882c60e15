"""A machine that QEMU emulates, for what this machine lacks: cgroup v2, systemd, hyper-threads, two memory nodes.

    with GuestNode(control_plane, "guest", Shape(sockets=2, cores=5, threads=2), say) as node:
        node.machine.run("systemctl", "daemon-reload")

It needs no KVM and is slow: 2 CPUs emulate 20. Modules: `image` (disk and kernel from Debian packages, built
once), `initrd`, `payload` (a second disk with what belongs to a run), `machine` (boots it, and runs commands in
it), `node` (kubelet, containerd and agent in it), `cgroups` (what its kernel shows of pods), `requirements` (what this
machine must have). ``units`` are systemd's in the guest.
"""

from e2e.testbed.guest.machine import Guest, GuestError, Shape
from e2e.testbed.guest.node import GuestNode

__all__ = ["Guest", "GuestError", "GuestNode", "Shape"]
