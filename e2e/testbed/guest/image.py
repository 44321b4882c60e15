"""Disk and kernel of the guest, made of Debian packages: built once, and kept in the cache.

The disk has systemd, containerd, runc and Python. What belongs to a run (kubelet, the agent's code, kubeconfigs) comes
on a second disk, the payload, and our units in the initial RAM disk.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from e2e.testbed.clusters.binaries import cache_root, locked

_HERE = Path(__file__).parent
_PACKAGES = _HERE / "guest-packages.txt"
_KERNEL = "linux-image-cloud-amd64"
_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "crc32c_generic", "ext4", "overlay")
_DISK_MIB = 2048
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
_MASKED = ("getty@.service", "serial-getty@.service", "systemd-udevd.service", "systemd-logind.service")
_PROGRESS_SECONDS = 15.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class GuestImage:
    """What the guest boots from.

    Attributes:
        directory: where all of it is.
    """

    directory: Path

    @property
    def kernel(self) -> Path:
        """The kernel, bzImage."""
        return self.directory / "kernel"

    @property
    def modules(self) -> Path:
        """Folder of the kernel's modules that the guest needs, with their order in ``modules.list``."""
        return self.directory / "modules"

    @property
    def disk(self) -> Path:
        """The root file system, ext4; never written to."""
        return self.directory / "disk.ext4"


def find_or_build_image(say: Say) -> GuestImage:
    """The image from the cache, built now if it is not there (2 to 4 minutes, most of it downloads).

    Raises:
        subprocess.CalledProcessError: a step failed; with its output.
    """
    digest = hashlib.sha256(_PACKAGES.read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    image = GuestImage(cache_root() / f"guest-{digest}")
    if image.directory.exists():
        return image
    image.directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(image.directory.parent / ".guest.lock", say):
        if not image.directory.exists():
            with tempfile.TemporaryDirectory(prefix=".guest-", dir=image.directory.parent) as work:
                _build(Path(work), say)
                finished = Path(work) / "image"
                finished.rename(image.directory)
    return image


def make_disk(target: Path, tree: Path, mib: int) -> None:
    """An ext4 file system with the files of a directory."""
    _run(["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, target, f"{mib}M"])


def _build(work: Path, say: Say) -> None:
    began = time.monotonic()
    say("building the guest's image, once (2 to 4 min)")
    image, kernel, root = GuestImage(work / "image"), work / "kernel", work / "root"
    image.directory.mkdir()
    say("guest: kernel")
    release = _unpack_kernel(kernel)
    shutil.copy(kernel / "boot" / f"vmlinuz-{release}", image.kernel)
    _copy_modules(kernel / "lib/modules" / release, image.modules)
    say(f"guest: root file system for Linux {release}")
    _make_root(root, say)
    make_disk(image.disk, root, _DISK_MIB)
    say(f"guest: image built in {time.monotonic() - began:.0f} s")


def _unpack_kernel(target: Path) -> str:
    """The newest kernel package's files; its release, as ``uname -r`` has it."""
    target.mkdir()
    _run(["apt-get", "update", "-qq"])
    depends = _run(["apt-cache", "depends", "--important", _KERNEL])
    (package,) = re.findall(r"Depends: (linux-image-\S+)", depends)
    _run(["apt-get", "download", "-qq", package], cwd=target)
    (archive,) = target.glob("*.deb")
    _run(["dpkg-deb", "-x", archive, target])
    release = package.removeprefix("linux-image-")
    _run(["depmod", "-b", target, release])
    return release


def order_modules(names: Iterable[str], dependencies: str, builtin: str) -> list[str]:
    """Files of modules, each after those it depends on.

    Args:
        names: of the modules wanted.
        dependencies: text of ``modules.dep``.
        builtin: text of ``modules.builtin``: what it lists is part of the kernel.

    Raises:
        KeyError: there is no such module.
    """
    needs = {}
    for line in dependencies.splitlines():
        file, _, rest = line.partition(":")
        needs[file] = rest.split()
    by_name = {Path(file).name.partition(".")[0].replace("-", "_"): file for file in needs}
    within = {Path(line).name.partition(".")[0].replace("-", "_") for line in builtin.split()}
    ordered: dict[str, None] = {}
    for name in names:
        if name not in within:
            file = by_name[name]
            # modules.dep has what is needed last first
            ordered |= dict.fromkeys([*reversed(needs[file]), file])
    return list(ordered)


def _copy_modules(modules: Path, target: Path) -> None:
    """The modules that the guest needs, and ``modules.list`` with their files in the order in which they are loaded."""
    dependencies, builtin = ((modules / f"modules.{name}").read_text() for name in ("dep", "builtin"))
    target.mkdir()
    files = order_modules(_MODULES, dependencies, builtin)
    for file in files:
        shutil.copy(modules / file, target)
    (target / "modules.list").write_text("".join(f"{Path(file).name}\n" for file in files))


def _make_root(root: Path, say: Say) -> None:
    sources = next(path for path in _SOURCES if path.exists())
    suite = re.search(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    assert suite is not None, "this machine is not Debian"
    options = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
    packages = ",".join(_PACKAGES.read_text().split())
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        f"--include={packages}",
        *options,
        suite[1],
        str(root),
        "-",
    ]
    with sources.open() as text:
        process = subprocess.Popen(command, stdin=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    began = time.monotonic()
    while True:
        try:
            output, _ = process.communicate(timeout=_PROGRESS_SECONDS)
            break
        except subprocess.TimeoutExpired:
            say(f"guest: root file system, {time.monotonic() - began:.0f} s so far")
        except BaseException:
            process.kill()
            process.wait()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output)
    _configure(root)


def _configure(root: Path) -> None:
    units = root / "etc/systemd/system"
    for name in _MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    (root / "payload").mkdir()
    (root / "etc/hostname").write_text("guest\n")
    (root / "etc/fstab").write_text("")
    (root / "var/lib/kubelet").mkdir(parents=True)
    # kubelet's configuration lies where agents look for it
    (root / "var/lib/kubelet/config.yaml").symlink_to("/payload/kubelet.yaml")
    (root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")


def _run(command: Sequence[str | Path], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
