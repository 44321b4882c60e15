"""Container images without a registry: one layer with static busybox, packed as a docker-archive.

``ctr images import`` and `kind load image-archive` both take the result. The same busybox gives the same bytes, so
that an image's digest is stable.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

PAUSE_IMAGE = "localhost/concerto-pause:1"
# The name that manifests/samples ask for. On other clusters they pull it; ours has the same shell under the same name
BUSYBOX_IMAGE = "docker.io/library/busybox:1.37"

_DIRECTORIES = ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "var", "var/run")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def _add(archive: tarfile.TarFile, name: str, data: bytes | None = None, **attributes: object) -> None:
    """Adds an entry without its time of making and without its owner."""
    entry = tarfile.TarInfo(name)
    entry.mode = 0o755
    for key, value in attributes.items():
        setattr(entry, key, value)
    if data is None:
        archive.addfile(entry)
    else:
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def _layer(busybox: Path, programs: Sequence[Path]) -> bytes:
    applets = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True).stdout.split()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory in _DIRECTORIES:
            _add(archive, directory, type=tarfile.DIRTYPE, mode=0o1777 if directory == "tmp" else 0o755)
        _add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", mode=0o644)
        _add(archive, "etc/group", b"root:x:0:\n", mode=0o644)
        _add(archive, "bin/busybox", busybox.read_bytes())
        for applet in sorted(set(applets) - {"busybox"}):
            _add(archive, f"bin/{applet}", type=tarfile.SYMTYPE, linkname="busybox")
        for program in programs:
            _add(archive, program.name, program.read_bytes())
    return buffer.getvalue()


def build_image(
    target: Path,
    name: str,
    entrypoint: Sequence[str] = (),
    *,
    busybox: Path | None = None,
    programs: Sequence[Path] = (),
) -> Path:
    """Writes a docker-archive with busybox and all its applets.

    Args:
        target: the archive to write.
        name: the image's name and tag; pods ask for it with ``imagePullPolicy: Never``.
        entrypoint: what the container runs unless the pod says otherwise.
        busybox: a static busybox; the one on PATH by default.
        programs: other static programs, which are put into the root folder.

    Raises:
        FileNotFoundError: there is no busybox on PATH.
    """
    if busybox is None:
        found = shutil.which("busybox")
        if found is None:
            raise FileNotFoundError("no busybox on PATH: install the Debian package busybox-static")
        busybox = Path(found)
    layer = _layer(busybox, programs)
    layer_digest = hashlib.sha256(layer).hexdigest()
    made = "2020-01-01T00:00:00Z"
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": made,
            "config": {"Env": ["PATH=/bin"], "Entrypoint": list(entrypoint), "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            "history": [{"created": made, "created_by": "e2e/testbed/images.py"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer_name = f"{layer_digest}/layer.tar"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": [layer_name]}]).encode()
    with tarfile.open(target, "w") as archive:
        for entry, data in ((config_name, config), (layer_name, layer), ("manifest.json", manifest)):
            _add(archive, entry, data, mode=0o644)
    return target


def build_base_images(directory: Path) -> list[Path]:
    """The two images every node holds: the pods' sandbox (`PAUSE_IMAGE`) and `BUSYBOX_IMAGE`."""
    directory.mkdir(parents=True, exist_ok=True)
    return [
        build_image(directory / "pause.tar", PAUSE_IMAGE, ["/bin/busybox", "sleep", "2147483647"]),
        build_image(directory / "busybox.tar", BUSYBOX_IMAGE),
    ]
