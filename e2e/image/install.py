"""Runs inside the build of an image, where there is Python and nothing else: puts wheels and our code in place.

``install.py wheels FOLDER TARGET`` unpacks every wheel of FOLDER, without what no program needs at run time.
``install.py code TARGET PACKAGE...`` copies our packages, and says which version they are.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

# Tests, headers and what only compilers and type checkers read
UNUSED = re.compile(
    r"(^|/)(tests?|testing/_private|_pyinstaller|f2py|typing/tests|include|doc)/"
    r"|\.(pyi|pyx|pxd|pxi|a|c|h|hash)$"
    r"|_tests\.cpython|^numpy/(random/_examples|distutils)|^kopf/.*/fixtures"
)


def wheels(folder: Path, target: Path) -> None:
    """Unpack wheels; pip has compared their hashes with the lock."""
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not UNUSED.search(name):
                    archive.extract(name, target)
    for scripts in target.glob("*.data"):
        shutil.rmtree(scripts)


def code(target: Path, packages: list[Path]) -> None:
    """Copy packages of ours, and the version, which the agent publishes."""
    for package in packages:
        if package.is_dir():
            shutil.copytree(package, target / _below(package), ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (target / _below(package)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(package, target / _below(package))
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    metadata = target / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")


def _below(package: Path) -> Path:
    """``operator/concerto/api`` is the package ``concerto/api``."""
    return Path(*package.parts[1:])


def main() -> None:
    """Carry out one step, and compile it: the file system is read-only later on."""
    step, *arguments = sys.argv[1:]
    if step == "wheels":
        folder, target = map(Path, arguments)
        wheels(folder, target)
    else:
        target, *packages = map(Path, arguments)
        code(target, packages)
    # Not by time, which copying may change
    if not compileall.compile_dir(target, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH):
        sys.exit(f"{target}: not everything could be compiled")
    # The time of a build is in no layer
    for path in [target, *target.rglob("*")]:
        os.utime(path, (0, 0), follow_symlinks=False)


if __name__ == "__main__":
    main()
