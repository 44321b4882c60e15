"""CPU and memory of pods from Concerto's node agents, a second old: only the nodes that host the pods are asked.

An agent serves counters. A rate is taken between two answers at least 10 s apart, so that it is no noisier than
metrics-server's. A pod whose reading is incomplete (a container without one, a restarted counter, a wrong time) counts
as missing, as it would in metrics.k8s.io, and never as zero.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

import aiohttp
from yarl import URL

from concerto.api.nodecapacity import MetricsEndpoint
from concerto.api.pod import PodView
from concerto.controllers.autoscaling.sources.resource import PodUsage
from concerto.controllers.runtime.http_source import printable
from concerto.kube import KubeError, Object
from concerto.kube.connection_problems import connection_problem
from concerto.kube.transport import read_body

_PATH = "/metrics/resource"
_LINE = re.compile(
    r"^container_(cpu_usage_seconds_total|memory_working_set_bytes|start_time_seconds)"
    r'\{container="([^"\n]{1,253})",namespace="([^"\n]{1,253})",pod="([^"\n]{1,253})"\} '
    r"([0-9.eE+-]{1,32}) ([0-9]{1,15})$",
    re.MULTILINE,
)
_MAX_VALUE = 2.0**53
"""Of seconds, bytes and times: what is more is no reading, and the sums of readings stay numbers."""
_CPU, _MEMORY, _START = "cpu_usage_seconds_total", "memory_working_set_bytes", "start_time_seconds"


@dataclass(frozen=True)
class AgentSettings:
    """How agents are asked.

    Attributes:
        fresh_seconds: an answer serves all who ask within this time.
        window_seconds: rates are taken over at least so long, once there are answers that far apart.
        shortest_seconds: and over this before.
        longest_seconds: older answers are dropped.
        stale_seconds: a reading whose time is further than this from now is not used.
        max_lag_seconds: a reading is taken up to this long before its answer comes. Where the times of two readings are
            further from the times of their answers, the node's clock was set in between: no rate is taken.
        timeout_seconds: for one answer.
        concurrency: agents asked at a time.
        largest_bytes: of an answer; more is a fault. 500 pods of four containers are 1.5 MiB.
        forget_seconds: a node without a request for this long is forgotten.
        tidy_seconds: how often all nodes and containers are looked through for those that are to be forgotten: there
            may be 150,000, and thousands of nodes are asked each time that answers are no longer fresh.
    """

    fresh_seconds: float = 5.0
    window_seconds: float = 10.0
    shortest_seconds: float = 1.0
    longest_seconds: float = 60.0
    stale_seconds: float = 30.0
    max_lag_seconds: float = 3.0
    timeout_seconds: float = 2.0
    concurrency: int = 64
    largest_bytes: int = 2 * 2**20
    forget_seconds: float = 300.0
    tidy_seconds: float = 30.0


class Tokens(Protocol):
    """What is shown to agents."""

    async def token(self, node: str) -> str:
        """The token for a node's agent."""

    def refused(self, node: str, token: str) -> None:
        """That agent does not know it."""


ContainerKey = tuple[str, str, str]
"""Namespace, pod and container."""


@dataclass(frozen=True)
class Point:
    """A container at one instant: CPU seconds since its start, memory in bytes, its start; times in seconds."""

    at: float
    cpu: float
    memory: float
    started: float


@dataclass(frozen=True)
class Answer:
    """One answer of an agent.

    Attributes:
        came_at: arrival time by the operator's clock, which the agent cannot influence.
        points: of the containers whose readings are asked for.
    """

    came_at: float
    points: Mapping[ContainerKey, Point]


@dataclass(frozen=True)
class Found:
    """Readings from the agents.

    Attributes:
        usage: whole readings, by pod.
        troubles: a sentence for each node whose agent failed; none for nodes whose agents serve nothing.
        silent: nodes without an agent that serves.
    """

    usage: Mapping[str, PodUsage] = field(default_factory=dict)
    troubles: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass
class _Node:
    """What is known of one node.

    Attributes:
        answers: the latest, oldest first.
        asking: the present or last question; its result is what went wrong.
    """

    where: tuple[MetricsEndpoint, str]
    asked_at: float
    asking: asyncio.Task[str | None]
    answers: list[Answer]


class AgentMetrics:
    """Asks agents, and keeps their last answers to take rates from."""

    def __init__(
        self,
        capacities: Mapping[tuple[str, str], Object],
        tokens: Tokens,
        clock: Callable[[], float],
        settings: AgentSettings | None = None,
    ) -> None:
        """Args:
        capacities: NodeCapacities as a reflector's store holds them; they name the agents' addresses and certificates.
        tokens: for agents.
        clock: seconds.
        settings: how they are asked.
        """
        self._capacities = capacities
        self._tokens = tokens
        self._clock = clock
        self._settings = settings or AgentSettings()
        self._nodes: dict[str, _Node] = {}
        self._wanted: dict[str, dict[ContainerKey, float]] = {}
        """By node, the containers whose readings were asked for, and when."""
        self._tidied_at = -math.inf
        self._limit = asyncio.Semaphore(self._settings.concurrency)
        self._client: aiohttp.ClientSession | None = None

    async def usage(self, namespace: str, pods: Sequence[PodView]) -> Found:
        """Readings of these pods, of one namespace."""
        running = [pod for pod in pods if pod.node_name and pod.phase == "Running"]
        self._want(namespace, running)
        hosts = {pod.node_name: pod.host for pod in running}
        endpoints = {node: endpoint_of(self._capacities.get(("", node))) for node in hosts}
        serving = {node: (endpoint, hosts[node]) for node, endpoint in endpoints.items() if endpoint is not None}
        wrong = await asyncio.gather(*(self._ask(node, where) for node, where in serving.items()))
        troubles = {node: text for node, text in zip(serving, wrong, strict=True) if text is not None}
        now = self._clock()
        usage: dict[str, PodUsage] = {}
        for pod in running:
            if pod.node_name in troubles or pod.node_name not in self._nodes:
                continue
            answers = self._nodes[pod.node_name].answers
            if any(
                self._is_old(answers[-1].points.get((namespace, pod.name, c.name)), now) for c in pod.shape.containers
            ):
                troubles[pod.node_name] = _STALE.format(self._settings.stale_seconds)
            elif (reading := self._reading(answers, namespace, pod)) is not None:
                usage[pod.name] = reading
        silent = tuple(sorted(node for node, endpoint in endpoints.items() if endpoint is None))
        return Found(usage, tuple(f"node {node}: {text}" for node, text in sorted(troubles.items())), silent)

    def _want(self, namespace: str, pods: Sequence[PodView]) -> None:
        """Keep the points of these pods' containers in their nodes' answers."""
        now = self._clock()
        for pod in pods:
            wanted = self._wanted.setdefault(pod.node_name, {})
            for container in pod.shape.containers:
                wanted[namespace, pod.name, container.name] = now

    async def close(self) -> None:
        """Give up all connections."""
        for node in self._nodes.values():
            node.asking.cancel()
        self._nodes.clear()
        if self._client is not None:
            await self._client.close()
            self._client = None

    # Asking

    async def _ask(self, name: str, where: tuple[MetricsEndpoint, str]) -> str | None:
        """What went wrong with the latest answer, if anything."""
        now = self._clock()
        node = self._nodes.get(name)
        # A clock that went back makes an answer old, too
        over = (
            node is not None and node.asking.done() and not 0.0 <= now - node.asked_at <= self._settings.fresh_seconds
        )
        if node is None or node.where != where or over:
            self._forget(now)
            # Counters are the kernel's: they go on where an agent was restarted
            answers = node.answers if node is not None else []
            asking = asyncio.ensure_future(self._scrape(name, *where, answers))
            node = self._nodes[name] = _Node(where, now, asking, answers)
        return await asyncio.shield(node.asking)

    def _forget(self, now: float) -> None:
        if abs(now - self._tidied_at) < self._settings.tidy_seconds:
            return
        self._tidied_at = now
        for name in [n for n, node in self._nodes.items() if now - node.asked_at > self._settings.forget_seconds]:
            del self._nodes[name]
        for name, wanted in list(self._wanted.items()):
            for key in [k for k, at in wanted.items() if abs(now - at) > self._settings.longest_seconds]:
                del wanted[key]
            if not wanted:
                del self._wanted[name]

    async def _scrape(self, node: str, endpoint: MetricsEndpoint, host: str, answers: list[Answer]) -> str | None:
        settings = self._settings
        try:
            async with self._limit:
                token = await self._tokens.token(node)
        except KubeError as error:
            return f"the operator has no token for its agent: {error}"
        if self._client is None:
            # Longer than a sync period, so that connections are reused in the next round
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
            # Agents do not compress, and what a stranger has compressed may unfold to anything
            self._client = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        try:
            url = URL.build(scheme="https", host=endpoint.address or host, port=endpoint.port, path=_PATH)
            async with (
                self._limit,
                self._client.get(
                    url,
                    # Checked before anything is sent: no other process gets to see the token
                    ssl=aiohttp.Fingerprint(bytes.fromhex(endpoint.certificate_sha256)),
                    headers={"Authorization": f"Bearer {token}"},
                    timeout=aiohttp.ClientTimeout(total=settings.timeout_seconds),
                    allow_redirects=False,
                ) as response,
            ):
                if response.status != 200:
                    if response.status == 401:
                        self._tokens.refused(node, token)
                    words = (await response.content.read(200)).decode(errors="replace")
                    return f"its agent refuses: {response.status} {printable(words)}"
                text = await _body(response.content, settings.largest_bytes)
        except aiohttp.ServerFingerprintMismatch:
            return "what serves there is not the agent whose certificate NodeCapacity.status names"
        except TimeoutError:
            return f"its agent does not answer within {settings.timeout_seconds:g} s"
        except aiohttp.ClientConnectorError:
            # Its own words change from one time to the next, and would make a new status of it each time
            return f"nothing answers at {endpoint.address or host}, port {endpoint.port}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = connection_problem(error, f"https://{endpoint.address or host}:{endpoint.port}")
            return f"its agent cannot be asked: {printable(problem)[:200]}"
        now = self._clock()
        answers[:] = [a for a in answers if abs(now - a.came_at) <= settings.longest_seconds]
        answers.append(Answer(now, read_answer(text, self._wanted.get(node, {}))))
        return None

    # Reading

    def _is_old(self, point: Point | None, now: float) -> bool:
        return point is not None and abs(now - point.at) > self._settings.stale_seconds

    def _reading(self, answers: Sequence[Answer], namespace: str, pod: PodView) -> PodUsage | None:
        """None unless there is a rate of each of its containers."""
        at, window, usage = math.inf, 0.0, {}
        for container in pod.shape.containers:
            key = (namespace, pod.name, container.name)
            if (new := answers[-1].points.get(key)) is None or (old := self._base(answers, key, new)) is None:
                return None
            seconds = new.at - old.at
            rate = (new.cpu - old.cpu) / seconds
            usage[container.name] = {"cpu": math.ceil(rate * 1000), "memory": math.ceil(new.memory * 1000)}
            at, window = min(at, new.at), max(window, seconds)
        return PodUsage(at, window, usage) if usage else None

    def _base(self, answers: Sequence[Answer], key: ContainerKey, new: Point) -> Point | None:
        """The point to take the rate from: of the same container, the last that is a window ago, else the oldest."""
        found: Point | None = None
        for answer in reversed(answers[:-1]):
            point = answer.points.get(key)
            if point is None or point.cpu > new.cpu or point.at < new.started:
                break
            seconds = new.at - point.at
            if abs(seconds - (answers[-1].came_at - answer.came_at)) > self._settings.max_lag_seconds:
                break
            if seconds >= self._settings.shortest_seconds:
                found = point
            if seconds >= self._settings.window_seconds:
                break
        return found


_STALE = "its agent's readings are not of the last {:.0f} s: it hangs, or the node's clock is wrong"


def endpoint_of(capacity: Object | None) -> MetricsEndpoint | None:
    """Where the node's agent serves metrics of its pods; None if nowhere, or at no possible address of a node.

    An agent writes the address itself. Link-local addresses serve a cloud's credentials, and are never a node's.
    """
    agent = ((capacity or {}).get("status") or {}).get("agent") or {}
    if "metrics" not in agent:
        return None
    endpoint = MetricsEndpoint.from_raw(agent["metrics"])
    if endpoint.address:
        try:
            address = ip_address(endpoint.address)
        except ValueError:
            return None
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return None
    return endpoint


def read_answer(text: str, wanted: Container[ContainerKey]) -> dict[ContainerKey, Point]:
    """Those of the wanted containers in an exposition of ``/metrics/resource`` that have a counter and a level.

    A line of another form, or with a value that is no number, below zero or beyond all measure, is as if it was not
    there.
    """
    values: dict[ContainerKey, dict[str, tuple[float, float]]] = {}
    for match in _LINE.finditer(text):
        family, container, namespace, pod, value, stamp = match.groups()
        if (namespace, pod, container) not in wanted:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number <= _MAX_VALUE:
            values.setdefault((namespace, pod, container), {})[family] = (number, int(stamp) / 1000)
    return {
        key: Point(found[_CPU][1], found[_CPU][0], found[_MEMORY][0], found.get(_START, (-math.inf, 0.0))[0])
        for key, found in values.items()
        if _CPU in found and _MEMORY in found
    }


async def _body(content: aiohttp.StreamReader, largest: int) -> str:
    body = await read_body(content, largest)
    if body is None:
        raise ValueError(f"it answers more than {largest} bytes")
    return body.decode()
