"""The scale subresource of any scalable kind: read, and written only as it was read.

Scales of Deployments, StatefulSets and ReplicaSets are read off one watch per kind, so that a thousand autoscalers do
not ask a thousand questions every 15 s; a kind that others made is asked for its scale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from concerto.api.object_bounds import NO_OBJECT, is_large, trim_metadata
from concerto.api.predictivehpa import ObjectReference, format_selector
from concerto.controllers.autoscaling.namespace_turns import NamespaceTurns
from concerto.kube import Conflict, KubeError, NotFound, Object, Reflector, Resource, Session, Unreachable
from concerto.kube.confirmed_writes import WriteSettings, write_until_known
from concerto.kube.discovery import Kinds, UnknownKind

_WATCHED = frozenset({"Deployment", "StatefulSet", "ReplicaSet"})
_WRITE_SECONDS, _ATTEMPT_SECONDS = 10.0, 4.0
"""Timeouts of a scale write and of one attempt; the next sync decides anew."""
_CONCURRENCY, _OF_ONE_KIND = 64, 8
"""Kinds and scales that are asked for at a time. Behind a group or a kind may be a server or a webhook that hangs."""
_MAX_SCALE_BYTES = 2**20
"""Of a scale, which perhaps another server answers."""
_WRITE_SETTINGS = WriteSettings(give_up_after_seconds=0.5)
_NO_SUCH_PATH = "the server could not find the requested resource"


@dataclass(frozen=True)
class Scale:
    """A target's scale.

    Attributes:
        replicas: ``spec.replicas``.
        existing: ``status.replicas``.
        selector: of its pods, as text; may be empty.
        resource: the target's kind.
        raw: the Scale object to send back; its resourceVersion is the precondition.
    """

    replicas: int
    existing: int
    selector: str
    resource: Resource
    raw: Mapping[str, Any]

    @property
    def uid(self) -> str:
        """The target's; empty where its kind has none."""
        return str((self.raw.get("metadata") or {}).get("uid", ""))


class Targets:
    """Reads and writes scales."""

    def __init__(
        self, session: Session, kinds: Kinds, *, write_attempts: int = 5, patience_seconds: float = 10.0
    ) -> None:
        """Args:
        session: the way to the API server.
        kinds: where kinds are served.
        write_attempts: how often a write is tried against others who change the target at the same time.
        patience_seconds: how long to wait for a new watch; later requests fail at once.
        """
        self._session = session
        self._kinds = kinds
        self._attempts = write_attempts
        self._patience = patience_seconds
        self._watches: dict[Resource, tuple[Reflector, asyncio.Task[None], float]] = {}
        self._turns = NamespaceTurns(_CONCURRENCY, _OF_ONE_KIND)  # of groups and kinds

    async def read(self, namespace: str, reference: ObjectReference) -> Scale:
        """The present scale.

        Raises:
            NotFound: no such target, or its kind has no scale.
            UnknownKind: the API server serves no such kind, or it is not namespaced.
            KubeError: the API server does not answer, or with something else than a scale.
        """
        resource = self._kinds.known(reference)
        if resource is None:
            async with self._turns.turn(reference.group):
                resource = await self._kinds.find(reference)
        if not resource.namespaced:
            raise UnknownKind(f"kind {resource.kind!r} is not namespaced, so no object of it can be scaled")
        if resource.group != "apps" or resource.kind not in _WATCHED:
            # One short attempt: a kind's conversion webhook may hang, and the next sync asks again
            async with self._turns.turn(f"{resource.group}/{resource.kind}"):
                return await self._ask(resource, namespace, reference.name, timeout_seconds=5.0)
        store = await self._watch(resource)
        obj = store.get((namespace, reference.name))
        if obj is None:
            raise NotFound(404, "NotFound", f'{resource.plural}.{resource.group} "{reference.name}" not found')
        return scale_of(resource, obj)

    async def write(self, namespace: str, name: str, scale: Scale, replicas: int) -> None:
        """Set ``spec.replicas`` of the very target that the scale was read from.

        If somebody else changed the target meanwhile, but not its replicas, the write is repeated. A target with other
        replicas, or one that was created anew under its name, is not what was decided on, and is not written to.

        Raises:
            KubeError: the write was refused, others were faster each time, or its outcome is not known in time.
        """
        for attempt in range(1, self._attempts + 1):
            ask = partial(self._ask, scale.resource, namespace, name, timeout_seconds=_ATTEMPT_SECONDS)
            path = scale.resource.path(namespace, name, "scale")
            write = _ScaleWrite(self._session, path, ask, scale, replicas)
            try:
                async with asyncio.timeout(_WRITE_SECONDS):
                    await write_until_known(write.send, write.read_back, settings=_WRITE_SETTINGS, name="scale")
                return
            except TimeoutError as error:
                raise Unreachable(f"the outcome of the write is not known after {_WRITE_SECONDS:g} s") from error
            except _OtherScaleError as error:
                raise Conflict(409, "Conflict", str(error)) from error
            except Conflict:
                if attempt == self._attempts or write.latest is None:
                    raise
                scale = write.latest

    def close(self) -> None:
        """End the watches."""
        for _, task, _ in self._watches.values():
            task.cancel()
        self._watches.clear()

    async def _ask(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        timeout_seconds: float,
    ) -> Scale:
        path = resource.path(namespace, name, "scale")
        try:
            raw = await self._session.get_foreign(path, timeout_seconds=timeout_seconds, max_bytes=_MAX_SCALE_BYTES)
        except NotFound as error:
            # For a missing object the message names it; otherwise the path does not exist
            if _NO_SUCH_PATH not in str(error):
                raise
            raise NotFound(
                404, "NotFound", f"{resource.kind} has no scale subresource, so it can't be scaled"
            ) from error
        return _read_scale(resource, raw)

    async def _watch(self, resource: Resource) -> Mapping[tuple[str, str], Object]:
        loop = asyncio.get_running_loop()
        if resource not in self._watches:
            made = Reflector(self._session, resource, trim=trim_target)
            self._watches[resource] = made, asyncio.ensure_future(made.run()), loop.time() + self._patience
        reflector, task, until = self._watches[resource]
        if not reflector.synced.is_set() and not task.done() and loop.time() < until:
            synced = asyncio.ensure_future(reflector.synced.wait())
            await asyncio.wait({synced, task}, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED)
            synced.cancel()
        if task.done():
            self._watches.pop(resource, None)
            task.result()
        if not reflector.synced.is_set():
            # A reflector retries for ever, without the right to list as well: the caller must get an error
            raise Unreachable(f"{resource.plural} cannot be listed and watched; the operator's log gives the reason")
        return reflector.store


def _read_scale(resource: Resource, raw: Any) -> Scale:
    """What the server of a kind has answered: perhaps not the API server itself.

    Raises:
        KubeError: it is not a scale.
    """
    try:
        spec, status = raw.get("spec") or {}, raw.get("status") or {}
        replicas, existing = spec.get("replicas", 0), status.get("replicas") or 0
        selector = status.get("selector") or ""
        is_scale = raw.get("kind") == "Scale" and isinstance(selector, str)
    except AttributeError:
        is_scale = False
    if not (is_scale and isinstance(replicas, int) and isinstance(existing, int)):
        raise KubeError(f"what is served as the scale of {resource.kind} is not a Scale of autoscaling/v1")
    return Scale(replicas, existing, selector, resource, raw)


class _OtherScaleError(Exception):
    """The target is no longer what was decided on. No KubeError, which would mean that nothing can be learned now."""


class _ScaleWrite:
    """One scale write, and what shows its outcome.

    Attributes:
        latest: the scale with a newer version and unchanged replicas, once that was read back.
    """

    def __init__(
        self,
        session: Session,
        path: str,
        ask: Callable[[], Awaitable[Scale]],
        scale: Scale,
        replicas: int,
    ) -> None:
        self.latest: Scale | None = None
        self._session = session
        self._path = path
        self._ask = ask
        self._scale = scale
        self._replicas = replicas

    async def send(self) -> Scale:
        """Send one attempt; its resourceVersion is the precondition."""
        body = {**self._scale.raw, "spec": {"replicas": self._replicas}}
        await self._session.replace(self._path, body, timeout_seconds=_ATTEMPT_SECONDS, attempts=1)
        return self._scale

    async def read_back(self) -> Scale | None:
        """The scale if it has the wanted replicas; None if nothing was written.

        Raises:
            _OtherScaleError: somebody else has scaled the target, or replaced it by another of the same name.
        """
        try:
            found = await self._ask()
        except NotFound as error:
            raise _OtherScaleError("the target was deleted") from error
        if found.uid != self._scale.uid:
            raise _OtherScaleError("the target was deleted and created again")
        if found.replicas == self._replicas:
            return found
        if found.replicas != self._scale.replicas:
            now = f"it has {found.replicas} replicas now, not {self._scale.replicas}"
            raise _OtherScaleError(f"somebody else has scaled the target: {now}")
        self.latest = found
        return None


def trim_target(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a workload that its scale is made of. A selector that is large selects no pods."""
    spec, status = dict(obj.get("spec") or {}), obj.get("status") or {}
    if is_large(spec.get("selector")):
        spec["selector"] = NO_OBJECT
    return {
        "metadata": trim_metadata(obj),
        "spec": {k: spec[k] for k in ("replicas", "selector") if k in spec},
        "status": {"replicas": status.get("replicas", 0)},
    }


def scale_of(resource: Resource, obj: Mapping[str, Any]) -> Scale:
    """The scale that the API server would make of a workload of ``apps/v1``."""
    replicas = obj["spec"].get("replicas", 1)
    raw = {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": trim_metadata(obj),
        "spec": {"replicas": replicas},
    }
    return Scale(replicas, obj["status"]["replicas"], format_selector(obj["spec"].get("selector")), resource, raw)
