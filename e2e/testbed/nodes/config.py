"""What real nodes are made of: names, addresses and the files their programs read. Pure: text and numbers in and out.

A *slot* numbers a run on the machine (several can be up at once); every name that a run leaves on the machine begins
with the slot's prefix, so that whatever a killed run left can be found again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from e2e.testbed.images import PAUSE_IMAGE
from e2e.testbed.nodes.cgroups import Hierarchy

SLOTS = 16
NODES_PER_SLOT = 8
SERVICE_ADDRESS = "10.96.0.1"
# Sysctls that kubelet wants so, and that would be the whole machine's.
_SYSCTLS = {
    "vm.overcommit_memory": 1,
    "vm.panic_on_oom": 0,
    "kernel.panic": 10,
    "kernel.panic_on_oops": 1,
    "kernel.keys.root_maxkeys": 1_000_000,
    "kernel.keys.root_maxbytes": 25_000_000,
}
# Snapshotters that need a file system of their own.
_NO_SNAPSHOTTERS = [f"io.containerd.snapshotter.v1.{name}" for name in ("btrfs", "zfs", "aufs", "devmapper")]


@dataclass(frozen=True)
class NodeSpec:
    """One real node.

    Attributes:
        name: the Node object's name.
        index: 0 to `NODES_PER_SLOT` - 1, unique in the run; gives its addresses.
        cpus: CPUs it may use, as a Linux list (``0-1,3``).
        memory_bytes: memory its pods and its own daemons may use.
        machine_memory_bytes: what kubelet will believe it has; the difference becomes systemReserved.
        kubelet_config: more KubeletConfiguration fields, as ``{"cpuManagerPolicy": "static", ...}``.
    """

    name: str
    index: int
    cpus: str
    memory_bytes: int
    machine_memory_bytes: int
    kubelet_config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Slot:
    """The names and addresses of run number ``number``."""

    number: int

    @property
    def cgroup_prefix(self) -> str:
        return f"concerto-{self.number}-"

    @property
    def link_prefix(self) -> str:
        # At most 15 characters; the letter keeps slot 1 from being a prefix of slot 10.
        return f"concerto{self.number}x"

    @property
    def bridge(self) -> str:
        return f"{self.link_prefix}br"

    @property
    def gateway(self) -> str:
        return f"10.77.{self.number}.1"

    @property
    def state(self) -> Path:
        return Path("/var/tmp/concerto-nodes") / f"slot-{self.number}"

    @property
    def lock(self) -> Path:
        return Path("/run/concerto-nodes") / f"slot-{self.number}.lock"

    def cgroup(self, node: NodeSpec) -> str:
        """The node's cgroup, as a path below each hierarchy's root."""
        return f"{self.cgroup_prefix}{node.name}"

    def link(self, node: NodeSpec) -> str:
        return f"{self.link_prefix}n{node.index}"

    def address(self, index: int) -> str:
        return f"10.77.{self.number}.{10 + index}"

    def pod_cidr(self, index: int) -> str:
        return f"10.78.{self.number * NODES_PER_SLOT + index}.0/24"

    def node_state(self, node: NodeSpec) -> Path:
        return self.state / node.name


def containerd_config(cni_config: Path, state: Path, cni_binaries: Path) -> str:
    """Containerd's TOML: CRI on overlayfs, no AppArmor, and no OOM score that would need CAP_SYS_RESOURCE.

    Containerd 1 ignores the part about NRI. The socket is where programs outside of the node find it, too.
    """
    return f"""\
version = 2
root = "{state / "containerd"}"
state = "/run/containerd"
oom_score = 0
disabled_plugins = {json.dumps(_NO_SNAPSHOTTERS)}
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_binaries}"
    conf_dir = "{cni_config}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{state / "nri" / "nri.sock"}"
  [plugins."io.containerd.nri.v1.nri".default_validator]
    enable = true
"""


def cni_config(pod_cidr: str) -> str:
    """A point-to-point link for each pod, addresses kept on the node."""
    ipam = {"type": "host-local", "dataDir": "/run/cni-ipam", "subnet": pod_cidr, "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipMasq": False, "ipam": ipam}]
    return json.dumps({"cniVersion": "0.4.0", "name": "concerto", "plugins": plugins})


def kubelet_config(node: NodeSpec, client_ca: Path) -> str:
    """Kubelet's KubeletConfiguration; ``node.kubelet_config`` has the last word."""
    eviction = 100 * 1024**2
    reserved = max(0, node.machine_memory_bytes - node.memory_bytes - eviction)
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(client_ca)},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "readOnlyPort": 0,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "volumePluginDir": "/var/lib/kubelet/plugins",
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": str(eviction), "nodefs.available": "1%"},
        "systemReserved": {"memory": str(reserved)},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 110,
        "registryPullQPS": 0,
        "eventRecordQPS": 50,
        "eventBurst": 100,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "serializeImagePulls": False,
        # Renewed each quarter of it: when a busy machine misses two, the node is not yet given up (`LocalControlPlane`)
        "nodeLeaseDurationSeconds": 20,
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        **node.kubelet_config,
    }
    return yaml.safe_dump(config, sort_keys=False)


def kubeconfig_for_node(kubeconfig: str, gateway: str) -> tuple[str, int]:
    """A kubeconfig for use inside a node, where the API server is at the bridge's address; and the server's port.

    The certificate is still checked for the address of the original, which it is sure to name.
    """
    config = yaml.safe_load(kubeconfig)
    ports = set()
    for entry in config["clusters"]:
        cluster = entry["cluster"]
        host, _, port = cluster["server"].removeprefix("https://").rstrip("/").rpartition(":")
        cluster.setdefault("tls-server-name", host.strip("[]"))
        cluster["server"] = f"https://{gateway}:{port}"
        ports.add(int(port))
    if len(ports) != 1:
        raise ValueError(f"a node's kubeconfig must name one API server, not {len(ports)}")
    return yaml.safe_dump(config, sort_keys=False), ports.pop()


def inner_settings(
    slot: Slot,
    node: NodeSpec,
    *,
    kubelet: Path,
    api_port: int,
    images: Sequence[Path],
    logs: Path,
    hierarchies: Sequence[Hierarchy],
    v2_only: bool,
    containerd: str,
) -> str:
    """The shell variables that inner.sh reads."""
    mounts = "\n".join(
        f"{'unified' if h.kind == 'cgroup2' else ','.join(h.options).removeprefix('name=')}|{h.kind}|"
        f"{','.join(f'none,{o}' if o.startswith('name=') else o for o in h.options)}"
        for h in hierarchies
    )
    peers = (i for i in range(NODES_PER_SLOT) if i != node.index)
    values = {
        "NODE": node.name,
        "STATE": slot.node_state(node),
        "LOGS": logs,
        "KUBELET": kubelet,
        "ADDRESS": slot.address(node.index),
        "GATEWAY": slot.gateway,
        "PEER_ROUTES": "\n".join(f"{slot.pod_cidr(i)} {slot.address(i)}" for i in peers),
        "SERVICE_ADDRESS": SERVICE_ADDRESS,
        "API_PORT": api_port,
        "CONTAINERD_PROGRAMS": containerd,
        "IMAGES": " ".join(map(str, images)),
        "CGROUP_V2_ONLY": int(v2_only),
        "CGROUP_MOUNTS": mounts,
    }
    return "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in values.items())


def node_files(slot: Slot, node: NodeSpec, *, kubeconfig: str, client_ca: Path, cni_binaries: Path) -> dict[str, str]:
    """Files below the node's state directory, by relative path (the settings of inner.sh are apart)."""
    state = slot.node_state(node)
    return {
        "containerd.toml": containerd_config(state / "cni", state, cni_binaries),
        "cni/10-concerto.conflist": cni_config(slot.pod_cidr(node.index)),
        "kubelet.yaml": kubelet_config(node, client_ca),
        "kubeconfig": kubeconfig,
        "online": f"{node.cpus}\n",
        **{f"sysctl/{name}": f"{value}\n" for name, value in _SYSCTLS.items()},
    }


def parse_cpus(text: str) -> list[int]:
    """The CPUs of a Linux list: ``0-1,3`` is [0, 1, 3]."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def share_cpus(cpus: Sequence[int], nodes: int) -> list[str]:
    """CPUs for each of ``nodes`` nodes: disjoint and as even as can be; nodes beyond the number of CPUs double up.

    Nodes that share CPUs hide saturation from each other: let no more than ``len(cpus)`` nodes be saturated.
    """
    groups: list[list[int]] = [[] for _ in range(nodes)]
    for position, cpu in enumerate(cpus):
        groups[position * min(nodes, len(cpus)) // len(cpus)].append(cpu)
    for index in range(len(cpus), nodes):
        groups[index] = groups[index % len(cpus)]
    return [",".join(map(str, group)) for group in groups]
