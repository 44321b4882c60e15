"""Writes the agent's part of the statuses of a node's PodCPUBindings: what becomes of one keeps no other waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from concerto.api.podcpubinding import BindingKey
from concerto.kube import ApiError, Conflict, Invalid, KubeError, NotFound, Session, apply_status
from concerto.kube.apply import Target
from concerto.kube.backoff import Backoff
from concerto.kube.errors import seconds_asked
from concerto.kube.failpoints import point
from concerto.kube.resources import POD_CPU_BINDINGS
from concerto.kube.status_writes import StatusChanged, raise_if_changed
from concerto_agent.bindings import Object, own_part
from concerto_agent.error_log import ErrorLog
from concerto_agent.large_objects import decode_binding
from concerto_agent.pinning_settings import PinningSettings

_FIELD_MANAGER = "concerto-agent"


class BindingStatuses:
    """The bindings of a node as they were last seen, and the writes of their statuses.

    Args:
        session: the way to the API server.
        settings: waits and timeouts.
        status_of: the status to write for a binding; None while it is not known.
        clock: monotonic seconds.
        log: for errors.
    """

    def __init__(
        self,
        session: Session,
        settings: PinningSettings,
        status_of: Callable[[BindingKey, Object], Object | None],
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self._session = session.decoding(decode_binding)
        self._settings = settings
        self._status_of = status_of
        self._log = log
        self._errors = ErrorLog(log)
        self._objects: dict[BindingKey, Object] = {}
        self._refused: Backoff[BindingKey] = Backoff(
            clock, first_seconds=settings.retry_seconds, max_seconds=settings.max_retry_seconds
        )
        self._changed = asyncio.Event()
        self._complaint = ""

    def put(self, key: BindingKey, obj: Object | None, *, asks_anew: bool) -> None:
        """A binding as the API server has it now; None: it is gone.

        Args:
            key: its namespace and name.
            obj: the object.
            asks_anew: whether it asks for something else than before, so that it does not wait after a refusal.
        """
        if obj is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = obj
        if obj is None or asks_anew:
            self._refused.forget(key)
        self._changed.set()

    def look(self) -> None:
        """A status may have changed."""
        self._changed.set()

    async def run(self, enforced: asyncio.Event) -> None:
        """Write until cancelled, once ``enforced`` is set."""
        await enforced.wait()
        left = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.retry_seconds if left else None):
                    await self._changed.wait()
            self._changed.clear()
            left = await self._write_changed()

    async def _write_changed(self) -> bool:
        """Write what has changed; returns whether something is left to be written."""
        left, problem = False, ""
        # Those that have failed come last, and of these the latest: several that hang in turn leave none out
        for key, obj in sorted(self._objects.items(), key=lambda each: self._refused.failed_at(each[0])):
            what = "PodCPUBinding {}/{}".format(*key)
            try:
                status = self._status_of(key, obj)
                if status is not None and status != own_part(obj.get("status") or {}):
                    if not self._refused.is_due(key):
                        left = True
                        continue
                    await self._write(key, obj, status)
                self._errors.forget(what)
                self._refused.forget(key)
            except NotFound:
                continue  # it is gone: the watch shows it in a moment
            except KubeError as error:
                left = True
                # Perhaps it is another object of that name, which the watch shows; a policy refuses it again
                if not isinstance(error, Invalid | Conflict) or key in self._refused:
                    problem = f"{what}: status not written: {error}"
                if isinstance(error, ApiError | StatusChanged):
                    self._refused.failed(key, at_least_seconds=seconds_asked(error))
                    continue
                if isinstance(error.__cause__, TimeoutError):  # perhaps a webhook keeps it: the others come first now
                    self._refused.failed(key)
                break
            except Exception as error:
                self._errors.note(what, error)
        if problem and not self._complaint:
            self._log.warning("%s", problem)
        self._complaint = problem or (self._complaint if left else "")
        return left

    async def _write(self, key: BindingKey, obj: Object, status: Object) -> None:
        target = Target(POD_CPU_BINDINGS, key[1], key[0], obj["metadata"]["uid"])
        point("before-pin-status")
        written = await apply_status(
            self._session,
            target,
            status,
            field_manager=_FIELD_MANAGER,
            force=True,
            once_within_seconds=self._settings.write_timeout_seconds,
        )
        point("after-pin-status")
        if self._objects.get(key) is obj:
            self._objects[key] = written
        raise_if_changed(obj, written, status, own_part(written.get("status") or {}))
