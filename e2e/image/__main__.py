"""``python -m e2e.image``: build both images, and say how big they are."""

from __future__ import annotations

import subprocess
import sys
import time

from e2e.image.build import CannotBuild, build


def main() -> int:
    """Build; the exit status."""
    began = time.monotonic()
    try:
        images = build(lambda text: print(text, flush=True))
    except (CannotBuild, subprocess.CalledProcessError) as error:
        print(f"make image: {error}", file=sys.stderr)
        return 1
    print(f"{images}\n{images.archive} in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
