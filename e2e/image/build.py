"""Builds both images, and packs them into one archive whose common layers are there once.

With a container engine that answers, the engine builds on the base that the Dockerfile names. Without one, Debian's
buildah builds on a tree of Debian packages (`tree`); that needs root and the packages of packages.txt.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from e2e.image import pin, tree, wheels
from e2e.image.wheels import REPOSITORY

OUTPUT = REPOSITORY / "build" / "image"
ARCHIVE = OUTPUT / "concerto.tar"
TARGETS = ("operator", "agent")
VERSION = str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])
_INPUTS = (
    "Dockerfile",
    ".dockerignore",
    "pyproject.toml",
    "requirements.lock",
    "e2e/image/*.py",
    "*/concerto*/**/*",
)

Say = Callable[[str], None]


class CannotBuild(RuntimeError):
    """This machine offers no way to build an image; the message says what would."""


@dataclass(frozen=True)
class Image:
    """One image.

    Attributes:
        name: with its tag.
        bytes: of all its layers, unpacked.
    """

    name: str
    bytes: int


@dataclass(frozen=True)
class Images:
    """What was built.

    Attributes:
        archive: a docker-archive of both, for ``ctr images import``, ``docker load`` and ``kind load image-archive``.
        images: each of them.
        bytes: of both together, with the layers that they share counted once.
    """

    archive: Path
    images: tuple[Image, ...]
    bytes: int

    def __str__(self) -> str:
        reported = ", ".join(f"{image.name} {image.bytes / 2**20:.0f} MiB" for image in self.images)
        return f"{reported}; both together, shared layers once: {self.bytes / 2**20:.0f} MiB"


def build(say: Say, archive: Path = ARCHIVE, *, afresh: bool = True) -> Images:
    """Build both images; one build at a time, as all use the same folder.

    Args:
        say: called with what is done.
        archive: where the images go.
        afresh: also if the archive is there.

    Raises:
        CannotBuild: there is neither an engine nor what would do without.
        subprocess.CalledProcessError: a step failed; what it said is on stderr.
    """
    for folder in (OUTPUT, archive.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with (OUTPUT / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if afresh or not archive.exists():
            _build(say, archive)
    return examine(archive)


def _build(say: Say, archive: Path) -> None:
    say("image: the wheels that requirements.lock pins (5 s; 40 MiB the first time)")
    shutil.rmtree(OUTPUT / "wheels", ignore_errors=True)
    wheels.download(OUTPUT / "wheels")
    with tempfile.TemporaryDirectory(prefix="concerto-image-", dir=_roomy()) as directory:
        parts = _by_engine(say) if engine_answers() else _by_buildah(say, Path(directory))
        unfinished = archive.with_suffix(".unfinished")
        with parts as archives:
            _merge(archives, unfinished)
    unfinished.replace(archive)


def cached(say: Say) -> Images:
    """The images of just this code, built if they are not in the cache, which keeps the last three of all."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concerto" / "images"
    images = build(say, root / f"{fingerprint()}.tar", afresh=False)
    for older in sorted(root.glob("*.tar"), key=lambda path: path.stat().st_mtime)[:-3]:
        older.unlink(missing_ok=True)
    return images


def fingerprint() -> str:
    """A name for all that an image is made of in this repository."""
    digest = hashlib.sha256()
    for pattern in _INPUTS:
        for path in sorted(REPOSITORY.glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(REPOSITORY)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def engine_answers() -> bool:
    """Whether there is a Docker engine; a client alone does not count."""
    if shutil.which("docker") is None:
        return False
    with contextlib.suppress(subprocess.TimeoutExpired):
        said = subprocess.run(["docker", "info"], capture_output=True, text=True, timeout=10)
        return said.returncode == 0 and "Server Version" in said.stdout
    return False


def examine(archive: Path) -> Images:
    """What an archive holds."""
    with tarfile.open(archive) as held:
        sizes = {member.name: member.size for member in held.getmembers()}
        manifest = json.loads(held.extractfile("manifest.json").read())  # type: ignore[union-attr]
    images = tuple(
        # the name that docker and containerd show is the short one
        Image(entry["RepoTags"][0].removeprefix("docker.io/library/"), sum(sizes[layer] for layer in entry["Layers"]))
        for entry in manifest
    )
    layers = {layer for entry in manifest for layer in entry["Layers"]}
    return Images(archive, images, sum(sizes[layer] for layer in layers))


@contextlib.contextmanager
def _by_engine(say: Say) -> Iterator[list[Path]]:
    base = [f"--build-arg=BASE={os.environ['IMAGE_BASE']}"] if os.environ.get("IMAGE_BASE") else []
    if not base and pin.base(pin.DOCKERFILE.read_text())[1] is None:
        say("image: the Dockerfile names its base without a digest: make pin-base")
    names = []
    for target in TARGETS:
        names.append(f"concerto-{target}:{VERSION}")
        say(f"image: docker build --target {target}")
        subprocess.run(
            ["docker", "build", "--quiet", *base, "--target", target, "-t", names[-1], REPOSITORY], check=True
        )
    with tempfile.TemporaryDirectory(prefix="concerto-image-", dir=_roomy()) as directory:
        saved = Path(directory) / "saved.tar"
        subprocess.run(["docker", "save", "-o", saved, *names], check=True)
        yield [saved]


@contextlib.contextmanager
def _by_buildah(say: Say, directory: Path) -> Iterator[list[Path]]:
    missing = [program for program in ("buildah", "mmdebstrap") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        lacking = f"{' and '.join(missing)} (apt-get install {' '.join(missing)})" if missing else "root"
        raise CannotBuild(f"no Docker engine answers `docker info`, and building without one needs {lacking}")
    say(f"image: a base of Debian {tree.SUITE}'s packages, by mmdebstrap (10 s)")
    tree.make(directory / "base.tar")
    policy = directory / "policy.json"
    policy.write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}))
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs", "TMPDIR": str(directory)}
    storage = ["--root", str(directory / "storage"), "--runroot", str(directory / "run")]

    def buildah(*arguments: str | Path) -> None:
        subprocess.run(
            ["buildah", *storage, *arguments], check=True, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL
        )

    (directory / "base").mkdir()
    (directory / "base" / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
    (directory / "base.tar").rename(directory / "base" / "base.tar")
    # Layers that both images have are the same only if the second build takes them from the first
    options = ["bud", "--quiet", "--layers", "--timestamp=0", "--signature-policy", policy]
    buildah(*options, "-t", "concerto-base", directory / "base")
    archives = []
    for target in TARGETS:
        name = f"concerto-{target}:{VERSION}"
        say(f"image: buildah, target {target} (20 s)")
        buildah(*options, "--build-arg=BASE=localhost/concerto-base", f"--target={target}", "-t", name, REPOSITORY)
        archives.append(directory / f"{target}.tar")
        buildah("push", "--quiet", "--signature-policy", policy, name, f"docker-archive:{archives[-1]}:{name}")
    try:
        yield archives
    finally:
        subprocess.run(
            ["buildah", *storage, "rmi", "--all", "--force"], env=environment, capture_output=True, check=False
        )


def _merge(archives: list[Path], target: Path) -> None:
    """One docker-archive of several: what has the same name, a digest, is the same."""
    manifest: list[dict[str, object]] = []
    seen: set[str] = set()
    with tarfile.open(target, "w") as merged:
        for archive in archives:
            with tarfile.open(archive) as part:
                for member in part.getmembers():
                    if member.name == "manifest.json":
                        manifest += json.loads(part.extractfile(member).read())  # type: ignore[union-attr]
                    elif member.name not in seen and member.name != "repositories":
                        seen.add(member.name)
                        merged.addfile(member, part.extractfile(member) if member.isfile() else None)
        text = json.dumps(manifest).encode()
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(text)
        with tempfile.TemporaryFile() as data:
            data.write(text)
            data.seek(0)
            merged.addfile(entry, data)


def _roomy() -> str:
    """A folder on a disk: copies of layers take 2 GiB for a minute, and /tmp may be in memory."""
    return "/var/tmp"
