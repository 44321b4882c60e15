"""A guest with kubelet, containerd and our agent, on the API server of a control plane of this machine."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.guest.image import Say, find_or_build_image
from e2e.testbed.guest.machine import ADDRESS, GATEWAY, Guest, Shape
from e2e.testbed.guest.payload import PYTHON_PATH, build_payload
from e2e.testbed.images import build_base_images
from e2e.testbed.nodes.config import NodeSpec, cni_config, containerd_config, kubeconfig_for_node, kubelet_config
from e2e.testbed.started import Started
from e2e.testbed.waiting import eventually

AGENT_UNIT = "concerto-agent.service"
NRI_SOCKET = Path("/var/lib/nri/nri.sock")
"""Where a containerd that has NRI takes plugins, in the guest."""
_SYSTEMD_DRIVER = """\
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
"""
_EVICTION_BYTES = 100 * 1024**2


class GuestNode(Started):
    """A real node in a guest. Its pods have the guest's network (``hostNetwork``).

    Attributes:
        machine: the guest.
        name: the Node object's name.
    """

    def __init__(
        self,
        plane: LocalControlPlane,
        name: str,
        shape: Shape,
        say: Say,
        *,
        kubelet_settings: Mapping[str, Any] | None = None,
        containerd: Path | None = None,
    ) -> None:
        """Nothing runs before `start`.

        Args:
            plane: what it joins.
            name: the Node object's name.
            shape: of the emulated machine.
            say: prints a line of progress.
            kubelet_settings: more KubeletConfiguration fields.
            containerd: folder with containerd, its shim and ctr; None: those of the Debian package.
        """
        self.plane = plane
        self.name = name
        self._shape = shape
        self._say = say
        self._kubelet_settings = dict(kubelet_settings or {})
        self._containerd = containerd
        self._work = Path()

    def start(self) -> None:
        """Boot it; returns when the Node is Ready and has the images.

        Raises:
            GuestError: the guest does not come up.
            AssertionError: the Node does not become Ready.
        """
        image = find_or_build_image(self._say)
        self._work = Path(tempfile.mkdtemp(prefix="concerto-guest-"))
        try:
            payload = build_payload(self._work, self._texts(), self._files())
            self.machine = Guest(image, self._shape, payload, self.plane.logs, self._say)
            self.machine.start()
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        try:
            ctr = "ctr" if self._containerd is None else "/payload/containerd/ctr"
            eventually("containerd answers", lambda: not self.machine.run(ctr, "version", check=False).code)
            for name in ("pause", "busybox"):
                self.machine.run(ctr, "-n", "k8s.io", "images", "import", f"/payload/images/{name}.tar")
            eventually(lambda: f"node {self.name} is Ready:\n{self.log('kubelet')}", self.is_ready)
            self._say(f"guest: node {self.name} is Ready")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it; its Node object goes, too."""
        self.machine.stop()
        shutil.rmtree(self._work, ignore_errors=True)
        self.plane.kubectl("delete", "node", self.name, "--ignore-not-found", "--wait=false")

    def is_ready(self) -> bool:
        """Whether the Node's condition Ready is True."""
        found = self.plane.kubectl("get", "node", self.name, "-o", "json", "--ignore-not-found")
        conditions = json.loads(found)["status"].get("conditions", ()) if found.strip() else ()
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def log(self, unit: str, lines: int = 30) -> str:
        """The end of a unit's journal."""
        return self.machine.run("journalctl", "-u", unit, "-n", str(lines), "-o", "cat", check=False).output

    # The agent

    def start_agent(self, *flags: str) -> None:
        """Start our agent, which pins, as a service of the guest; again if it ran before."""
        if self.machine.run("test", "-e", "/etc/concerto/kubeconfig", check=False).code:
            self._write_agent_files()
        command = ["python3", "-m", "concerto.cli.main", "agent", "--node-name", self.name, "--pinning", *flags]
        settings = [f"--setenv=PYTHONPATH={PYTHON_PATH}", "--setenv=KUBECONFIG=/etc/concerto/kubeconfig"]
        self.machine.run("systemd-run", f"--unit={AGENT_UNIT}", "--collect", *settings, *command)

    def stop_agent(self, *, kill: bool = False) -> None:
        """End the agent, by SIGTERM or SIGKILL; returns when it is gone."""
        if kill:
            self.machine.run("systemctl", "kill", "--signal=KILL", AGENT_UNIT)
        self.machine.run("systemctl", "stop", AGENT_UNIT, check=False)

    def _write_agent_files(self) -> None:
        self.plane.kubectl("apply", "-f", str(REPOSITORY / "manifests" / "components" / "pinning" / "rbac.yaml"))
        token = self.plane.token_kubeconfig("concerto-system", "concerto-agent", bound_node=self.name)
        text, _ = kubeconfig_for_node(token.read_text(), GATEWAY)
        config = yaml.safe_load(text)
        config["users"][0]["user"] = {"tokenFile": "/etc/concerto/token"}
        self.machine.write("/etc/concerto/token", Path(f"{token}.token").read_text())
        self.machine.write("/etc/concerto/kubeconfig", yaml.safe_dump(config))

    # What is on the second disk

    def _texts(self) -> dict[str, str]:
        kubeconfig = self.plane.client_kubeconfig(self.name, f"system:node:{self.name}", "system:nodes")
        memory = self._shape.node_mib * self._shape.sockets * 2**20
        settings = {"cgroupDriver": "systemd", "failCgroupV1": True, "runtimeRequestTimeout": "15m"}
        settings |= self._kubelet_settings
        spec = NodeSpec(self.name, 0, "", memory - _EVICTION_BYTES, memory, settings)
        return {
            "kubeconfig": kubeconfig_for_node(kubeconfig.read_text(), GATEWAY)[0],
            "kubelet.yaml": kubelet_config(spec, Path("/payload/ca.crt")),
            "kubelet.env": f"NODE={self.name}\nADDRESS={ADDRESS}\n",
            "containerd.toml": containerd_config(Path("/payload/cni"), NRI_SOCKET.parents[1], Path("/opt/cni/bin"))
            + _SYSTEMD_DRIVER,
            "cni/10-concerto.conflist": cni_config("10.79.0.0/24"),
        }

    def _files(self) -> dict[str, Path]:
        images = {f"images/{path.name}": path for path in build_base_images(self._work / "images")}
        programs = ("containerd", "containerd-shim-runc-v2", "ctr") if self._containerd else ()
        images |= {f"containerd/{name}": Path(self._containerd or "", name) for name in programs}
        return {"kubelet": self.plane.binaries / "kubelet", "ca.crt": self.plane.ca_file, **images}
