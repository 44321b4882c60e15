"""The programs of a control plane: found on this machine, or built once by the go command."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from e2e.testbed import REPOSITORY

# The releases that can be built, each with its etcd. The first is the default; $KUBERNETES_VERSION names another.
RELEASES = {"1.37.2": "3.7.3", "1.35.4": "3.6.16"}
METRICS_SERVER_VERSION = "0.9.0"
ARGOCD_VERSION = "3.2.11"
KUSTOMIZE_VERSION = "5.7.1"
LOCAL_PATH_PROVISIONER_VERSION = "0.0.30"
CONTAINERD_VERSION = "2.4.2"
# The oldest that the docs promise. Older etcds lack what a consistent watch cache asks of them.
OLDEST_KUBERNETES = (1, 34)
OLDEST_ETCD = (3, 5, 13)
OLDEST_GO = (1, 26)

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
KUBERNETES_COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")

_VERSION_OF_KUBERNETES = "k8s.io/component-base/version"
_SOURCES = REPOSITORY / "e2e" / "build"
_PROGRESS_SECONDS = 15.0

Say = Callable[[str], None]


class Unusable(Exception):
    """A way to a cluster that this machine does not offer; the message says why."""


@dataclass(frozen=True)
class Binaries:
    """Programs that belong together.

    Attributes:
        directory: where they are, under their own names.
        origin: where they come from, for a person.
        kubernetes: version of the API server.
        etcd: version of etcd.
    """

    directory: Path
    origin: str
    kubernetes: tuple[int, ...]
    etcd: tuple[int, ...]

    def __getitem__(self, name: str) -> Path:
        """The path of a program.

        Raises:
            Unusable: it is not among them.
        """
        path = self.directory / name
        if not os.access(path, os.X_OK):
            raise Unusable(f"{self.origin} has no {name}")
        return path


@dataclass(frozen=True)
class _Build:
    """One program to build.

    Attributes:
        name: its file's.
        source: folder under e2e/build with the go.mod that pins it.
        package: what to build.
        stamps: values of variables, by their full names.
        verb: of the go command; ``test -c`` for the program that runs a package's tests.
    """

    name: str
    source: str
    package: str
    stamps: Mapping[str, str] = field(default_factory=dict)
    verb: Sequence[str] = ("build",)


def find_installed(environment: Mapping[str, str] = os.environ) -> Binaries:
    """The programs in ``$KUBEBUILDER_ASSETS`` or on PATH.

    Raises:
        Unusable: some are missing or too old; the message names them.
    """
    reasons = []
    if assets := environment.get("KUBEBUILDER_ASSETS"):
        try:
            return _examined(Path(assets), f"KUBEBUILDER_ASSETS={assets}", environment)
        except Unusable as error:
            reasons.append(str(error))
    else:
        reasons.append("KUBEBUILDER_ASSETS is not set")
    server = shutil.which("kube-apiserver", path=environment.get("PATH"))
    if server is None:
        reasons.append("no kube-apiserver on PATH")
    else:
        # All from one place: a kubectl elsewhere on PATH may well be a wrapper of another version
        directory = Path(server).parent
        try:
            return _examined(directory, f"{directory} (on PATH)", environment)
        except Unusable as error:
            reasons.append(str(error))
    raise Unusable("; ".join(reasons))


def _examined(directory: Path, origin: str, environment: Mapping[str, str]) -> Binaries:
    missing = [name for name in CONTROL_PLANE if not os.access(directory / name, os.X_OK)]
    if missing:
        # envtest's bundle is of this kind: without a controller manager there are no service accounts and no jobs
        raise Unusable(f"{origin} has no {', '.join(missing)}")
    kubernetes = _version(directory / "kube-apiserver")
    if kubernetes < OLDEST_KUBERNETES:
        raise Unusable(f"{origin} has kube-apiserver {_dotted(kubernetes)}, older than {_dotted(OLDEST_KUBERNETES)}")
    if (wanted := environment.get("KUBERNETES_VERSION")) and _parsed(wanted) != kubernetes:
        raise Unusable(f"{origin} has kube-apiserver {_dotted(kubernetes)}, not KUBERNETES_VERSION={wanted}")
    etcd = _version(directory / "etcd")
    if etcd < OLDEST_ETCD:
        raise Unusable(f"{origin} has etcd {_dotted(etcd)}, older than {_dotted(OLDEST_ETCD)}")
    return Binaries(directory, origin, kubernetes, etcd)


def _version(program: Path) -> tuple[int, ...]:
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unusable(f"{program} --version: {error}") from error
    match = re.search(r"(\d+)\.(\d+)\.(\d+)", output)
    if match is None:
        raise Unusable(f"{program} --version does not print its version: {output[:80]!r}")
    return tuple(map(int, match.groups()))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Where built programs of a control plane are kept, outside of the repository.

    Raises:
        Unusable: $KUBERNETES_VERSION names no release that can be built.
    """
    kubernetes, etcd = chosen_release(environment)
    return cache_root(environment) / f"k8s-v{kubernetes}-etcd-v{etcd}"


def chosen_release(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Versions of Kubernetes and etcd to build: the default ones, or those of $KUBERNETES_VERSION.

    Raises:
        Unusable: $KUBERNETES_VERSION names no release that can be built.
    """
    kubernetes = environment.get("KUBERNETES_VERSION") or next(iter(RELEASES))
    if kubernetes not in RELEASES:
        raise Unusable(f"KUBERNETES_VERSION={kubernetes} cannot be built; set it to one of {', '.join(RELEASES)}")
    return kubernetes, RELEASES[kubernetes]


def modules_of(kubernetes: str) -> str:
    """Folder below e2e/build with the go.mod files of a release."""
    return f"kubernetes-{kubernetes.rpartition('.')[0]}"


def cache_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where everything that is built once is kept, outside of the repository."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concerto"


def find_or_build(say: Say, environment: Mapping[str, str] = os.environ) -> Binaries:
    """The programs of a control plane built by the go command from their modules; what the cache lacks is built now.

    Raises:
        Unusable: they are not there and there is no Go toolchain that could build them, or it failed.
    """
    kubernetes, etcd = chosen_release(environment)
    cache, modules = cache_directory(environment), modules_of(kubernetes)
    stamps = _version_stamps(kubernetes)
    source = f"{modules}/kubernetes"
    builds = [_Build(name, source, f"k8s.io/kubernetes/cmd/{name}", stamps) for name in KUBERNETES_COMMANDS]
    builds.append(_Build("etcd", f"{modules}/etcd", "."))
    what = f"Kubernetes {kubernetes} and etcd {etcd}, 6 to 11 minutes"
    _build_missing(builds, cache, what, say, environment)
    return Binaries(cache, f"built from source, {cache}", _parsed(kubernetes), _parsed(etcd))


def _version_stamps(kubernetes: str) -> dict[str, str]:
    """What programs of a release say of their version."""
    major, minor, _ = kubernetes.split(".")
    version = {"gitVersion": f"v{kubernetes}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return {f"{_VERSION_OF_KUBERNETES}.{key}": value for key, value in version.items()}


def find_or_build_conformance(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of e2e.test, Kubernetes' own tests of schedulers, and of agnhost, which their pods run.

    Raises:
        Unusable: as `find_or_build`, or $KUBERNETES_VERSION names a release whose tests are not pinned.
    """
    kubernetes, _ = chosen_release(environment)
    source = f"{modules_of(kubernetes)}/conformance"
    if not (_SOURCES / source).exists():
        raise Unusable(f"the tests of KUBERNETES_VERSION={kubernetes} are not pinned in e2e/build")
    cache = cache_root(environment) / f"conformance-v{kubernetes}"
    builds = [
        _Build("e2e.test", source, ".", _version_stamps(kubernetes), ("test", "-c", "-vet=off")),
        _Build("agnhost", source, "k8s.io/kubernetes/test/images/agnhost"),
    ]
    _build_missing(builds, cache, f"the tests of Kubernetes {kubernetes}, about 4 minutes", say, environment)
    return cache


def find_or_build_metrics_server(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """The program metrics-server, built by the go command from its module unless the cache has it.

    Raises:
        Unusable: as `find_or_build`.
    """
    cache = cache_root(environment) / f"metrics-server-v{METRICS_SERVER_VERSION}"
    module = "sigs.k8s.io/metrics-server"
    stamps = {f"{module}/pkg/version.gitVersion": f"v{METRICS_SERVER_VERSION}"}
    build = _Build("metrics-server", "metrics-server", f"{module}/cmd/metrics-server", stamps)
    _build_missing([build], cache, f"metrics-server {METRICS_SERVER_VERSION}, about 4 minutes", say, environment)
    return cache / "metrics-server"


def find_or_build_local_path_provisioner(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """The program local-path-provisioner, built by the go command from its module unless the cache has it.

    Raises:
        Unusable: as `find_or_build`.
    """
    version = LOCAL_PATH_PROVISIONER_VERSION
    cache = cache_root(environment) / f"local-path-provisioner-v{version}"
    module = "github.com/rancher/local-path-provisioner"
    build = _Build("local-path-provisioner", "local-path-provisioner", module)
    _build_missing([build], cache, f"local-path-provisioner {version}, about 2 minutes", say, environment)
    return cache / "local-path-provisioner"


def find_or_build_argocd(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of the programs argocd and kustomize, and of Argo CD's own manifests; what the cache lacks is built now.

    Raises:
        Unusable: as `find_or_build`.
    """
    cache = cache_root(environment) / f"argocd-v{ARGOCD_VERSION}-kustomize-v{KUSTOMIZE_VERSION}"
    module = "github.com/argoproj/argo-cd/v3"
    builds = [
        _Build("argocd", "argocd", f"{module}/cmd"),
        _Build("kustomize", "kustomize", "sigs.k8s.io/kustomize/kustomize/v5"),
    ]
    what = f"Argo CD {ARGOCD_VERSION} and kustomize {KUSTOMIZE_VERSION}, about 10 minutes"
    _build_missing(builds, cache, what, say, environment)
    manifests = cache / "manifests"
    if not manifests.exists():
        command = [_toolchain(environment), "list", "-m", "-f", "{{.Dir}}", module]
        found = subprocess.run(command, cwd=_SOURCES / "argocd", check=True, capture_output=True, text=True).stdout
        unfinished = cache / ".manifests.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(Path(found.strip()) / "manifests", unfinished)
        # in the module cache everything is read-only
        unfinished.chmod(0o755)
        unfinished.replace(manifests)
    return cache


def find_or_build_containerd(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """Folder of containerd 2, its shim and ctr, built by the go command from their module unless the cache has them.

    Raises:
        Unusable: as `find_or_build`.
    """
    cache = cache_root(environment) / f"containerd-v{CONTAINERD_VERSION}"
    module = "github.com/containerd/containerd/v2"
    stamps = {f"{module}/version.Version": f"v{CONTAINERD_VERSION}"}
    names = ("containerd", "containerd-shim-runc-v2", "ctr")
    builds = [_Build(name, "containerd", f"{module}/cmd/{name}", stamps) for name in names]
    _build_missing(builds, cache, f"containerd {CONTAINERD_VERSION}, about 4 minutes", say, environment)
    return cache


def find_or_build_watcher_client(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """The client of the load-watcher API in Go, built by the go command unless the cache has it.

    Raises:
        Unusable: there is no go command, or the build fails.
    """
    return _find_or_build_own("watcher-client", say, environment)


def find_or_build_cri_client(say: Say, environment: Mapping[str, str] = os.environ) -> Path:
    """The client of the Container Runtime Interface, built by the go command unless the cache has it.

    Raises:
        Unusable: there is no go command, or the build fails.
    """
    return _find_or_build_own("cri-client", say, environment)


def _find_or_build_own(name: str, say: Say, environment: Mapping[str, str]) -> Path:
    """A program of this repository."""
    source = _SOURCES / name
    content = b"".join((source / file).read_bytes() for file in ("main.go", "go.mod"))
    cache = cache_root(environment) / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    _build_missing([_Build(name, name, ".")], cache, f"{name}, 10 s", say, environment)
    return cache / name


def _build_missing(builds: Sequence[_Build], cache: Path, what: str, say: Say, environment: Mapping[str, str]) -> None:
    """Build what the cache lacks.

    Each is put into the cache whole, by a rename, so that an interrupted build leaves only finished ones; the go
    command's own cache takes care of the rest. A lock keeps two builds from doing the same work.
    """
    if all((cache / build.name).exists() for build in builds):
        return
    go = _toolchain(environment)
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / ".lock", say):
        todo = [build for build in builds if not (cache / build.name).exists()]
        if todo:
            say(f"building {what} on 2 CPUs when Go's own cache is empty, once, with {go} into {cache}")
        for index, build in enumerate(todo, start=1):
            _build(go, build, cache, lambda text, i=index: say(f"[{i}/{len(todo)}] {text}"))


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _toolchain(environment: Mapping[str, str]) -> str:
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise Unusable("no go command on PATH")
    output = subprocess.run([go, "env", "GOVERSION", "GOTOOLCHAIN"], capture_output=True, text=True, timeout=60).stdout
    version, _, toolchain = output.partition("\n")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    # From 1.21 on the go command fetches a newer one of itself, unless that is switched off
    if numbers < OLDEST_GO and (numbers < (1, 21) or toolchain.strip() == "local"):
        raise Unusable(f"{go} is {version}, and building needs go{_dotted(OLDEST_GO)}")
    return go


def _build(go: str, build: _Build, cache: Path, say: Say) -> None:
    name = build.name
    flags = "-s -w" + "".join(f" -X {key}={value}" for key, value in build.stamps.items())
    unfinished = cache / f".{name}.unfinished"
    log = cache / f".{name}.log"
    options = ["-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", flags]
    command = [go, *build.verb, *options, "-o", str(unfinished)]
    began = time.monotonic()
    say(f"building {name}")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, build.package],
            cwd=_SOURCES / build.source,
            stdout=output,
            stderr=output,
            env={**os.environ, "CGO_ENABLED": "0"},
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(_PROGRESS_SECONDS)
                except subprocess.TimeoutExpired:
                    say(f"building {name}: {time.monotonic() - began:.0f} s so far")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise Unusable(f"go {build.verb[0]} {build.package} failed (all of it in {log}):\n{end}")
    unfinished.replace(cache / name)
    log.unlink()
    say(f"built {name} in {time.monotonic() - began:.0f} s")


@contextmanager
def locked(path: Path, say: Say) -> Iterator[None]:
    """Hold the lock of a build; says so where another process has it."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build (lock {path})")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
