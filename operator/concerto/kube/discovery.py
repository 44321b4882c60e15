"""Discovery: where the API server serves a kind that a reference names."""

from __future__ import annotations

from collections.abc import Callable

from concerto.api.predictivehpa import ObjectReference
from concerto.kube import KubeError, NotFound, Object, Resource, Session

_TIMEOUT_SECONDS, _ATTEMPTS = 5.0, 2
"""Of a request: what a group that another server serves is answered by may hang, and callers ask again."""
_MAX_BYTES = 2**20
"""Of an answer: some 3,000 kinds."""


class UnknownKind(KubeError):
    """The API server serves no such kind; the message names it."""


class Kinds:
    """Discovery with a cache that expires, because custom kinds come and go."""

    def __init__(self, session: Session, clock: Callable[[], float], *, cache_seconds: float = 300.0) -> None:
        """Nothing is asked yet.

        Args:
            session: the way to the API server.
            clock: seconds.
            cache_seconds: how long an answer is used.
        """
        self._session = session
        self._clock = clock
        self._cache_seconds = cache_seconds
        self._cache: dict[tuple[str, str, str], tuple[float, Resource]] = {}  # by group, version and kind

    def known(self, reference: ObjectReference) -> Resource | None:
        """The resource of a kind if that is known without a request."""
        cached = self._cache.get((reference.group, reference.version, reference.kind))
        return cached[1] if cached is not None and self._is_fresh(cached[0]) else None

    async def find(self, reference: ObjectReference) -> Resource:
        """The resource of a kind: in the reference's version if that is served, else in the group's preferred one.

        Raises:
            UnknownKind: the API server serves no such kind.
            KubeError: the API server did not answer.
        """
        found = self.known(reference)
        if found is None:
            now = self._clock()
            try:
                found = await self._discover(reference)
            except (AttributeError, LookupError, TypeError) as error:
                # Perhaps another server's
                text = f"what is served in {reference.api_version} is not a list of kinds: {error!r}"
                raise UnknownKind(text) from error
            self._cache = {each: known for each, known in self._cache.items() if self._is_fresh(known[0])}
            self._cache[reference.group, reference.version, reference.kind] = (now, found)
        return found

    def _is_fresh(self, asked_at: float) -> bool:
        return 0.0 <= self._clock() - asked_at <= self._cache_seconds

    async def _get(self, path: str) -> Object:
        return await self._session.get_foreign(
            path, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BYTES, attempts=_ATTEMPTS
        )

    async def _discover(self, reference: ObjectReference) -> Resource:
        group, version = reference.group, reference.version or "v1"
        versions = [version]
        if group:
            try:
                found = await self._get(f"/apis/{group}")
            except NotFound as error:
                raise UnknownKind(f"no API group {group!r} is served, so no kind {reference.kind!r} in it") from error
            versions.append(found["preferredVersion"]["version"])
        for each in dict.fromkeys(versions):
            try:
                listed = await self._get(f"/apis/{group}/{each}" if group else f"/api/{each}")
            except NotFound:
                continue
            for item in listed.get("resources") or ():
                if item["kind"] == reference.kind and "/" not in item["name"]:
                    return Resource(group, each, item["name"], item["kind"], item["namespaced"])
        where = f"{group}/{version}" if group else version
        hint = "" if group else ": state its apiVersion, such as apps/v1"
        raise UnknownKind(f"kind {reference.kind!r} is not served in {where}{hint}")
