"""What commands read of a cluster, and what they print of it: an object that cannot be read costs only itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence

from concerto.kube import KubeError, NotFound, Object, Resource, Session
from concerto.kube.errors import Forbidden

_MAX_NAMED = 5
"""Objects that cannot be read which are named one by one."""


class CannotRead(KubeError):
    """Something of the cluster cannot be read; the message says what, and what to do."""


async def list_all(session: Session, kind: Resource) -> list[Object]:
    """All objects of a kind.

    Raises:
        CannotRead: the API server does not know the kind, or the user may not list it.
        KubeError: anything else.
    """
    name = kind.group_resource
    try:
        return [*(await session.list(kind.path()))["items"]]
    except NotFound as error:
        raise CannotRead(
            f"the API server knows no {name}: `kubectl apply -k crds` installs Concerto's kinds"
        ) from error
    except Forbidden as error:
        raise CannotRead(f"{error.message} (this takes the right to list {name} in all namespaces)") from error


def put_all(kind: str, objects: Iterable[Object], put: Callable[[Object], object], problems: list[str]) -> None:
    """Put objects somewhere, except those that cannot be read: the operator leaves the same ones out.

    Args:
        kind: their kind.
        objects: the objects.
        put: takes one.
        problems: a sentence is added for each that cannot be read.
    """
    for raw in objects:
        try:
            put(raw)
        except Exception as error:
            metadata = raw.get("metadata") or {}
            name = "/".join(filter(None, (metadata.get("namespace"), metadata.get("name"))))
            problems.append(f"{kind} {name} is left out, as it cannot be read: {type(error).__name__}: {error}")


def shortened(problems: Sequence[str]) -> list[str]:
    """The first few sentences, and how many there are besides."""
    more = len(problems) - _MAX_NAMED
    return [*problems[:_MAX_NAMED], *([f"{more} more objects are left out"] if more > 0 else [])]


def printable(text: str) -> str:
    """The text with control characters replaced: a terminal acts on them, and users choose parts of the text."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def complain(command: str, text: object) -> None:
    """Print a sentence about what went wrong."""
    print(printable(f"concerto {command}: {text}"), file=sys.stderr)
