"""From a kind, as people write it in a reference, to where the API server serves it."""

from __future__ import annotations

from collections.abc import Callable

from concerto.api.predictivehpa import ObjectReference
from concerto.kube import KubeError, NotFound, Resource, Session


class UnknownKind(KubeError):
    """The API server serves no such kind; the message names it."""


class Kinds:
    """Discovery, remembered for a while: custom kinds come and go."""

    def __init__(self, session: Session, clock: Callable[[], float], *, remembered_seconds: float = 300.0) -> None:
        """Nothing is asked yet."""
        self._session = session
        self._clock = clock
        self._remembered = remembered_seconds
        self._known: dict[tuple[str, str], tuple[float, Resource]] = {}

    async def find(self, reference: ObjectReference) -> Resource:
        """Where that kind is: in the reference's version if it is served, else in the group's preferred one.

        Raises:
            UnknownKind: nowhere.
            KubeError: the API server does not say.
        """
        key = (reference.group, reference.kind)
        kept = self._known.get(key)
        now = self._clock()
        if kept is None or not 0.0 <= now - kept[0] <= self._remembered:
            kept = self._known[key] = (now, await self._discover(reference))
        return kept[1]

    async def _discover(self, reference: ObjectReference) -> Resource:
        group, version = reference.group, reference.version or "v1"
        versions = [version]
        if group:
            try:
                said = await self._session.get(f"/apis/{group}")
            except NotFound as error:
                raise UnknownKind(f"no API group {group!r} is served, so no kind {reference.kind!r} in it") from error
            versions.append(said["preferredVersion"]["version"])
        for each in dict.fromkeys(versions):
            try:
                listed = await self._session.get(f"/apis/{group}/{each}" if group else f"/api/{each}")
            except NotFound:
                continue
            for item in listed.get("resources") or ():
                if item["kind"] == reference.kind and "/" not in item["name"]:
                    return Resource(group, each, item["name"], item["kind"], item["namespaced"])
        where = f"{group}/{version}" if group else version
        hint = "" if group else ": its apiVersion says where it is, such as apps/v1"
        raise UnknownKind(f"kind {reference.kind!r} is not served in {where}{hint}")
