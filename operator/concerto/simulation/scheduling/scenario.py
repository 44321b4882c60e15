"""Scenarios as YAML: read, checked, and refused with the line, the field and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.quantities import milli, parse_quantity
from concerto.simulation.scheduling.node_model import NodeModelSettings, PodLoad
from concerto.simulation.scheduling.policies import registry
from concerto.simulation.scheduling.setup import ApiSettings, Fault, NodeSpec, Setup
from concerto.simulation.scheduling.workloads import Arrivals, JobSpec

FAULTS = ("AgentDeath", "NodeLoss", "ApiOutage", "FrozenTelemetry", "IdleTelemetry", "FullTelemetry")
PROCESSES = ("Burst", "Poisson", "Paced", "Daily")
BUILT_IN = "concerto.simulation.scheduling.scenarios"


class ScenarioError(ValueError):
    """A scenario that can't be run; the message names file, line, field and what was expected."""


@dataclass(frozen=True)
class Scenario:
    """What to run.

    Attributes:
        name: of the scenario.
        description: what it shows.
        setup: nodes, jobs, faults and constants.
        policies: names, in the order of the table.
        seeds: how many seeds a policy is run with.
        capacity: NodeCapacity.spec for `concerto`.
    """

    name: str
    description: str
    setup: Setup
    policies: tuple[str, ...]
    seeds: int
    capacity: CapacitySettings


def built_in_names() -> list[str]:
    """Names of the scenarios that come with Concerto."""
    return sorted(Path(f.name).stem for f in resources.files(BUILT_IN).iterdir() if f.name.endswith(".yaml"))


def load(name_or_path: str) -> Scenario:
    """A built-in scenario by its name, or one from a file.

    Raises:
        ScenarioError: there is no such scenario, or it is not valid.
    """
    if name_or_path in built_in_names():
        text = (resources.files(BUILT_IN) / f"{name_or_path}.yaml").read_text()
        return parse(text, f"{name_or_path}.yaml")
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(built_in_names())
        raise ScenarioError(f"{name_or_path}: neither a file nor a built-in scenario; there are {known}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} cannot be read as text: {error}") from None
    return parse(text, str(path))


def parse(text: str, source: str) -> Scenario:
    """A scenario from YAML.

    Raises:
        ScenarioError: it is not valid.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(f"{source}:{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ScenarioError(f"{source}: not YAML: {error}") from None
    if root is None:
        raise ScenarioError(f"{source}:1: expected a mapping with `jobs`, got nothing")
    return _scenario(_Node(root, "", source))


class _Node:
    """A YAML node that knows where it is, and complains accordingly."""

    def __init__(self, node: yaml.Node, path: str, source: str) -> None:
        self.node, self.path, self.source = node, path, source

    def fail(self, expected: str) -> ScenarioError:
        other = "a mapping" if isinstance(self.node, yaml.MappingNode) else "a sequence"
        got = self.node.value if isinstance(self.node, yaml.ScalarNode) else other
        where = f"{self.source}:{self.node.start_mark.line + 1}"
        return ScenarioError(f"{where}: {self.path or 'the scenario'}: expected {expected}, got {got!r}")

    def fields(self, known: Mapping[str, str]) -> dict[str, _Node]:
        """The fields of a mapping; one that is not known is refused."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.fail(f"a mapping with any of {', '.join(known)}")
        found: dict[str, _Node] = {}
        for key, value in self.node.value:
            name = str(key.value)
            path = f"{self.path}.{name}" if self.path else name
            if name not in known:
                where = f"{self.source}:{key.start_mark.line + 1}"
                raise ScenarioError(f"{where}: {path}: expected one of {', '.join(known)}, got {name!r}")
            if name in found:
                raise ScenarioError(f"{self.source}:{key.start_mark.line + 1}: {path}: expected once, got it twice")
            found[name] = _Node(value, path, self.source)
        return found

    def items(self) -> list[_Node]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.fail("a list")
        return [_Node(v, f"{self.path}[{i}]", self.source) for i, v in enumerate(self.node.value)]

    def value(self) -> Any:
        try:
            return yaml.SafeLoader("").construct_object(self.node, deep=True)
        except (yaml.YAMLError, ValueError):
            raise self.fail("a plain value") from None

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.fail("text")
        return str(self.node.value)

    def number(self, least: float = 0.0, most: float = math.inf, above: bool = False) -> float:
        bounds = f"a number {'above' if above else 'of at least'} {least:g}"
        bounds += "" if math.isinf(most) else f" and at most {most:g}"
        value = self.value() if isinstance(self.node, yaml.ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(bounds)
        if not math.isfinite(value) or value > most or (value <= least if above else value < least):
            raise self.fail(bounds)
        return float(value)

    def whole(self, least: int = 0, most: int = 10**9) -> int:
        value = self.value() if isinstance(self.node, yaml.ScalarNode) else None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(f"a whole number from {least} to {most}")
        return value

    def choice(self, options: tuple[str, ...]) -> str:
        if self.text() not in options:
            raise self.fail(f"one of {', '.join(options)}")
        return self.text()

    def quantity(self, example: str) -> float:
        try:
            value = float(parse_quantity(self.text()))
        except ValueError:
            raise self.fail(f"a quantity such as {example}") from None
        if value < 0:
            raise self.fail(f"a quantity such as {example}, not below 0")
        return value

    def pair(self) -> tuple[float, float]:
        items = self.items()
        if len(items) != 2:
            raise self.fail("two numbers, the least and the most")
        low, high = items[0].number(), items[1].number()
        if high < low:
            raise self.fail("two numbers, the least and the most, in that order")
        return low, high


_Reader = Callable[[_Node], Any]


def _take(node: _Node, readers: Mapping[str, tuple[str, _Reader]]) -> dict[str, Any]:
    """Keyword arguments for a dataclass: YAML field to (argument, reader)."""
    return {readers[k][0]: readers[k][1](v) for k, v in node.fields({k: k for k in readers}).items()}


def _positive(node: _Node) -> float:
    return node.number(above=True)


_NODES: dict[str, tuple[str, _Reader]] = {
    "count": ("count", lambda n: n.whole(1, 100_000)),
    "cores": ("cores", _positive),
    "memory": ("memory_bytes", lambda n: n.quantity("8Gi")),
    "maxPods": ("max_pods", lambda n: n.whole(1, 10_000)),
    "reservedCpu": ("reserved_millicores", lambda n: milli(n.text()) if n.quantity("100m") >= 0 else 0),
    "reservedMemory": ("reserved_memory_bytes", lambda n: n.quantity("500Mi")),
}
_LOAD: dict[str, tuple[str, _Reader]] = {
    "waitSeconds": ("wait_seconds", lambda n: n.number()),
    "coreSeconds": ("core_seconds", _positive),
    "threads": ("threads", lambda n: n.whole(1, 4096)),
    "bursts": ("bursts", lambda n: n.whole(0, 10**6)),
    "memory": ("memory_bytes", lambda n: n.quantity("700Mi")),
    "memoryRampSeconds": ("memory_ramp_seconds", lambda n: n.number()),
    "cpuLimit": ("cpu_limit", lambda n: n.quantity("500m")),
}
_JOB: dict[str, tuple[str, _Reader]] = {
    "name": ("name", lambda n: n.text()),
    "count": ("count", lambda n: n.whole(1, 10**7)),
    "jitter": ("jitter", lambda n: n.number(0.0, 3.0)),
    "cpuRequest": ("cpu_request_millicores", lambda n: milli(n.text()) if n.quantity("500m") >= 0 else 0),
    "memoryRequest": ("memory_request_bytes", lambda n: n.quantity("750Mi")),
    "arrivals": ("arrivals", lambda n: Arrivals(**_take(n, _ARRIVALS))),
    "priority": ("priority", lambda n: n.whole(-(10**9), 10**9)),
    "node": ("node", lambda n: n.whole(0, 10**6)),
    "workload": ("workload", lambda n: n.text()),
    "gang": ("gang", lambda n: n.whole(0, 500)),
}
_ARRIVALS: dict[str, tuple[str, _Reader]] = {
    "process": ("process", lambda n: n.choice(PROCESSES)),
    "startSeconds": ("start_seconds", lambda n: n.number()),
    "perSecond": ("per_second", _positive),
    "periodSeconds": ("period_seconds", _positive),
}
_FAULT: dict[str, tuple[str, _Reader]] = {
    "kind": ("kind", lambda n: n.choice(FAULTS)),
    "atSeconds": ("at_seconds", lambda n: n.number()),
    "forSeconds": ("for_seconds", _positive),
    "nodes": ("nodes", lambda n: tuple(i.whole(0, 10**6) for i in n.items())),
}
_PLANT: dict[str, tuple[str, _Reader]] = {
    "startSeconds": ("start_seconds", lambda n: n.pair()),
    "startWhenFullSeconds": ("start_when_full_seconds", lambda n: n.number()),
    "endSeconds": ("end_seconds", lambda n: n.pair()),
    "teardownSeconds": ("teardown_seconds", lambda n: n.number()),
    "spikeSeconds": ("spike_seconds", lambda n: n.number()),
    "spikeThreads": ("spike_threads", lambda n: n.whole(0, 64)),
    "startCoreSeconds": ("start_core_seconds", lambda n: n.number()),
    "endCoreSeconds": ("end_core_seconds", lambda n: n.number()),
    "otherCpu": ("other_cpu", lambda n: n.number(0.0, 0.99)),
    "systemCpu": ("system_cpu", lambda n: n.number(0.0, 1.0)),
    "systemMemory": ("system_memory_bytes", lambda n: n.quantity("600Mi")),
}
_API: dict[str, tuple[str, _Reader]] = {
    "writeSeconds": ("write_seconds", lambda n: n.pair()),
    "watchSeconds": ("watch_seconds", lambda n: n.pair()),
    "cycleSeconds": ("cycle_seconds", _positive),
}
_SCENARIO = (
    *("name", "description", "nodes", "jobs", "policies", "seeds", "faults", "plant", "api", "capacity"),
    "limitSeconds",
)


@dataclass
class _Parts:
    nodes: tuple[NodeSpec, ...] = (NodeSpec(),)
    jobs: tuple[JobSpec, ...] = ()
    faults: tuple[Fault, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def _scenario(root: _Node) -> Scenario:
    fields = root.fields({k: k for k in _SCENARIO})
    if "jobs" not in fields:
        raise root.fail("a field `jobs`")
    parts = _Parts()
    if "nodes" in fields:
        parts.nodes = tuple(NodeSpec(**_take(n, _NODES)) for n in fields["nodes"].items())
        if not parts.nodes:
            raise fields["nodes"].fail("at least one group of nodes")
    total = sum(n.count for n in parts.nodes)
    parts.jobs = tuple(_job(n, total) for n in fields["jobs"].items())
    if not any(not job.endless for job in parts.jobs):
        raise fields["jobs"].fail("at least one job that ends (bursts of at least 1)")
    if len({job.name for job in parts.jobs}) < len(parts.jobs):
        raise fields["jobs"].fail("a different name for each job")
    if "faults" in fields:
        parts.faults = tuple(_fault(n, total) for n in fields["faults"].items())
    if "plant" in fields:
        parts.extra["plant"] = NodeModelSettings(**_take(fields["plant"], _PLANT))
    if "api" in fields:
        parts.extra["api"] = ApiSettings(**_take(fields["api"], _API))
    if "limitSeconds" in fields:
        parts.extra["limit_seconds"] = fields["limitSeconds"].number(above=True)
    policies = tuple(_policy(n) for n in fields["policies"].items()) if "policies" in fields else ("concerto",)
    return Scenario(
        name=fields["name"].text() if "name" in fields else Path(root.source).stem,
        description=fields["description"].text() if "description" in fields else "",
        setup=Setup(parts.nodes, parts.jobs, parts.faults, **parts.extra),
        policies=tuple(run for name in policies for run in registry.expand(name)),
        seeds=fields["seeds"].whole(1, 10_000) if "seeds" in fields else 5,
        capacity=_capacity(fields["capacity"]) if "capacity" in fields else CapacitySettings(),
    )


def _job(node: _Node, nodes: int) -> JobSpec:
    everything = node.fields({k: k for k in (*_JOB, *_LOAD)})
    for required in ("name", "count", "coreSeconds"):
        if required not in everything:
            raise node.fail(f"a field `{required}`")
    load = PodLoad(**{_LOAD[k][0]: _LOAD[k][1](v) for k, v in everything.items() if k in _LOAD})
    job = JobSpec(load=load, **{_JOB[k][0]: _JOB[k][1](v) for k, v in everything.items() if k in _JOB})
    if job.node is not None and job.node >= nodes:
        raise everything["node"].fail(f"a whole number from 0 to {nodes - 1}")
    if job.gang and job.count % job.gang:
        raise everything["gang"].fail(f"a divisor of the count, {job.count}")
    if job.endless and job.load.wait_seconds <= 0:
        raise node.fail("waitSeconds above 0 where bursts is 0 (a pod that never ends has to rest)")
    return job


def _fault(node: _Node, nodes: int) -> Fault:
    fields = node.fields({k: k for k in _FAULT})
    for required in ("kind", "atSeconds", "forSeconds"):
        if required not in fields:
            raise node.fail(f"a field `{required}`")
    fault = Fault(**_take(node, _FAULT))
    if any(n >= nodes for n in fault.nodes):
        raise fields["nodes"].fail(f"indices from 0 to {nodes - 1}")
    return fault


def _policy(node: _Node) -> str:
    name = node.text()
    if not registry.is_policy(name):
        raise node.fail(f"one of {registry.EXPECTED}")
    return name


def _capacity(node: _Node) -> CapacitySettings:
    """NodeCapacity.spec, as the custom resource has it."""
    raw = node.value()
    if not isinstance(raw, dict):
        raise node.fail("a NodeCapacity spec")
    try:
        return CapacitySettings.from_raw(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise node.fail(f"a NodeCapacity spec ({error})") from None
