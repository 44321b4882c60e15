"""A base image made of Debian packages where there is no registry: Python, what it links to, and nothing else.

mmdebstrap extracts the packages; what is left of them is a list of what is kept, so that no shell, no package manager
and no program but Python gets in by way of a dependency.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SUITE = "bookworm"
PYTHON = "3.11"
"""The Python of `SUITE`."""
PACKAGES = (
    "python3.11-minimal",
    "libpython3.11-stdlib",
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "ca-certificates",
)
USER = 65532

_UNUSED_MODULES = (
    "lib2to3",
    "pydoc_data",
    "distutils",
    "test",
    "ensurepip",
    "sqlite3",
    "curses",
    "dbm",
)
_UNUSED_EXTENSIONS = (
    "_codecs_", "_crypt", "_ctypes_test", "_curses", "_dbm", "_multibytecodec", "_sqlite3", "_test", "_xx", "nis",
    "ossaudiodev", "readline", "xxlimited", "audioop", "_lsprof",
)  # fmt: skip
# What wheels link to beyond what Python itself does
_LIBRARIES_OF_WHEELS = (
    "libc.so.6", "libdl.so.2", "libgcc_s.so.1", "libm.so.6", "libpthread.so.0", "librt.so.1", "libstdc++.so.6",
    "libutil.so.1", "libz.so.1", "libresolv.so.2", "libnss_dns.so.2", "libnss_files.so.2",
)  # fmt: skip


def make(target: Path) -> None:
    """Write the tree as a tar archive (8 s, and 25 MiB to download). Needs root.

    Args:
        target: the archive.

    Raises:
        subprocess.CalledProcessError: mmdebstrap failed; what it said is on stderr.
    """
    with tempfile.TemporaryDirectory(prefix="concerto-tree-") as directory:
        root = Path(directory) / "root"
        subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=extract", f"--include={','.join(PACKAGES)}", SUITE, root], check=True
        )
        trim(root)
        archive = ["tar", "--create", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
        subprocess.run([*archive, "--file", target, "--directory", root, "."], check=True)


def trim(root: Path) -> None:
    """Leave in ``root`` what an image needs, and nothing else."""
    modules = root / f"usr/lib/python{PYTHON}"
    for name in _UNUSED_MODULES:
        shutil.rmtree(modules / name, ignore_errors=True)
    extensions = modules / "lib-dynload"
    for extension in extensions.iterdir():
        if extension.name.startswith(_UNUSED_EXTENSIONS):
            extension.unlink()
    python = root / f"usr/bin/python{PYTHON}"
    libraries = _libraries(root, [python, *sorted(extensions.iterdir())])
    authorities = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = "".join(authority.read_text() for authority in authorities)
    copyrights = {
        path
        for path in (root / "usr/share/doc").glob("*/copyright")
        if any(path.parent.name.startswith(p) for p in ("lib", "python", "ca-certificates", "zlib", "gcc"))
    }
    kept = libraries | copyrights | {python}
    for directory, _, files in os.walk(root, topdown=False):
        here = Path(directory)
        for name in files:
            path = here / name
            if path not in kept and not path.is_relative_to(modules):
                path.unlink()
        for path in here.iterdir():
            if path.is_symlink() and path not in kept and not path.is_relative_to(modules):
                path.unlink()
        if here != root and not any(here.iterdir()):
            here.rmdir()
    _write(root / "etc/ssl/certs/ca-certificates.crt", bundle)
    _write(root / "etc/passwd", f"root:x:0:0:root:/:/none\nconcerto:x:{USER}:{USER}:concerto:/:/none\n")
    _write(root / "etc/group", f"root:x:0:\nconcerto:x:{USER}:\n")
    _write(root / "etc/nsswitch.conf", "hosts: files dns\n")
    (root / "usr/lib/ssl").mkdir(exist_ok=True)
    for link, to in {
        "usr/bin/python3": f"python{PYTHON}",
        "usr/lib/ssl/certs": "/etc/ssl/certs",
        "usr/lib/ssl/cert.pem": "/etc/ssl/certs/ca-certificates.crt",
    }.items():
        (root / link).symlink_to(to)
    for directory in ("proc", "sys", "dev", "run", "tmp"):
        (root / directory).mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    compileall = [f"/usr/bin/python{PYTHON}", "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash"]
    subprocess.run(["chroot", root, *compileall, f"/usr/lib/python{PYTHON}"], check=True)


def _libraries(root: Path, programs: list[Path]) -> set[Path]:
    """The shared libraries that programs need, and the loader; links on the way to a file count as well."""
    (loader,) = [p for p in root.glob("lib*/ld-linux-*.so.*") if p.parent.name in ("lib", "lib64")]
    found = _with_links(root, loader)
    inside = [f"/{program.relative_to(root)}" for program in programs]
    for program in inside:
        said = subprocess.run(
            ["chroot", root, f"/{loader.relative_to(root)}", "--list", program],
            capture_output=True,
            text=True,
            check=True,
        )
        for line in said.stdout.splitlines():
            _, arrow, place = line.strip().partition(" => ")
            if arrow:
                found |= _with_links(root, root / place.split()[0].lstrip("/"))
    (libc,) = [path for path in found if path.name == "libc.so.6"]
    for name in _LIBRARIES_OF_WHEELS:
        for directory in (libc.parent, root / "usr" / libc.parent.relative_to(root)):
            if (directory / name).exists():
                found |= _with_links(root, directory / name)
    return found


def _with_links(root: Path, path: Path) -> set[Path]:
    found = {path}
    while path.is_symlink():
        target = str(path.readlink())
        path = root / target.lstrip("/") if target.startswith("/") else path.parent / target
        found.add(path)
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
