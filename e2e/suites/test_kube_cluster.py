"""The test clusters themselves: what is taken, what is refused and why, and that nothing outlives a run."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, ClusterError, LocalControlPlane, Unusable, binaries
from e2e.testbed.clusters.binaries import find_installed, find_or_build, find_or_build_conformance
from e2e.testbed.clusters.local import stop_left
from e2e.testbed.waiting import eventually, eventually_async


def programs(directory: Path, **said: str) -> Path:
    """Programs that say a version and do nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, version in said.items():
        program = directory / name.replace("_", "-")
        program.write_text(f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
    return directory


GOOD = {
    "etcd": "etcd Version: 3.5.13",
    "kube_apiserver": "Kubernetes v1.34.0",
    "kube_controller_manager": "Kubernetes v1.34.0",
    "kubectl": "Client Version: v1.34.0",
}


def test_installed_programs_are_taken_if_they_will_do(tmp_path: Path) -> None:
    assets, path = programs(tmp_path / "assets", **GOOD), programs(tmp_path / "path", **GOOD)
    both = {"KUBEBUILDER_ASSETS": str(assets), "PATH": str(path)}
    assert find_installed(both).directory == assets
    assert find_installed({"PATH": str(path)}).directory == path
    assert find_installed(both).kubernetes == (1, 34, 0)


REFUSED: dict[str, tuple[dict[str, str | None], str]] = {
    "an API server that is too old": ({"kube_apiserver": "Kubernetes v1.33.9"}, "1.33.9, older than 1.34"),
    "an etcd that is too old": ({"etcd": "etcd Version: 3.4.30"}, "etcd 3.4.30, older than 3.5.13"),
    "no controller manager, as in envtest's bundle": ({"kube_controller_manager": None}, "no kube-controller-manager"),
    "a program that does not say its version": ({"etcd": "hello"}, "does not print its version"),
}


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_installed_programs_are_refused_with_the_reason(
    tmp_path: Path, change: dict[str, str | None], words: str
) -> None:
    said = {name: text for name, text in {**GOOD, **change}.items() if text}
    with pytest.raises(Unusable, match=words):
        find_installed({"KUBEBUILDER_ASSETS": str(programs(tmp_path, **said)), "PATH": ""})


def test_nothing_installed_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="KUBEBUILDER_ASSETS is not set; no kube-apiserver on PATH"):
        find_installed({"PATH": str(tmp_path)})


# A go command that knows its version, and builds by writing down what it was asked for
GO = """#!/bin/sh
if [ "$1" = env ]; then echo "$GO_SAYS"; echo local; exit; fi
while [ "$1" != -o ]; do shift; done
case "$3" in *kubelet) [ -e "$BROKEN" ] && { echo 'kubelet: it broke' >&2; exit 2; };; esac
echo "$3" > "$2"; echo "$3" >> "$BUILT"
"""


@pytest.fixture
def toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("GO_SAYS", "go1.26.0")
    monkeypatch.setenv("BUILT", str(tmp_path / "built"))
    monkeypatch.setenv("BROKEN", str(tmp_path / "broken"))
    return {"PATH": str(go.parent), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_what_is_missing_is_built_once(tmp_path: Path, toolchain: dict[str, str]) -> None:
    said: list[str] = []
    found = find_or_build(said.append, toolchain)
    assert found.directory.is_relative_to(tmp_path / "cache" / "concerto")
    built = (tmp_path / "built").read_text().splitlines()
    assert built == [*(f"k8s.io/kubernetes/cmd/{name}" for name in binaries.KUBERNETES_COMMANDS), "."]
    assert {path.name for path in found.directory.iterdir()} == {*binaries.KUBERNETES_COMMANDS, "etcd", ".lock"}
    assert any(line.startswith("[6/6] built etcd") for line in said)

    said.clear()
    assert find_or_build(said.append, {**toolchain, "PATH": ""}) == found  # needs no toolchain any more
    assert said == []


def test_a_build_that_fails_goes_on_where_it_stopped(tmp_path: Path, toolchain: dict[str, str]) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(Unusable, match="it broke"):
        find_or_build(lambda text: None, toolchain)
    (tmp_path / "broken").unlink()
    find_or_build(lambda text: None, toolchain)
    built = (tmp_path / "built").read_text().splitlines()
    assert len(built) == len(set(built)) == 6


def test_two_builds_wait_for_one_another(tmp_path: Path, toolchain: dict[str, str]) -> None:
    cache = binaries.cache_directory(toolchain)
    programs(cache, **{name.replace("-", "_"): "done elsewhere" for name in binaries.KUBERNETES_COMMANDS})
    said: list[str] = []
    with (cache / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def hear(text: str) -> None:
            said.append(text)
            if text.startswith("waiting for another build"):
                programs(cache, etcd="done elsewhere")
                fcntl.flock(lock, fcntl.LOCK_UN)

        find_or_build(hear, toolchain)
    assert len(said) == 1
    assert not (tmp_path / "built").exists()


def test_a_toolchain_that_is_too_old_is_refused(toolchain: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GO_SAYS", "go1.22.1")
    with pytest.raises(Unusable, match=r"go1\.22\.1, and building needs go1\.26"):
        find_or_build(lambda text: None, toolchain)
    with pytest.raises(Unusable, match="no go command"):
        find_or_build(lambda text: None, {**toolchain, "PATH": ""})


@pytest.mark.parametrize(("kubernetes", "etcd"), binaries.RELEASES.items())
def test_the_pinned_modules_are_the_versions_we_name(kubernetes: str, etcd: str) -> None:
    modules = REPOSITORY / "e2e" / "build" / binaries.modules_of(kubernetes)
    assert f"k8s.io/kubernetes v{kubernetes}\n" in (modules / "kubernetes" / "go.mod").read_text()
    assert f"go.etcd.io/etcd/server/v3 v{etcd}\n" in (modules / "etcd" / "go.mod").read_text()


def test_another_release_can_be_chosen(tmp_path: Path, toolchain: dict[str, str]) -> None:
    default, other = list(binaries.RELEASES)[:2]
    found = find_or_build(lambda text: None, toolchain)
    chosen = find_or_build(lambda text: None, {**toolchain, "KUBERNETES_VERSION": other})
    assert ".".join(map(str, found.kubernetes)) == default
    assert ".".join(map(str, chosen.kubernetes)) == other
    assert chosen.directory != found.directory


def test_kubernetes_own_tests_are_built_for_the_release_whose_tests_are_pinned(
    tmp_path: Path, toolchain: dict[str, str]
) -> None:
    default, other = list(binaries.RELEASES)[:2]
    found = find_or_build_conformance(lambda text: None, toolchain)
    assert (tmp_path / "built").read_text().splitlines() == [".", "k8s.io/kubernetes/test/images/agnhost"]
    assert {path.name for path in found.iterdir()} == {"e2e.test", "agnhost", ".lock"}
    with pytest.raises(Unusable, match=f"KUBERNETES_VERSION={other} are not pinned"):
        find_or_build_conformance(lambda text: None, {**toolchain, "KUBERNETES_VERSION": other})
    modules = REPOSITORY / "e2e" / "build" / binaries.modules_of(default) / "conformance" / "go.mod"
    assert f"k8s.io/kubernetes v{default}\n" in modules.read_text()


def test_a_chosen_release_is_not_replaced_by_another(tmp_path: Path) -> None:
    assets = programs(tmp_path, **GOOD)
    environment = {"KUBEBUILDER_ASSETS": str(assets), "PATH": ""}
    with pytest.raises(Unusable, match=r"has kube-apiserver 1\.34\.0, not KUBERNETES_VERSION=1\.35\.4"):
        find_installed({**environment, "KUBERNETES_VERSION": "1.35.4"})
    with pytest.raises(Unusable, match=r"KUBERNETES_VERSION=1\.20\.0 cannot be built; set it to one of 1\.37"):
        find_or_build(lambda text: None, {"KUBERNETES_VERSION": "1.20.0"})


@pytest.mark.parametrize("ci", ["", "true"], ids=["by hand", "in CI"])
def test_a_machine_without_an_api_server_skips_with_the_reason_and_fails_in_ci(tmp_path: Path, ci: str) -> None:
    bare = {"PATH": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CI": ci}
    one = f"{Path(__file__).relative_to(REPOSITORY)}::test_a_cluster_has_all_that_tests_build_on"
    kept = {key: value for key, value in os.environ.items() if key == "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", one, "-q", "-p", "no:cacheprovider"],
        cwd=REPOSITORY, env={**kept, **bare}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == (1 if ci else 0), done.stdout
    assert ("apiserver: 1 error" if ci else "apiserver: 1 skipped") in done.stdout
    for words in ("no kube-apiserver on PATH", "no go command on PATH", "Any one of these would do:"):
        assert words in done.stdout


def unscheduled_pod(namespace: str) -> dict[str, Any]:
    """A pod that nothing changes after its creation."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "namespace": namespace},
        "spec": {"containers": [{"name": "main", "image": "localhost/none:1"}], "schedulerName": "nobody"},
    }


def test_a_cluster_has_all_that_tests_build_on(cluster: Cluster, namespace: str) -> None:
    version = json.loads(cluster.kubectl("get", "--raw", "/version"))
    assert (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 34)
    # a controller manager: the namespace has its service account and the authority's certificate
    cluster.wait("--for=create", "-n", namespace, "configmap/kube-root-ca.crt")
    # admission: a pod gets its token mounted
    cluster.apply(unscheduled_pod(namespace))
    assert cluster.get("pod", "-n", namespace, "one")["spec"]["volumes"][0]["name"].startswith("kube-api-access")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ns", "default"),
        ("namespaces", "--field-selector=metadata.name=default"),
        ("clusterrole", "-l", "kubernetes.io/bootstrapping=rbac-defaults"),
        ("serviceaccounts", "-n", "kube-system"),
        ("sa", "default"),
        ("apiservices", "v1.apps"),
        ("serviceaccounts,configmaps", "-n", "default"),
    ],
    ids=" ".join,
)
def test_what_is_read_without_kubectl_is_what_kubectl_prints(
    control_plane: LocalControlPlane, arguments: tuple[str, ...]
) -> None:
    read, printed = control_plane.get(*arguments), Cluster.get(control_plane, *arguments)
    assert read.get("items", read) == printed.get("items", printed)


def test_pods_of_all_namespaces_are_read_without_kubectl_as_kubectl_prints_them(
    control_plane: LocalControlPlane, namespace: str
) -> None:
    control_plane.apply(unscheduled_pod(namespace))
    # Pods of other suites may change between the two readings
    arguments = ("pods", "-A", f"--field-selector=metadata.namespace={namespace}")
    read, printed = control_plane.get(*arguments), Cluster.get(control_plane, *arguments)
    assert len(read["items"]) == 1
    assert read["items"] == printed["items"]


def test_what_is_not_there_is_an_error_whoever_reads_it(control_plane: LocalControlPlane) -> None:
    with pytest.raises(ClusterError, match="NotFound"):
        control_plane.get("pod", "nobody")


def test_a_token_can_be_bound_to_a_node(cluster: Cluster, namespace: str) -> None:
    cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-of-tokens"}})
    try:
        kubeconfig = cluster.token_kubeconfig(namespace, "default", bound_node="node-of-tokens")
        assert (kubeconfig.stat().st_mode & 0o077, kubeconfig.parent) == (0, cluster.work_dir)
        token = kubeconfig.with_name(f"{kubeconfig.name}.token").read_text()
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        user = json.loads(cluster.kubectl("create", "-f", "-", "-o", "json", stdin=json.dumps(review)))["status"][
            "user"
        ]
        assert user["username"] == f"system:serviceaccount:{namespace}:default"
        assert user["extra"]["authentication.kubernetes.io/node-name"] == ["node-of-tokens"]
    finally:
        cluster.kubectl("delete", "node", "node-of-tokens", "--wait=false")


def processes_of(work_dir: Path) -> list[int]:
    """PIDs of everything that names the folder in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if str(work_dir).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


OWNER = """
import sys, threading, time
from pathlib import Path
from e2e.testbed.clusters import LocalControlPlane, find_binaries
plane = LocalControlPlane(find_binaries(print), work_dir=Path(sys.argv[1]))
# from a thread that ends: what it started must go on, as it belongs to the process
thread = threading.Thread(target=plane.start)
thread.start(); thread.join()
time.sleep(0.5)
plane.kubectl("get", "namespaces")
print("up", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_outlives_a_run_that_is_killed(control_plane: LocalControlPlane, tmp_path: Path, how: int) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path / "plane"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    try:
        assert "up\n" in iter(owner.stdout.readline, "")
        assert len(processes_of(tmp_path / "plane")) == 4  # its own, and three parts
        owner.send_signal(how)
        owner.wait()
        eventually("all of them are gone", lambda: not processes_of(tmp_path / "plane"))
    finally:
        owner.kill()
        owner.wait()


def test_a_control_plane_may_stay_until_it_is_stopped(control_plane: LocalControlPlane, tmp_path: Path) -> None:
    work_dir = tmp_path / "plane"
    command = [sys.executable, "-m", "e2e.testbed.clusters"]
    up = subprocess.run([*command, "up", "--dir", work_dir], cwd=REPOSITORY, capture_output=True, text=True)
    assert up.stdout == f"export KUBECONFIG={work_dir}/kubeconfig.admin\n", up.stderr
    try:
        kubectl = [control_plane.kubectl_path, "--kubeconfig", work_dir / "kubeconfig.admin", "get", "namespaces"]
        assert "kube-system" in subprocess.run(kubectl, capture_output=True, text=True, check=True).stdout
    finally:
        down = subprocess.run([*command, "down", "--dir", work_dir], cwd=REPOSITORY, capture_output=True, text=True)
    assert down.stdout == f"stopped {work_dir}\n"
    assert not processes_of(work_dir)
    assert not work_dir.exists()
    assert not stop_left(work_dir)


def test_the_control_planes_own_logs_say_why_it_does_not_start(
    control_plane: LocalControlPlane, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"kube-apiserver ended with 1(.|\n)*unknown flag: --no-such-flag"):
        LocalControlPlane(
            binaries.Binaries(control_plane.binaries, "the same", (), ()),
            work_dir=tmp_path / "plane",
            apiserver_flags=["--no-such-flag"],
        ).start()
    assert not processes_of(tmp_path / "plane")


async def test_storage_can_fail_and_come_back(control_plane: LocalControlPlane, namespace: str) -> None:
    await asyncio.to_thread(control_plane.stop_etcd)
    refused = await asyncio.to_thread(
        control_plane.kubectl, "create", "configmap", "-n", namespace, "a", "--request-timeout=2s", check=False
    )
    assert "created" not in refused
    await asyncio.to_thread(control_plane.start_etcd)
    await asyncio.to_thread(control_plane.wait_until_ready)
    again = ("create", "configmap", "-n", namespace, "b")
    await eventually_async("writes are taken", lambda: "created" in control_plane.kubectl(*again, check=False))
