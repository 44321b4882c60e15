"""The messages of ttrpc and NRI (``nri.pkg.api.v1alpha1``) that the agent uses, and of them what it uses. No I/O.

Source: github.com/containerd/nri, pkg/api/api.proto, for the names and numbers of fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from concerto_agent.nri.protobuf import Fields, message, number, text

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"

UNIMPLEMENTED, INTERNAL = 12, 13
"""Status codes of gRPC, which ttrpc has as well."""

_CREATE_CONTAINER, START_CONTAINER, _UPDATE_CONTAINER = 4, 6, 8
EVENTS = sum(1 << event - 1 for event in (_CREATE_CONTAINER, START_CONTAINER, _UPDATE_CONTAINER))
"""Of which the plugin is called."""

MAX_STARTED_BYTES = 256 << 10
"""Of a container that starts, from which it is not read: its pod is enough then."""


@dataclass(frozen=True)
class Request:
    """A call.

    Attributes:
        service: full name.
        method: name.
        payload: the message that the method takes.
    """

    service: str
    method: str
    payload: bytes


@dataclass(frozen=True)
class Failure:
    """Why a call failed.

    Attributes:
        code: of gRPC; never 0.
        message: a sentence.
    """

    code: int
    message: str


@dataclass(frozen=True)
class Runtime:
    """Who calls.

    Attributes:
        name: such as containerd.
        version: such as v2.2.0.
    """

    name: str = ""
    version: str = ""


@dataclass(frozen=True)
class Container:
    """A container that is about to be created, started or updated.

    Attributes:
        pod_uid: of its pod.
        identity: its ID in the runtime, which its cgroup is named after; empty where it was not read.
        name: as in the pod's spec, likewise.
        cpus: CPUs that kubelet asks for, as a list; empty where it leaves them open.
    """

    pod_uid: str
    identity: str
    name: str
    cpus: str


def read_request(data: bytes) -> Request:
    """A call of the runtime.

    Raises:
        WireError: it is no such message.
    """
    fields = Fields(data, frozenset({1, 2, 3}))
    return Request(fields.text(1), fields.text(2), fields.data(3))


def read_failure(data: bytes) -> Failure | None:
    """Why the runtime refused a call of ours; None if it did not.

    Raises:
        WireError: it is no answer.
    """
    status = Fields(data, frozenset({1})).message(1, wanted=frozenset({1, 2}))
    return Failure(status.number(1), status.text(2)) if status.number(1) else None


def read_runtime(payload: bytes) -> Runtime:
    """Who sends a ConfigureRequest.

    Raises:
        WireError: it is no such message.
    """
    fields = Fields(payload, frozenset({2, 3}))
    return Runtime(fields.text(2), fields.text(3))


def read_more(payload: bytes) -> bool:
    """Whether more pods and containers follow a SynchronizeRequest.

    Raises:
        WireError: it is no such message.
    """
    return bool(Fields(payload, frozenset({3})).number(3))


def read_container(payload: bytes) -> Container:
    """The container of a CreateContainerRequest.

    Raises:
        WireError: it is no such message.
    """
    fields = Fields(payload, frozenset({1, 2}))
    return _container(_pod_uid(fields, 1), fields, 2)


def read_started(payload: bytes) -> Container:
    """The container of a StartContainerRequest: of a large one only the pod.

    Raises:
        WireError: it is no such message.
    """
    return _started(Fields(payload, frozenset({1, 2})), 1)


def read_event(payload: bytes) -> tuple[int, Container]:
    """The event of a StateChangeEvent, and its container: of a large one only the pod.

    Raises:
        WireError: it is no such message.
    """
    fields = Fields(payload, frozenset({1, 2, 3}))
    return fields.number(1), _started(fields, 2)


def read_updated(payload: bytes) -> Container:
    """The container of an UpdateContainerRequest, with the CPUs that it is to have from now on.

    Raises:
        WireError: it is no such message.
    """
    fields = Fields(payload, frozenset({1, 2, 3}))
    return replace(_container(_pod_uid(fields, 1), fields, 2), cpus=fields.message(3, 2, wanted=_CPUS).text(6))


_CPUS = frozenset({6})


def _started(fields: Fields, pod: int) -> Container:
    uid = _pod_uid(fields, pod)
    is_large = len(fields.data(pod + 1)) > MAX_STARTED_BYTES
    return Container(uid, "", "", "") if is_large else _container(uid, fields, pod + 1)


def _pod_uid(fields: Fields, pod: int) -> str:
    return fields.message(pod, wanted=frozenset({3})).text(3)


def _container(pod_uid: str, fields: Fields, field: int) -> Container:
    found = fields.message(field, wanted=frozenset({1, 3, 11}))
    return Container(pod_uid, found.text(1), found.text(3), found.message(11, 3, 2, wanted=_CPUS).text(6))


def build_request(service: str, method: str, payload: bytes) -> bytes:
    """A call."""
    return text(1, service) + text(2, method) + message(3, payload)


def build_response(payload: bytes) -> bytes:
    """The answer to a call that succeeded."""
    return message(2, payload)


def build_failure(failure: Failure) -> bytes:
    """The answer to a call that failed."""
    return message(1, number(1, failure.code), text(2, failure.message))


def build_registration(name: str, index: str) -> bytes:
    """A RegisterPluginRequest; plugins are called in the order of their indices, which have two digits."""
    return text(1, name) + text(2, index)


def build_configuration(events: int) -> bytes:
    """A ConfigureResponse: the events that the plugin is called for."""
    return number(2, events)


def build_synchronization(more: bool) -> bytes:
    """A SynchronizeResponse that changes no container; ``more`` repeats the request's."""
    return number(2, int(more))


def build_adjustment(cpus: str, mems: str) -> bytes:
    """A CreateContainerResponse: the cpuset to create the container with; what is empty is left as it is."""
    return message(1, message(6, message(2, _cpu(cpus, mems)))) if cpus or mems else b""


def build_update(identity: str, cpus: str, mems: str) -> bytes:
    """An UpdateContainerResponse: the cpuset that the container gets in the same update; see `build_adjustment`."""
    return message(1, text(1, identity), message(2, message(1, _cpu(cpus, mems)))) if cpus or mems else b""


def _cpu(cpus: str, mems: str) -> bytes:
    return message(2, text(6, cpus), text(7, mems))
