"""The guest's second disk: kubelet, the agent's code with the packages it needs, and the files of one run."""

from __future__ import annotations

import compileall
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from e2e.testbed import REPOSITORY
from e2e.testbed.guest.image import make_disk

PYTHON_PATH = "/payload/python"
_OURS = {"operator/concerto": "concerto", "agent/concerto_agent": "concerto_agent"}
_ROOM_MIB = 64


def build_payload(work: Path, texts: Mapping[str, str], files: Mapping[str, Path]) -> Path:
    """A file system image with the agent's code and more files (5 s).

    Args:
        work: folder for the image and what goes into it.
        texts: contents of files, by path on the disk.
        files: files of this machine, by path on the disk.
    """
    tree = work / "payload"
    python = tree / "python"
    python.mkdir(parents=True)
    for source, name in _OURS.items():
        shutil.copytree(REPOSITORY / source, python / name, ignore=shutil.ignore_patterns("__pycache__", "simulation"))
    for found in _needed("concerto-k8s"):
        _copy(found, python)
    compileall.compile_dir(python, quiet=2)  # the guest would need a minute for it
    for path, text in texts.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    for path, file in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tree / path)
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 2**20
    image = work / "payload.ext4"
    make_disk(image, tree, int(size * 1.2) + _ROOM_MIB)
    shutil.rmtree(tree)
    return image


def _needed(name: str) -> Iterator[Distribution]:
    """The distributions that one needs, without its own and without extras."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for text in distribution(waiting.pop()).requires or ():
            required = re.match(r"[\w.-]+", text)
            if required is None or "extra ==" in text or required[0] in seen:
                continue
            try:
                found = distribution(required[0])
            except ModuleNotFoundError:
                continue  # of another platform or version of Python
            seen.add(required[0])
            waiting.append(required[0])
            yield found


def _copy(found: Distribution, target: Path) -> None:
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if file.parts[0] == ".." or "tests" in file.parts or not source.is_file():
            continue
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / file)
