"""``python -m e2e.image.pin``: pin the base image of the Dockerfile to the digest that its registry has now.

skopeo or a Docker client looks the digest up; a builder that pulls by digest refuses anything else.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

from e2e.image.wheels import REPOSITORY

DOCKERFILE = REPOSITORY / "Dockerfile"
_BASE = re.compile(r"^(ARG BASE=)(?P<name>[^@\s]+)(@(?P<digest>sha256:[0-9a-f]{64}))?$", re.MULTILINE)
_LOOKUPS = {
    "skopeo": ["skopeo", "inspect", "--no-tags", "--format", "{{.Digest}}", "docker://{name}"],
    "docker": ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", "{name}"],
}


class CannotPin(RuntimeError):
    """The digest can't be looked up; the message says why."""


def base(text: str) -> tuple[str, str | None]:
    """Name and digest of the base image in the text of a Dockerfile; no digest if it is not pinned.

    Raises:
        ValueError: there is no such line.
    """
    if (found := _BASE.search(text)) is None:
        raise ValueError("no line ARG BASE=NAME or ARG BASE=NAME@sha256:DIGEST")
    return found["name"], found["digest"]


def pinned(text: str, digest: str) -> str:
    """The text of a Dockerfile with its base image pinned to a digest.

    Raises:
        ValueError: it is no SHA-256 digest, or there is no base image.
    """
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{digest!r} is not sha256: and 64 hexadecimal digits")
    name, _ = base(text)
    return _BASE.sub(lambda line: f"{line[1]}{name}@{digest}", text)


def look_up(name: str) -> str:
    """The digest of an image in its registry.

    Raises:
        CannotPin: no program can look it up, or the registry does not answer.
    """
    problems = []
    for program, command in _LOOKUPS.items():
        if shutil.which(program) is None:
            problems.append(f"there is no {program}")
            continue
        done = subprocess.run(
            [part.format_map({"name": name}) if "{name}" in part else part for part in command],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode == 0:
            return done.stdout.strip()
        problems.append(f"{program}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    raise CannotPin(f"the digest of {name} can't be looked up: {'; '.join(problems)}")


def main() -> int:
    """Pin; the exit status."""
    text = DOCKERFILE.read_text()
    name, before = base(text)
    try:
        digest = look_up(name)
        DOCKERFILE.write_text(pinned(text, digest))
    except (CannotPin, ValueError, subprocess.TimeoutExpired) as error:
        print(f"make pin-base: {error}", file=sys.stderr)
        return 1
    print(f"{name}: {'as before' if digest == before else f'{before} is now'} {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
