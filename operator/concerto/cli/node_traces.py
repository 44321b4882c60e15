"""Reads the last minutes of the laws that decide how many pods a node takes: of its agent, and of the operator."""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from concerto.kube import KubeError, Object, Session
from concerto.kube.connection_problems import host_and_port, system_reason
from concerto.kube.resources import PODS

_PATH = "/debug/trace"
_MAX_BYTES = 4 * 2**20
_TIMEOUT_SECONDS = 10.0
_NAME_LABEL = "app.kubernetes.io/name"
_PORT_NAME = "http"
_YEAR_10000 = 253402300800.0
"""Seconds since the epoch: no clock of this program shows as much."""


class TraceError(Exception):
    """A trace cannot be read; the message says of what, why, and what to do."""


@dataclass(frozen=True)
class Where:
    """Where the traces are.

    Attributes:
        namespace: of the pods of agent and operator.
        agent: address of the agent's HTTP endpoint; None: its pod, through the API server.
        operator: the same of the operator's.
    """

    namespace: str
    agent: str | None = None
    operator: str | None = None


@dataclass(frozen=True)
class NodeTrace:
    """The numbers of one law at the last moments.

    Attributes:
        names: of the numbers.
        units: of each.
        times: seconds since the epoch, oldest first.
        values: for each time, a number for each name; NaN where unknown.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    times: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]

    @classmethod
    def from_raw(cls, raw: Mapping[str, Any]) -> Self:
        """From an answer of /debug/trace.

        Raises:
            ValueError, KeyError, TypeError, OverflowError: it is something else.
        """
        columns = raw["columns"][1:]
        rows = [[math.nan if v is None else float(v) for v in row] for row in raw["rows"]]
        if any(len(row) != len(columns) + 1 for row in rows):
            raise ValueError("a row has not as many numbers as there are columns")
        if not all(0.0 <= row[0] < _YEAR_10000 for row in rows):
            raise ValueError("a row has no time")
        return cls(
            tuple(str(c["name"]) for c in columns),
            tuple(str(c["unit"]) for c in columns),
            tuple(row[0] for row in rows),
            tuple(tuple(row[1:]) for row in rows),
        )

    def column(self, name: str) -> list[float]:
        """The numbers of one name, oldest first."""
        index = self.names.index(name)
        return [row[index] for row in self.values]

    def every(self, seconds: float, since: float) -> Self:
        """The last moment of each stretch of ``seconds``, without moments before ``since``."""
        kept: dict[int, int] = {int(at // seconds): i for i, at in enumerate(self.times) if at >= since}
        chosen = sorted(kept.values())
        return type(self)(
            self.names, self.units, tuple(self.times[i] for i in chosen), tuple(self.values[i] for i in chosen)
        )


async def read_traces(session: Session, node: str, where: Where) -> tuple[NodeTrace, NodeTrace]:
    """What the node's agent has kept, and what the leading operator has kept of the node.

    Raises:
        TraceError: one of the two gives no usable answer.
    """
    query = {"node": node}
    if where.agent is not None:
        agent = await asyncio.to_thread(_get, where.agent, query)
    else:
        agent = await _of_agent(session, node, where.namespace)
    if where.operator is not None:
        operator = await asyncio.to_thread(_get, where.operator, query)
    else:
        operator = await _of_operator(session, node, where.namespace)
    return _parse(agent, "the agent", node), _parse(operator, "the operator", node)


def _parse(raw: Object, who: str, node: str) -> NodeTrace:
    try:
        if raw["node"] != node:
            raise TraceError(f"{who} that was asked answers about node {raw['node']}, not {node}")
        return NodeTrace.from_raw(raw)
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise TraceError(
            f"{who} does not answer {_PATH} with a trace ({why}): it may be of another version than this command"
        ) from error


def _get(address: str, query: Mapping[str, str]) -> Object:
    url = f"{address.rstrip('/')}{_PATH}?{urllib.parse.urlencode(query)}"
    if not url.startswith(("http://", "https://")):
        raise TraceError(f"{address} is not an address such as http://127.0.0.1:9101")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            return dict(json.loads(answer.read(_MAX_BYTES)))
    except urllib.error.HTTPError as error:
        raise TraceError(f"{url}: {error.read(1000).decode(errors='replace') or error}") from error
    except urllib.error.URLError as error:
        reason = system_reason(error.reason) if isinstance(error.reason, OSError) else error.reason
        raise TraceError(f"{url}: cannot connect to {host_and_port(address)}: {reason}") from error
    except http.client.BadStatusLine as error:
        what = f"it answers {str(error).strip() or 'nothing'}"
        raise TraceError(f"{url} is not an HTTP endpoint such as http://127.0.0.1:9101: {what}") from error
    except http.client.HTTPException as error:
        raise TraceError(f"{url} is not an HTTP endpoint such as http://127.0.0.1:9101: {error}") from error
    except TimeoutError as error:
        raise TraceError(f"{url}: {host_and_port(address)} gave no answer within {_TIMEOUT_SECONDS:g} s") from error
    except OSError as error:
        raise TraceError(f"{url}: {host_and_port(address)}: {system_reason(error)}") from error
    except (ValueError, TypeError) as error:
        raise TraceError(f"{url}: {error}") from error


async def _of_agent(session: Session, node: str, namespace: str) -> Object:
    pods = await _pods(session, namespace, "concerto-agent", f"spec.nodeName={node}")
    if not pods:
        raise TraceError(
            f"no agent runs on node {node} as a pod of namespace {namespace}: name another --operator-namespace, or "
            "give the address of the agent's HTTP endpoint with --agent"
        )
    return await _through_api_server(session, pods[0], {"node": node})


async def _of_operator(session: Session, node: str, namespace: str) -> Object:
    """Only the leading replica keeps a trace: the others answer that they have none."""
    refusals = []
    for pod in await _pods(session, namespace, "concerto-operator", ""):
        try:
            return await _through_api_server(session, pod, {"node": node})
        except TraceError as error:
            refusals.append(str(error))
    if refusals:
        raise TraceError("; ".join(refusals))
    raise TraceError(
        f"no operator runs as a pod of namespace {namespace}: name another --operator-namespace, or give the address "
        "of the operator's HTTP endpoint with --operator"
    )


async def _pods(session: Session, namespace: str, name: str, fields: str) -> Sequence[Object]:
    selector = ",".join(filter(None, ("status.phase=Running", fields)))
    try:
        listed = await session.list(
            PODS.path(namespace), label_selector=f"{_NAME_LABEL}={name}", field_selector=selector
        )
    except KubeError as error:
        raise TraceError(f"pods of namespace {namespace} cannot be listed: {error}") from error
    return list(listed["items"])


async def _through_api_server(session: Session, pod: Object, query: Mapping[str, str]) -> Object:
    metadata = pod["metadata"]
    ports = [p for c in pod["spec"]["containers"] for p in c.get("ports") or () if p.get("name") == _PORT_NAME]
    if not ports:
        raise TraceError(f"pod {metadata['namespace']}/{metadata['name']} has no port named {_PORT_NAME}")
    target = f"{metadata['name']}:{ports[0]['containerPort']}"
    path = PODS.path(metadata["namespace"], target, f"proxy{_PATH}")
    try:
        return await session.get_foreign(path, params=query, timeout_seconds=_TIMEOUT_SECONDS, max_bytes=_MAX_BYTES)
    except KubeError as error:
        raise TraceError(
            f"pod {metadata['namespace']}/{metadata['name']}: {error} (this takes the right to get pods/proxy there)"
        ) from error
