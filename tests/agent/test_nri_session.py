"""What the plugin answers a runtime, call by call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto_agent.nri.frames import (
    PLUGIN_CONNECTION,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    FrameReader,
    Message,
    encode,
)
from concerto_agent.nri.messages import (
    Container,
    Failure,
    Runtime,
    build_failure,
    build_request,
    build_response,
    read_container,
    read_failure,
    read_started,
    read_updated,
)
from concerto_agent.nri.protobuf import Fields, WireError, message, number, text
from concerto_agent.nri.session import CpusetChange, Refused, Session
from support.step_counts import steps_of
from support.traced_memory import traced_memory

PLUGIN = "nri.pkg.api.v1alpha1.Plugin"
POD = (text(1, "sandbox"), text(2, "web-1"), text(3, "uid-1"), text(4, "shop"))
RESOURCES = message(3, message(2, number(2, 7), text(6, "0-3")))
CONTAINER = (text(1, "c" * 64), text(2, "sandbox"), text(3, "main"), text(8, "PATH=/"), message(11, RESOURCES))
CREATE = message(1, *POD) + message(2, *CONTAINER)
UPDATE = CREATE + message(3, message(2, text(6, "0-1")))


class Node:
    """What the plugin was asked, and what it is to answer."""

    def __init__(self, change: CpusetChange | Exception) -> None:
        self.asked: list[tuple[Container, str]] = []
        self.change = change
        self.session = Session(self.decide)

    def decide(self, asked: Container, moment: str) -> CpusetChange:
        self.asked.append((asked, moment))
        if isinstance(self.change, Exception):
            raise self.change
        return self.change

    def call(self, method: str, payload: bytes = b"", service: str = PLUGIN) -> Fields:
        """The answer to one call: 1 status, 2 payload."""
        request = encode(PLUGIN_CONNECTION, Message(9, REQUEST, build_request(service, method, payload)))
        ((connection, answer),) = FrameReader().feed(self.session.receive(request))
        assert (connection, answer.stream, answer.kind) == (PLUGIN_CONNECTION, 9, RESPONSE)
        return Fields(answer.data)


PINNED = CpusetChange("2,4", "1")
CHANGES = st.builds(CpusetChange, st.sampled_from(["", "1", "0-7"]), st.sampled_from(["", "0"]))


def test_it_registers_by_name_and_index():
    ((connection, sent),) = FrameReader().feed(Node(PINNED).session.register())
    call = Fields(sent.data)
    assert (connection, sent.kind, sent.stream) == (RUNTIME_CONNECTION, REQUEST, 1)
    assert (call.text(1), call.text(2)) == ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
    assert (call.message(3).text(1), call.message(3).text(2)) == ("concerto", "50")


def test_it_is_called_for_containers_that_are_created_started_or_updated_and_for_nothing_else():
    node = Node(PINNED)
    answer = node.call("Configure", text(2, "containerd") + text(3, "v2.2.0") + number(5, 2000))
    assert answer.message(2).number(2) == 0b1010_1000
    assert node.session.runtime == Runtime("containerd", "v2.2.0")


def test_it_takes_what_is_synchronized_in_parts():
    node = Node(PINNED)
    pods = message(1, text(3, "uid")) * 3 + message(2, text(1, "id")) * 5
    assert node.call("Synchronize", pods + number(3, 1)).message(2).number(2) == 1
    assert not node.session.synchronized
    answer = node.call("Synchronize", pods)
    assert (answer.message(2).number(2), answer.message(2).data(1)) == (0, b"")
    assert node.session.synchronized


def test_a_container_is_created_with_its_cpuset():
    node = Node(PINNED)
    cpu = node.call("CreateContainer", CREATE).message(2, 1, 6, 2, 2)
    assert (cpu.text(6), cpu.text(7)) == ("2,4", "1")
    assert node.asked == [(Container("uid-1", "c" * 64, "main", "0-3"), "Create")]


def test_an_update_by_kubelet_keeps_the_cpuset():
    node = Node(PINNED)
    update = node.call("UpdateContainer", UPDATE).message(2, 1)
    assert update.text(1) == "c" * 64
    assert (update.message(2, 1, 2).text(6), update.message(2, 1, 2).text(7)) == ("2,4", "1")
    assert node.asked == [(Container("uid-1", "c" * 64, "main", "0-1"), "Update")], "what it is to have from now on"


@pytest.mark.parametrize(
    ("method", "payload"),
    [("StartContainer", CREATE), ("StateChange", number(1, 6) + message(2, *POD) + message(3, *CONTAINER))],
    ids=["a method of its own", "an event among others"],
)
def test_the_cgroup_of_a_container_is_seen_to_before_its_program_starts(method, payload):
    node = Node(PINNED)
    answer = node.call(method, payload)
    assert (answer.data(1), answer.data(2)) == (b"", b"")
    assert node.asked == [(Container("uid-1", "c" * 64, "main", "0-3"), "Start")]


@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer"])
def test_a_container_without_a_cpuset_of_its_own_is_left_as_it_is(method):
    answer = Node(CpusetChange()).call(method, CREATE)
    assert (answer.data(1), answer.data(2)) == (b"", b"")


# method, its payload, how the decision fails
NO_ANSWER = {
    "an error in the agent": ("CreateContainer", CREATE, ValueError("a topology that can't be read")),
    "an error in the agent, on an update": ("UpdateContainer", UPDATE, OSError("a cgroup that is gone")),
    "a container that is no message": ("CreateContainer", b"\xff", PINNED),
    "a method of a newer runtime": ("UpdatePodSandbox", CREATE, PINNED),
    "an error in the agent, before a start": ("StartContainer", CREATE, ValueError("a topology that can't be read")),
    "another event": ("StateChange", number(1, 5), PINNED),
    "the end of the runtime": ("Shutdown", b"", PINNED),
}


@pytest.mark.parametrize(("method", "payload", "change"), NO_ANSWER.values(), ids=NO_ANSWER)
def test_no_call_fails_because_of_the_agent(method, payload, change):
    answer = Node(change).call(method, payload)
    assert (answer.data(1), answer.data(2)) == (b"", b"")


def test_another_service_is_not_implemented():
    answer = Node(PINNED).call("Configure", service="nri.pkg.api.v2.Plugin")
    assert answer.message(1).number(1) == 12
    assert "nri.pkg.api.v2.Plugin" in answer.message(1).text(2)


def from_runtime(data: bytes) -> bytes:
    return encode(RUNTIME_CONNECTION, Message(1, RESPONSE, data))


def test_a_runtime_that_refuses_the_plugin_is_named_with_its_reason():
    session = Node(PINNED).session
    assert session.receive(from_runtime(build_response(b""))) == b""
    with pytest.raises(Refused, match="invalid plugin index"):
        session.receive(from_runtime(build_failure(Failure(2, "invalid plugin index"))))


def test_a_failure_comes_back_as_it_was_written():
    assert read_failure(build_failure(Failure(13, "no"))) == Failure(13, "no")
    assert read_failure(build_response(b"x")) is None


def test_a_call_that_is_no_message_ends_the_connection():
    with pytest.raises(WireError):
        Node(PINNED).session.receive(encode(PLUGIN_CONNECTION, Message(1, REQUEST, b"\xff")))


@given(data=st.binary(max_size=300), change=CHANGES, method=st.sampled_from(["CreateContainer", "UpdateContainer"]))
def test_whatever_a_runtime_says_of_a_container_it_gets_an_answer(data, change, method):
    assert Node(change).call(method, data).data(1) == b""


@given(payload=st.binary(max_size=300))
def test_any_bytes_are_answered_or_end_the_connection(payload):
    session = Node(PINNED).session
    try:
        session.receive(encode(PLUGIN_CONNECTION, Message(1, REQUEST, payload)))
        session.receive(payload)
    except (WireError, Refused):
        return


LARGE = {
    "variables": message(8, b"A=") * 50_000,
    "empty arguments": message(7) * 100_000,
    "one argument": message(7, b"x" * 200_000),
}


@pytest.mark.parametrize("fields", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("method", ["CreateContainer", "UpdateContainer", "StartContainer"])
def test_what_nobody_asks_for_takes_no_memory(method, fields):
    head, tail = CONTAINER[:3], CONTAINER[3:]
    payload = message(1, *POD) + message(2, *head, fields, *tail)
    read = {"CreateContainer": read_container, "UpdateContainer": read_updated, "StartContainer": read_started}[method]
    with traced_memory() as memory:
        read(payload)
    assert memory.peak < 1.2 * len(payload) + 20_000, "the container's message is cut out, and nothing else"


def test_a_field_that_nobody_asks_for_takes_few_steps():
    few, many = (message(1, *POD) + message(2, *CONTAINER, message(7) * count) for count in (0, 1000))
    assert steps_of(lambda: read_container(many)) - steps_of(lambda: read_container(few)) < 50 * 1000


def test_a_large_container_is_created_like_any_and_started_by_its_pod_alone():
    large = message(1, *POD) + message(2, *CONTAINER[:3], message(8, b"A=") * 100_000, *CONTAINER[3:])
    node = Node(PINNED)
    cpu = node.call("CreateContainer", large).message(2, 1, 6, 2, 2)
    assert (cpu.text(6), cpu.text(7)) == ("2,4", "1")
    assert (
        node.call("UpdateContainer", large + message(3, message(2, text(6, "0-1")))).message(2, 1).text(1) == "c" * 64
    )
    node.call("StartContainer", large)
    event = number(1, 6) + message(2, *POD) + message(3, large)
    node.call("StateChange", event)
    whole = Container("uid-1", "c" * 64, "main", "0-3")
    start = (Container("uid-1", "", "", ""), "Start")
    assert node.asked == [(whole, "Create"), (replace(whole, cpus="0-1"), "Update"), start, start]
    assert steps_of(lambda: read_started(large)) < 2000, "its variables are not looked at"
