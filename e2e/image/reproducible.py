"""``python -m e2e.image.reproducible``: build both images twice, and compare their digests."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from e2e.image.build import CannotBuild, build


def digests(archive: Path) -> dict[str, list[str]]:
    """By the name of each image of a docker-archive: the digests of its configuration and of its layers."""
    with tarfile.open(archive) as held:
        manifest = json.loads(held.extractfile("manifest.json").read())  # type: ignore[union-attr]
    return {entry["RepoTags"][0]: [entry["Config"], *entry["Layers"]] for entry in manifest}


def differences(first: Path, second: Path) -> list[str]:
    """What differs between the images of two archives, a line each; empty if they are the same."""
    one, other = digests(first), digests(second)
    lines = [f"{name} is in one archive only" for name in sorted(one.keys() ^ other.keys())]
    for name in sorted(one.keys() & other.keys()):
        parts = ["the configuration", *(f"layer {number}" for number in range(1, len(one[name])))]
        if len(one[name]) != len(other[name]):
            lines.append(f"{name} has {len(one[name]) - 1} and {len(other[name]) - 1} layers")
        else:
            pairs = zip(parts, one[name], other[name], strict=True)
            lines += [f"{name}: {part} differs" for part, a, b in pairs if a != b]
    return lines


def main() -> int:
    """Build twice; the exit status."""
    with tempfile.TemporaryDirectory(prefix="concerto-reproducible-", dir="/var/tmp") as directory:
        archives = [Path(directory) / f"{number}.tar" for number in (1, 2)]
        try:
            for archive in archives:
                build(lambda text: print(text, flush=True), archive)
        except (CannotBuild, subprocess.CalledProcessError) as error:
            print(f"make reproducible: {error}", file=sys.stderr)
            return 1
        found = differences(*archives)
        for name, (config, *_) in digests(archives[0]).items():
            print(f"{name} {config}")
    print("\n".join(found) or "both builds gave the same images")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
