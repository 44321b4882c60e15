"""Readings of pods from node agents: what is taken from an answer, what is not, and what stands in for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from concerto.api.nodecapacity import MetricsEndpoint
from concerto.api.pod import PodView
from concerto.api.pod_requests import ContainerResources
from concerto.api.timestamps import format_timestamp
from concerto.autoscaling.pods import MetricError, Sample, group_pods
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.sources import (
    AgentMetrics,
    AgentSettings,
    AgentTokens,
    PodReader,
    ResourceMetrics,
)
from concerto.controllers.autoscaling.sources.agents import Point, read_answer
from concerto.serving.certificate import make_certificate
from concerto_agent.pod_metrics_server import PATH
from support.faulty_server import Answer, faulty, refuses, says
from support.pod_views import target_pod
from support.step_counts import steps_of

NOW = 1_772_366_400.0
CERTIFICATE = make_certificate()
SETTINGS = AgentSettings(timeout_seconds=20, largest_bytes=10_000)
APP = (ContainerResources("app"),)
TOKEN = says(201, {"status": {"token": "t"}, "spec": {"expirationSeconds": 3600}})


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def line(family: str, value: object, at: float, *, pod: str = "web", container: str = "app") -> str:
    return f'container_{family}{{container="{container}",namespace="n",pod="{pod}"}} {value} {round(at * 1000)}\n'


def said(cpu: object, at: float, *, pod: str = "web", container: str = "app", started: float | None = None) -> str:
    """An agent's lines of one container that holds 1 MiB."""
    where = {"pod": pod, "container": container}
    start = "" if started is None else line("start_time_seconds", started, at, **where)
    used = line("cpu_usage_seconds_total", cpu, at, **where)
    return used + line("memory_working_set_bytes", 1_048_576, at, **where) + start


class Node:
    """A node's agent, whose words a test puts in its mouth.

    Attributes:
        text: what it says now.
        status: with which HTTP status.
        slow: it never answers.
        packed: it compresses, asked or not.
        asked: the Authorization of each question.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.text, self.status, self.slow, self.packed = "", 200, False, False
        self.asked: list[str | None] = []

    def capacity(self, certificate: str = CERTIFICATE.sha256) -> dict:
        metrics = {"port": self.port, "address": "127.0.0.1", "certificateSHA256": certificate}
        agent = {"version": "1", "instance": "i", "mode": "Machine", "podEvents": "Scan", "metrics": metrics}
        return {"status": {"agent": agent}}


@asynccontextmanager
async def serving() -> AsyncIterator[Node]:
    """One such agent, over TLS."""
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        node.asked.append(request.headers.get("Authorization"))
        if node.slow:
            await over.wait()
        response = web.Response(status=node.status, text=node.text)
        if node.packed:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    app = web.Application()
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=CERTIFICATE.context).start()
    node = Node(runner.addresses[0][1])
    try:
        yield node
    finally:
        over.set()
        await runner.cleanup()


@asynccontextmanager
async def asking(
    capacities: dict, clock: Clock, settings: AgentSettings = SETTINGS, given: Answer = TOKEN
) -> AsyncIterator[AgentMetrics]:
    async with faulty([given]) as api:
        tokens = AgentTokens(api.session, "concerto-system", "concerto-operator", clock)
        agents = AgentMetrics(capacities, tokens, clock, settings)
        try:
            yield agents
        finally:
            await agents.close()


def pod(name: str = "web", node: str = "n1", containers: tuple[ContainerResources, ...] = APP) -> PodView:
    return target_pod(name, node_name=node, host="127.0.0.1", containers=containers)


async def test_a_rate_is_taken_between_two_answers_and_there_is_none_before():
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        node.text = said(10.0, NOW - 0.5)
        first = await agents.usage("n", [pod()])
        assert (first.usage, first.troubles) == ({}, ()), "it is missing, not at zero"
        clock.now += 15
        node.text = said(13.0, NOW + 14.5)
        found = (await agents.usage("n", [pod()])).usage["web"]
        assert found.sample("cpu", None) == Sample(200, NOW + 14.5, 15.0)
        assert found.sample("memory", "app") == Sample(1_048_576_000, NOW + 14.5, 15.0)
        assert node.asked == ["Bearer t", "Bearer t"]


async def test_rates_are_over_ten_seconds_and_more_however_often_agents_are_asked():
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        windows = []
        for step in range(9):
            clock.now = NOW + 6 * step
            node.text = said(6.0 * step, clock.now)
            found = await agents.usage("n", [pod()])
            windows.append(found.usage["web"].window if found.usage else None)
        assert windows == [None, 6, 12, 12, 12, 12, 12, 12, 12]


async def test_one_question_serves_all_who_ask_within_five_seconds():
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        await asyncio.gather(*(agents.usage("n", [pod(f"p{i}")]) for i in range(50)))
        clock.now += 4
        await agents.usage("n", [pod()])
        assert len(node.asked) == 1
        clock.now += 2
        await agents.usage("n", [pod()])
        assert len(node.asked) == 2


async def test_only_nodes_that_host_the_pods_are_asked():
    async with serving() as here, serving() as there:
        capacities = {("", "n1"): here.capacity(), ("", "n2"): there.capacity(), ("", "n3"): {}}
        async with asking(capacities, Clock()) as agents:
            pods = [pod("a"), pod("b", "n3"), pod("c", "n4"), replace(pod("d", "n2"), phase="Pending")]
            found = await agents.usage("n", pods)
        assert (len(here.asked), len(there.asked)) == (1, 0)
        assert found.silent == ("n3", "n4")


def killed(node: Node) -> None:
    node.port = 9  # nobody is there


# What an agent does, and what is said of it. The pod has been read once before, so that a rate could be had.
FAULTS: dict[str, tuple[Callable[[Node], None], str]] = {
    "it does not answer": (lambda n: setattr(n, "slow", True), "node n1: its agent does not answer within 0.1 s"),
    "it does not know us": (lambda n: setattr(n, "status", 401), "node n1: its agent refuses: 401"),
    "we may not ask": (lambda n: setattr(n, "status", 403), "node n1: its agent refuses: 403"),
    "it cannot ask who we are": (lambda n: setattr(n, "status", 503), "node n1: its agent refuses: 503"),
    "it was killed": (killed, "node n1: nothing answers at 127.0.0.1, port 9"),
    "it says too much": (lambda n: setattr(n, "text", "x" * 10_001), "it answers more than"),
    "its readings are old": (lambda n: setattr(n, "text", said(13.0, NOW - 31)), "its agent's readings are not of"),
    "its clock is ahead": (lambda n: setattr(n, "text", said(13.0, NOW + 60)), "its agent's readings are not of"),
}


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
async def test_an_agent_that_fails_gives_no_reading_and_is_named(fault, words):
    clock = Clock()
    async with serving() as node, asking(capacities := {("", "n1"): node.capacity()}, clock) as agents:
        node.text = said(10.0, NOW)
        await agents.usage("n", [pod()])
        clock.now += 15
        node.text = said(13.0, clock.now)
        fault(node)
        capacities["", "n1"] = node.capacity()
        agents._settings = replace(SETTINGS, timeout_seconds=0.1 if node.slow else 20)
        found = await agents.usage("n", [pod()])
        assert found.usage == {}
        (trouble,) = found.troubles
        assert words in trouble


async def test_a_stranger_with_another_certificate_does_not_get_to_see_the_token():
    async with serving() as node, asking({("", "n1"): node.capacity("0" * 64)}, Clock()) as agents:
        found = await agents.usage("n", [pod()])
        assert found.troubles == ("node n1: what serves there is not the agent whose certificate NodeCapacity.status names",)  # fmt: skip # noqa: E501
        assert node.asked == []


async def test_an_agent_is_not_asked_again_before_it_has_answered():
    clock = Clock()
    settings = replace(SETTINGS, timeout_seconds=0.3)
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock, settings) as agents:
        node.slow = True
        first = asyncio.ensure_future(agents.usage("n", [pod()]))
        await asyncio.sleep(0)
        clock.now += 60
        await asyncio.gather(first, agents.usage("n", [pod()]))
        assert len(node.asked) == 1


async def test_without_a_token_nobody_is_asked():
    async with (
        serving() as node,
        asking({("", "n1"): node.capacity()}, Clock(), given=refuses(403, "Forbidden")) as agents,
    ):
        assert "has no token for its agent: 403" in (await agents.usage("n", [pod()])).troubles[0]
        assert node.asked == []


# The second of two answers, 15 s apart; the first was 10 s of CPU
NO_READING = {
    "a pod that it does not know": "",
    "one container of two": said(13.0, NOW + 15),
    "a counter that began anew": said(1.0, NOW + 15) + said(1.0, NOW + 15, container="side"),
    "a container that started since": said(13.0, NOW + 15, started=NOW + 5) + said(13.0, NOW + 15, container="side"),
    "a value that is no number": said("NaN", NOW + 15) + said(13.0, NOW + 15, container="side"),
    "a negative value": said(-3.0, NOW + 15) + said(13.0, NOW + 15, container="side"),
    "a level without a counter": line("memory_working_set_bytes", 1, NOW + 15) + said(13, NOW + 15, container="side"),
    "the same reading again": said(10.0, NOW) + said(13.0, NOW + 15, container="side"),
}


@pytest.mark.parametrize("text", NO_READING.values(), ids=NO_READING)
async def test_what_is_not_whole_is_missing_and_never_zero(text):
    clock = Clock()
    both = (ContainerResources("app"), ContainerResources("side"))
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        node.text = said(10.0, NOW) + said(10.0, NOW, container="side")
        await agents.usage("n", [pod(containers=both)])
        clock.now += 15
        node.text = text
        found = await agents.usage("n", [pod(containers=both)])
        assert (found.usage, found.troubles) == ({}, ())


MEASURELESS = {
    "a time of thousands of digits": said(10, NOW).replace(f"{round(NOW * 1000)}", "5" * 5000),
    "a time of hundreds of digits": said(10, NOW).replace(f"{round(NOW * 1000)}", "5" * 400),
    "more CPU than a float can be multiplied with": said(1e308, NOW + 14),
    "a number of thousands of digits": said("1" * 5000, NOW + 14),
}


@pytest.mark.parametrize("text", MEASURELESS.values(), ids=MEASURELESS)
async def test_what_a_hostile_node_says_harms_nobody_else(text):
    clock = Clock()
    async with serving() as bad, serving() as good:
        nodes = {("", "bad"): bad.capacity(), ("", "good"): good.capacity()}
        async with asking(nodes, clock) as agents:
            pods = [pod("web", "bad"), pod("other", "good")]
            for step in range(2):
                clock.now = NOW + 15 * step
                bad.text = said(1, NOW) if step == 0 else text
                good.text = said(step, clock.now, pod="other")
                found = await agents.usage("n", pods)
            assert found.usage.keys() == {"other"}


@pytest.mark.parametrize("drift", [0.0, -15.0, 1.0], ids=["stands still", "goes back", "goes on"])
async def test_answers_are_forgotten_whatever_times_the_node_writes(drift):
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        for step in range(20):
            clock.now = NOW + 15 * step
            node.text = said(step, NOW + drift * step)
            await agents.usage("n", [pod()])
        assert len(agents._nodes["n1"].answers) <= 5


@pytest.mark.parametrize("jump", [-20.0, -9.0, -4.0, 4.0, 25.0], ids=lambda jump: f"by {jump:g} s")
async def test_no_rate_is_taken_over_a_time_in_which_the_nodes_clock_was_set(jump):
    """By one that was set back by 9 s, 15 s of CPU time are used within 6 s, and the target has 2.5 times the pods."""
    clock, found = Clock(), []
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        for step in range(8):
            clock.now = NOW + 15 * step
            node.text = said(3.0 * step, clock.now + (jump if step >= 4 else 0.0))
            reading = (await agents.usage("n", [pod()])).usage.get("web")
            found.append(reading and reading.sample("cpu", None).value)
    assert found == [None, 200, 200, 200, None, 200, 200, 200]


async def test_a_reading_that_was_kept_for_a_second_and_came_late_gives_a_rate():
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        for cpu, came, at in ((0.0, 0.0, -2.9), (3.0, 12.1, 12.1), (6.0, 27.1, 24.2)):
            clock.now, node.text = NOW + came, said(cpu, NOW + at)
            found = await agents.usage("n", [pod()])
            assert (came > 0) == ("web" in found.usage)


async def test_what_unfolds_is_not_unfolded():
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        node.text, node.packed = said(1, NOW) + "#" * 100_000, True
        found = await agents.usage("n", [pod()])
        assert "cannot be asked" in found.troubles[0]


async def test_a_container_that_is_none_of_the_pods_own_does_not_count():
    """An init container that has ended, say, whose cgroup lingers."""
    clock = Clock()
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        for cpu in (10.0, 13.0):
            node.text = said(cpu, clock.now) + said(cpu * 100, clock.now, container="init")
            found = await agents.usage("n", [pod()])
            clock.now += 15
        assert found.usage["web"].sample("cpu", None).value == 200


async def test_a_restarted_agent_is_asked_at_its_new_place_and_its_counters_go_on():
    clock = Clock()
    async with serving() as before, serving() as after:
        capacities = {("", "n1"): before.capacity()}
        async with asking(capacities, clock) as agents:
            before.text = said(10.0, NOW)
            await agents.usage("n", [pod()])
            clock.now += 3
            capacities["", "n1"] = after.capacity()
            after.text = said(10.6, NOW + 3)
            assert (await agents.usage("n", [pod()])).usage["web"].sample("cpu", None) == Sample(200, NOW + 3, 3.0)


async def test_start_up_cpu_does_not_count_from_this_source_either():
    """Windows of 7 and 14 s, until one lies wholly after the pod became ready."""
    clock, ready_since = Clock(), NOW
    starting = replace(pod(), ready_since=ready_since, started=NOW - 60)
    groups = []
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock) as agents:
        for step in range(5):
            clock.now = NOW - 5 + 7 * step
            node.text = said(100.0 + step, clock.now)
            found = await agents.usage("n", [starting])
            samples = {n: s for n, u in found.usage.items() if (s := u.sample("cpu", None))}
            sorted_ = group_pods([starting], samples, cpu=True, now=clock.now, settings=ControllerSettings())
            groups.append(next(g for g in ("ready", "unready", "missing") if getattr(sorted_, g)))
    assert groups == ["missing", "unready", "unready", "ready", "ready"]


def test_an_answer_is_read_line_by_line():
    text = (
        "# HELP container_cpu_usage_seconds_total x\n# TYPE container_cpu_usage_seconds_total counter\n"
        + said("1.5e1", NOW, started=NOW - 60)
        + 'pod_cpu_usage_seconds_total{namespace="n",pod="web"} 99 1\n'
        + "container_cpu_usage_seconds_total{oops} 1 1\nresource_scrape_error 0\n"
    )
    assert read_answer(text, {("n", "web", "app")}) == {("n", "web", "app"): Point(NOW, 15.0, 1_048_576, NOW - 60)}


async def test_of_an_answer_only_the_containers_that_were_asked_about_are_held():
    clock = Clock()
    settings = replace(SETTINGS, largest_bytes=2 * 2**20)
    async with serving() as node, asking({("", "n1"): node.capacity()}, clock, settings) as agents:
        bomb = "".join(said(10.0, NOW, pod=f"p{i}") for i in range(4000))
        for step in range(12):
            clock.now = NOW + 6 * step
            node.text = bomb + said(6.0 * step, clock.now)
            found = await agents.usage("n", [pod()])
        assert set(found.usage) == {"web"}
        assert all(set(a.points) <= {("n", "web", "app")} for a in agents._nodes["n1"].answers)
        clock.now += 400
        await agents.usage("n", [pod("other")])
        assert set(agents._wanted["n1"]) == {("n", "other", "app")}, "nor are names of pods that are gone"


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0", "metadata.internal"])
async def test_an_address_that_cannot_be_a_nodes_is_not_connected_to(address):
    async with serving() as node:
        capacity = node.capacity()
        capacity["status"]["agent"]["metrics"]["address"] = address
        async with asking({("", "n1"): capacity}, Clock()) as agents:
            found = await agents.usage("n", [pod()])
            assert (found.silent, found.troubles, node.asked) == (("n1",), (), [])


async def test_what_an_agent_writes_reaches_no_terminal_as_control_characters():
    async with serving() as node, asking({("", "n1"): node.capacity()}, Clock()) as agents:
        node.status, node.text = 500, "\x1b[2Jgone"
        (trouble,) = (await agents.usage("n", [pod()])).troubles
        assert trouble.isprintable() and trouble.endswith("[2Jgone")


# Which source is used


def listed(*names: str, cpu: str = "77m", at: float = NOW) -> Answer:
    stamp = format_timestamp(at)
    return says(
        200,
        {
            "items": [
                {
                    "metadata": {"name": n},
                    "timestamp": stamp,
                    "window": "30s",
                    "containers": [{"name": "app", "usage": {"cpu": cpu, "memory": "1Mi"}}],
                }
                for n in names
            ]
        },
    )


# wanted, pods the agents know, what metrics.k8s.io answers, the source, cpu by pod (None: an error), API lists
CHOICES = {
    "Auto, agents know all": ("Auto", "ab", listed("a", "b"), "Agents", {"a": 200, "b": 200}, 0),
    "Auto, agents know some": ("Auto", "a", listed("a", "b", at=NOW - 20), "Mixed", {"a": 200, "b": 77}, 1),
    "Auto, agents know some and the API has fresher of the others": (
        "Auto", "a", listed("b", at=NOW + 60), "Mixed", {"a": 200, "b": 77}, 1,
    ),
    "Auto, the API is fresher": ("Auto", "a", listed("a", "b", at=NOW + 60), "MetricsAPI", {"a": 77, "b": 77}, 1),
    "Auto, agents know none": ("Auto", "", listed("a", "b"), "MetricsAPI", {"a": 77, "b": 77}, 1),
    "Auto, agents know some and the API fails": ("Auto", "a", says(500), "Agents", {"a": 200}, 1),
    "Auto, nobody knows": ("Auto", "", says(500), None, "unable to fetch metrics from resource metrics API", 1),
    "Agents, which know all": ("Agents", "ab", listed("a", "b"), "Agents", {"a": 200, "b": 200}, 0),
    "Agents, which know some": ("Agents", "a", listed("a", "b"), "Agents", {"a": 200}, 0),
    "Agents, which know none": ("Agents", "", listed("a", "b"), None, "no node agent has readings", 0),
    "MetricsAPI": ("MetricsAPI", "ab", listed("a", "b"), "MetricsAPI", {"a": 77, "b": 77}, 1),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "known", "answer", "source", "expected", "lists"), CHOICES.values(), ids=CHOICES)
async def test_the_fresher_source_is_taken_pod_by_pod(wanted, known, answer, source, expected, lists):
    clock = Clock()
    pods = [pod("a"), pod("b")]
    async with serving() as node, faulty([answer]) as api:
        async with asking({("", "n1"): node.capacity()}, clock) as agents:
            readings = PodReader(ResourceMetrics(api.session, clock, timeout_seconds=20), agents)
            for cpu in (10.0, 13.0):
                node.text = "".join(said(cpu, clock.now, pod=name) for name in known)
                await agents.usage("n", pods)
                clock.now += 15 * (cpu < 13)
            if source is None:
                with pytest.raises(MetricError, match=expected):
                    await readings.read("n", pods, wanted)
            else:
                found = await readings.read("n", pods, wanted)
                cpu_of = {name: u.sample("cpu", None).value for name, u in found.usage.items()}
                assert (found.source, cpu_of, found.trouble) == (source, expected, "")
        assert len(api.seen) == lists


async def test_an_operator_without_agents_asks_the_api_alone_and_says_so_where_agents_are_wanted():
    async with faulty([listed("a")]) as api:
        readings = PodReader(ResourceMetrics(api.session, Clock(), timeout_seconds=20), None)
        assert (await readings.read("n", [pod("a")], "Auto")).source == "MetricsAPI"
        with pytest.raises(MetricError, match="this operator does not read metrics from agents"):
            await readings.read("n", [pod("a")], "Agents")


async def test_a_failing_agent_is_named_beside_what_stands_in_for_it():
    clock = Clock()
    async with serving() as node, faulty([listed("a")]) as api:
        node.status = 403
        async with asking({("", "n1"): node.capacity()}, clock) as agents:
            found = await PodReader(ResourceMetrics(api.session, clock, timeout_seconds=20), agents).read(
                "n", [pod("a")], "Auto"
            )
        assert found.source == "MetricsAPI"
        assert found.trouble.startswith("node n1: its agent refuses: 403")


def steps_of_asking_all(nodes: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """What it takes to ask each of so many nodes, once answers are no longer fresh, with 20 pods on each."""
    clock = Clock()
    agents = AgentMetrics({}, AgentTokens(None, "n", "a", clock), clock)  # type: ignore[arg-type]

    async def scrape(*asked: object) -> None:
        return None

    monkeypatch.setattr(agents, "_scrape", scrape)
    where = (MetricsEndpoint(1, "", ""), "127.0.0.1")

    async def ask_all() -> None:
        for number in range(nodes):
            await agents._ask(f"n{number}", where)

    for number in range(nodes):
        agents._want("n", [pod(f"p{number}-{each}", f"n{number}") for each in range(20)])
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(ask_all())
        clock.now += 15
        return steps_of(lambda: loop.run_until_complete(ask_all()))
    finally:
        loop.close()


def test_the_work_grows_with_the_number_of_nodes_and_not_with_its_square(monkeypatch):
    few, many = (steps_of_asking_all(nodes, monkeypatch) for nodes in (10, 80))
    assert many < 10 * few
