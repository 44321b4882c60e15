"""One connection to a container runtime: registers the plugin, and answers calls from memory. No I/O.

An answer takes no longer than the decision that the caller passes in: a runtime drops a plugin that does not answer in
time (containerd: 2 s), and all containers of the node wait for the answer. A call never fails because of the agent: a
container that nothing can be said about is created as if the plugin were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from concerto_agent.nri import frames, messages
from concerto_agent.nri.messages import Container, Failure, Request, Runtime

log = logging.getLogger(__name__)

PLUGIN_NAME, PLUGIN_INDEX = "concerto", "50"
_REGISTRATION_STREAM = 1  # of calls of ours; there is no other

Moment = Literal["Create", "Start", "Update"]
"""What the runtime is about to do with a container. At Start its cgroup is there, and its program has not begun."""


@dataclass(frozen=True)
class CpusetChange:
    """The cpuset that a container gets.

    Attributes:
        cpus: as a list; empty: they are left as the runtime has them.
        mems: memory nodes, likewise.
    """

    cpus: str = ""
    mems: str = ""


Decide = Callable[[Container, Moment], CpusetChange]


class Refused(Exception):
    """The runtime does not take the plugin."""


class Session:
    """The dialogue on one connection.

    Attributes:
        runtime: who is at the other end; without a name until it has said so.
        synchronized: the runtime calls the plugin for each container from now on.
    """

    def __init__(self, decide: Decide) -> None:
        """Nothing is said yet.

        Args:
            decide: the cpuset of a container that is about to be created, started or updated. It has to answer within
                milliseconds. Before a start its answer does not count: what the cgroup has to have by then is written.
        """
        self.runtime = Runtime()
        self.synchronized = False
        self._decide = decide
        self._reader = frames.FrameReader()

    def register(self) -> bytes:
        """What to send first."""
        payload = messages.build_registration(PLUGIN_NAME, PLUGIN_INDEX)
        call = messages.build_request(messages.RUNTIME_SERVICE, "RegisterPlugin", payload)
        return frames.encode(frames.RUNTIME_CONNECTION, frames.Message(_REGISTRATION_STREAM, frames.REQUEST, call))

    def receive(self, data: bytes) -> bytes:
        """What to send in answer to these bytes; may be empty.

        Raises:
            WireError: the bytes are no frames, or no messages. The connection is of no use any more.
            Refused: the runtime does not take the plugin.
        """
        answers = []
        for connection, message in self._reader.feed(data):
            if connection == frames.PLUGIN_CONNECTION and message.kind == frames.REQUEST:
                answer = frames.Message(message.stream, frames.RESPONSE, self._answer(message.data))
                answers.append(frames.encode(connection, answer))
            elif connection == frames.RUNTIME_CONNECTION and message.kind == frames.RESPONSE:
                failure = messages.read_failure(message.data)
                if failure is not None:
                    raise Refused(f"the runtime refuses the plugin: {failure.message} (code {failure.code})")
        return b"".join(answers)

    def _answer(self, data: bytes) -> bytes:
        request = messages.read_request(data)
        payload = self._call(request)
        if payload is None:
            text = f"the plugin {PLUGIN_NAME} has no service {request.service}"
            return messages.build_failure(Failure(messages.UNIMPLEMENTED, text))
        return messages.build_response(payload)

    def _call(self, request: Request) -> bytes | None:
        """What a method returns; None if there is no such service."""
        if request.service != messages.PLUGIN_SERVICE:
            return None
        match request.method:
            case "Configure":
                self.runtime = messages.read_runtime(request.payload)
                return messages.build_configuration(messages.EVENTS)
            case "Synchronize":
                more = messages.read_more(request.payload)
                self.synchronized = self.synchronized or not more
                return messages.build_synchronization(more)
            case "CreateContainer" | "UpdateContainer" | "StartContainer" | "StateChange":
                try:
                    return self._for_container(request.method, request.payload)
                except Exception:  # an error would keep the container from being created; cgroup files correct its set
                    log.exception("a container gets no cpuset by NRI")
        # Of every method of the service: no wishes, and no objections
        return b""

    def _for_container(self, method: str, payload: bytes) -> bytes:
        if method == "CreateContainer":
            change = self._decide(messages.read_container(payload), "Create")
            return messages.build_adjustment(change.cpus, change.mems)
        if method == "UpdateContainer":
            container = messages.read_updated(payload)
            change = self._decide(container, "Update")
            return messages.build_update(container.identity, change.cpus, change.mems)
        # Some runtimes have a method for the event, others send all events without a result by one
        event, container = (
            (messages.START_CONTAINER, messages.read_started(payload))
            if method == "StartContainer"
            else messages.read_event(payload)
        )
        if event == messages.START_CONTAINER:
            self._decide(container, "Start")
        return b""
