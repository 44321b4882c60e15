"""`make uninstall` may be interrupted anywhere and run again: it ends well, and says what it has done."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import yaml

from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.system import REPOSITORY, install
from e2e.testbed.waiting import PATIENCE_SECONDS

OVERLAY = REPOSITORY / "manifests" / "overlays" / "local"
BINDING = {
    "apiVersion": "concerto.dev/v1alpha1",
    "kind": "PodCPUBinding",
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"podName": "p", "cpuSet": [{"cpuID": 0}]},
}


def begin(plane: LocalControlPlane, cache: Path, overlay: Path = OVERLAY) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", "uninstall", f"OVERLAY={overlay}"],
        cwd=REPOSITORY,
        env={
            # not as a part of the `make` that runs these tests, which would be reported
            **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            "PATH": f"{Path(plane.kubectl_path).parent}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
            "KUBECACHEDIR": str(cache),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(plane: LocalControlPlane, cache: Path, overlay: Path) -> list[str]:
    """The lines of a run that ended well."""
    uninstall = begin(plane, cache, overlay)
    said, _ = uninstall.communicate(timeout=PATIENCE_SECONDS)
    assert uninstall.returncode == 0, said
    return said.splitlines()


def names(plane: LocalControlPlane) -> list[str]:
    """What of Concerto is in the cluster."""
    kinds = (
        "crd,namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings"
    )
    return [name for name in plane.kubectl("get", kinds, "-o", "name").split() if "concerto" in name]


def gone(lines: list[str]) -> set[str]:
    return {
        line.split()[1].strip('"') for line in lines if line.split()[2:3] == ["deleted"] or " deleted from " in line
    }


def test_it_may_be_killed_after_any_of_its_words_is_gone_on_with_and_says_so_when_nothing_is_left(own_plane, tmp_path):
    # of an overlay of one's own, with kinds of somebody else that this cluster has not
    up = "../" * (len(tmp_path.parts) - 1) + str(REPOSITORY / "manifests").lstrip("/")
    overlay = {"resources": [f"{up}/overlays/local"], "components": [f"{up}/components/monitoring"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    cache = tmp_path / "cache"
    install(own_plane)
    own_plane.apply(BINDING)
    said = []
    for words in (1, 9):
        killed = begin(own_plane, cache, tmp_path)
        assert killed.stdout is not None
        read = 0
        while read < words and (line := killed.stdout.readline()):
            said.append(line.rstrip())
            read += 1
        os.killpg(killed.pid, signal.SIGKILL)
        said += killed.communicate()[0].splitlines()
    said += run(own_plane, cache, tmp_path)
    assert {"b", "concerto-system", "nodecapacities.concerto.dev", "concerto-operator"} <= gone(said), said
    assert "passed over, as the cluster has no such kind: PodMonitor concerto-agent" in said
    assert names(own_plane) == []

    again = run(own_plane, cache, tmp_path)
    assert gone(again) == set()
    assert "passed over, as the cluster has no such kind: SchedulingProfile concerto" in again
    assert again[-1] == said[-1] == f"nothing of {tmp_path} is left"


def test_a_cluster_that_can_not_be_asked_is_not_said_to_be_empty(own_plane, tmp_path):
    own_plane.stop_apiserver()
    try:
        uninstall = begin(own_plane, tmp_path)
        said, _ = uninstall.communicate(timeout=PATIENCE_SECONDS)
    finally:
        own_plane.start_apiserver()
    assert uninstall.returncode != 0
    assert "is left" not in said
