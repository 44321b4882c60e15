"""The parts of the emulated guest that need no guest: its arguments, its modules, and what is read of its cgroups."""

from __future__ import annotations

from e2e.testbed.guest import Shape
from e2e.testbed.guest.cgroups import parse_sets
from e2e.testbed.guest.image import order_modules


def test_each_socket_has_a_memory_node_of_its_own_cpus():
    arguments = Shape(sockets=2, cores=5, threads=2, node_mib=512).arguments()
    assert arguments[:4] == ["-smp", "20,sockets=2,cores=5,threads=2", "-m", "1024M"]
    nodes = [argument for argument in arguments if argument.startswith("node,")]
    assert nodes == ["node,nodeid=0,cpus=0-9,memdev=memory0", "node,nodeid=1,cpus=10-19,memdev=memory1"]


def test_modules_come_after_those_they_need_and_builtin_ones_are_left_out():
    dependencies = (
        "fs/ext4.ko: lib/crc16.ko fs/jbd2.ko\nfs/jbd2.ko:\nlib/crc16.ko:\ndrivers/virtio-net.ko: lib/crc16.ko\n"
    )
    ordered = order_modules(["ext4", "virtio_net", "virtio_pci"], dependencies, "kernel/virtio_pci.ko\n")
    assert ordered == ["fs/jbd2.ko", "lib/crc16.ko", "fs/ext4.ko", "drivers/virtio-net.ko"]


def test_a_pods_sets_are_read_from_its_own_cgroup_its_containers_and_its_processes():
    pod = "./kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice"
    lines = [
        f"{pod}/cpuset.cpus:2",
        f"{pod}/cpuset.cpus.effective:2",
        f"{pod}/cri-containerd-a.scope/cpuset.cpus:",
        f"{pod}/cri-containerd-a.scope/cpuset.cpus.effective:2",
        f"{pod}/cri-containerd-a.scope/cgroup.procs:77",
        "/proc/77/status:Cpus_allowed_list:\t2",
        "/proc/77/cmdline:sleep\x001000\x00",
    ]
    found = parse_sets("\n".join(lines))
    assert found.pod == {"cpuset.cpus": "2", "cpuset.cpus.effective": "2"}
    assert found.effective() == {"2"} == found.program()
