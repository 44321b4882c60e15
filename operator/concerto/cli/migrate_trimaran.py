"""`concerto migrate-trimaran`: SchedulingProfiles from a KubeSchedulerConfiguration with Trimaran's plugins.

What is read is that of scheduler-plugins (``TargetLoadPackingArgs``, ``LoadVariationRiskBalancingArgs``,
``LowRiskOverCommitmentArgs``) and of kube-scheduler (``NodeResourcesFitArgs``). What has no counterpart is named on
standard error. docs/load-aware.md has the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from concerto.scheduling.consistency import BY_REQUESTS, WITHOUT_REQUESTS
from concerto.scheduling.plugins.registry import SCORES

BY_LOAD = ("TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment")
DEFAULT_WEIGHTS = {
    "TaintToleration": 3,
    "NodeAffinity": 2,
    "PodTopologySpread": 2,
    "InterPodAffinity": 2,
    "NodeResourcesFit": 1,
    "NodeResourcesBalancedAllocation": 1,
    "ImageLocality": 1,
}
"""The scores of kube-scheduler's default profile."""
_WINDOW = "15m"
"""Trimaran's plugins ask for the window of 15 minutes first."""
_RATIOS = {"cpu": "instance:node_cpu:ratio", "memory": "instance:node_memory_utilisation:ratio"}
"""The recording rules that load-watcher queries."""

Raw = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto migrate-trimaran`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a KubeSchedulerConfiguration; - for standard input")


def run(args: argparse.Namespace) -> int:
    """Print the profiles; 2 if the file is not such a configuration."""
    try:
        text = sys.stdin.read() if str(args.file) == "-" else args.file.read_text()
        profiles, notes = migrate(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(f"concerto migrate-trimaran: {args.file}: {error}", file=sys.stderr)
        return 2
    except (KeyError, TypeError, AttributeError) as error:
        print(
            f"concerto migrate-trimaran: {args.file} is no KubeSchedulerConfiguration that kube-scheduler reads: "
            f"{error!r}",
            file=sys.stderr,
        )
        return 2
    for note in notes:
        print(note, file=sys.stderr)
    yaml.safe_dump_all(profiles, sys.stdout, sort_keys=False)
    return 0


def migrate(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """SchedulingProfiles, and what a person has to know or do besides.

    Raises:
        ValueError: the text has no KubeSchedulerConfiguration, or none that uses a plugin of Trimaran.
    """
    documents = [d for d in yaml.safe_load_all(text) if isinstance(d, Mapping)]
    found = [d for d in documents if d.get("kind") == "KubeSchedulerConfiguration"]
    if not found:
        raise ValueError("there is no object of kind KubeSchedulerConfiguration")
    made, notes = [], []
    for configuration in found:
        for profile in configuration.get("profiles") or ():
            migration = _Migration(profile)
            if migration.by_load:
                made.append(migration.profile())
                notes += migration.notes
    if not made:
        raise ValueError(f"no profile enables one of {', '.join(BY_LOAD)}")
    return made, notes


class _Migration:
    """One profile of a KubeSchedulerConfiguration."""

    def __init__(self, profile: Raw) -> None:
        self.notes: list[str] = []
        self._name = str(profile.get("schedulerName", "default-scheduler"))
        self._args = {p["name"]: p.get("args") or {} for p in profile.get("pluginConfig") or ()}
        self._weights = self._enabled(profile.get("plugins") or {})
        self.by_load = [name for name in self._weights if name in BY_LOAD]

    def profile(self) -> dict[str, Any]:
        """The SchedulingProfile."""
        name = self._name
        if name == "default-scheduler":
            name = "trimaran"
            self._note("kube-scheduler has schedulerName default-scheduler while it runs: it is called trimaran here")
        spec: dict[str, Any] = {"schedulerName": name, "scores": self._scores()}
        load = self._load()
        spec["load"] = load
        if provider := self._provider():
            spec["metricProvider"] = provider
        metadata = {"name": name.replace(".", "-")}
        return {"apiVersion": "concerto.dev/v1alpha1", "kind": "SchedulingProfile", "metadata": metadata, "spec": spec}

    def _note(self, text: str) -> None:
        self.notes.append(f"{self._name}: {text}")

    def _enabled(self, plugins: Raw) -> dict[str, int]:
        """Score plugins by name, with their weights."""
        weights = dict(DEFAULT_WEIGHTS)
        for point in ("multiPoint", "score"):
            for disabled in (plugins.get(point) or {}).get("disabled") or ():
                weights = {} if disabled["name"] == "*" else {n: w for n, w in weights.items() if n != disabled["name"]}
            for enabled in (plugins.get(point) or {}).get("enabled") or ():
                weights[enabled["name"]] = int(enabled.get("weight") or weights.get(enabled["name"]) or 1)
        return weights

    def _scores(self) -> list[dict[str, Any]]:
        scores = []
        for name in sorted(self._weights, key=lambda n: n not in BY_LOAD):
            if name not in SCORES:
                self._note(f"score {name} has no counterpart, and is left out")
                continue
            if name in BY_REQUESTS and not WITHOUT_REQUESTS.isdisjoint(self.by_load):
                self._note(f"score {name} compares requests: Trimaran advises to disable it; remove it")
            score: dict[str, Any] = {"name": name, "weight": min(max(self._weights[name], 1), 100)}
            if arguments := _ARGUMENTS.get(name, lambda _: {})(self._args.get(name, {})):
                score[name[0].lower() + name[1:]] = arguments
            scores.append(score)
        return scores

    def _load(self) -> dict[str, Any]:
        args, load = self._args.get("TargetLoadPacking", {}), {"window": _WINDOW}
        if "defaultRequestsMultiplier" in args:
            load["requestMultiplier"] = _decimal(args["defaultRequestsMultiplier"])
        requests = args.get("defaultRequests") or {}
        if "cpu" in requests:
            load["defaultCPURequest"] = str(requests["cpu"])
        if others := sorted(set(requests) - {"cpu"}):
            self._note(f"defaultRequests of {', '.join(others)} have no counterpart, and are left out")
        # Trimaran predicts BestEffort pods by defaultRequests, too
        load["bestEffortCPURequest"] = load.get("defaultCPURequest", "1")
        return load

    def _provider(self) -> dict[str, Any]:
        given = [self._args[name] for name in self.by_load if self._args.get(name)]
        sources = [(a.get("watcherAddress"), a.get("metricProvider") or {}) for a in given]
        if any(source != sources[0] for source in sources):
            self._note("its plugins read different metrics: the first one's source is taken for all")
        address, provider = sources[0] if sources else (None, {})
        if address:
            return {"type": "LoadWatcher", "loadWatcher": {"address": address}}
        kind = provider.get("type", "KubernetesMetricsServer")
        if kind == "Prometheus":
            return self._prometheus(provider)
        if kind != "KubernetesMetricsServer":
            self._note(f"metricProvider {kind} has no counterpart: the agents measure")
            return {}
        return {"type": "KubernetesMetricsServer"}

    def _prometheus(self, provider: Raw) -> dict[str, Any]:
        address = provider.get("address") or "http://prometheus-k8s:9090"
        if not provider.get("address"):
            self._note(f"metricProvider has no address: {address} is load-watcher's default")
        prometheus: dict[str, Any] = {
            "address": address,
            "nodeLabel": "instance",
            "queries": {
                resource: {
                    "average": f"avg_over_time({ratio}[$window])",
                    "standardDeviation": f"stddev_over_time({ratio}[$window])",
                }
                for resource, ratio in _RATIOS.items()
            },
        }
        secure = str(address).startswith("https://")
        if provider.get("token"):
            if secure:
                prometheus["authorization"] = {"type": "Bearer", "key": "token"}
                self._note("put the token into Secret concerto-prometheus of the operator's namespace, as key token")
            else:
                self._note("the token is left out: it is sent to https addresses only")
        if provider.get("insecureSkipVerify") and secure:
            prometheus["tls"] = {"insecureSkipVerify": True}
        return {"type": "Prometheus", "prometheus": prometheus}


def _decimal(value: Any) -> str:
    """A number as a quantity: 1.5 of 1.5 and of "1.5"."""
    number = float(value)
    return f"{number:g}" if f"{number:g}".replace(".", "").isdigit() else f"{number:f}"


def _target_load_packing(args: Raw) -> dict[str, Any]:
    return {"targetUtilization": int(args.get("targetUtilization", 40))}


def _load_variation_risk_balancing(args: Raw) -> dict[str, Any]:
    return {
        "formula": "Upstream",
        "safeVarianceMargin": _decimal(args.get("safeVarianceMargin", 1)),
        "safeVarianceSensitivity": _decimal(args.get("safeVarianceSensitivity", 1)),
    }


def _low_risk_over_commitment(args: Raw) -> dict[str, Any]:
    made: dict[str, Any] = {"smoothingWindowSize": int(args.get("smoothingWindowSize", 5))}
    weights = args.get("riskLimitWeights") or {}
    if known := {name: _decimal(weights[name]) for name in ("cpu", "memory") if name in weights}:
        made["riskLimitWeights"] = known
    return made


def _node_resources_fit(args: Raw) -> dict[str, Any]:
    strategy = args.get("scoringStrategy") or {}
    made: dict[str, Any] = {"strategy": strategy.get("type", "LeastAllocated")}
    resources: Sequence[Raw] = strategy.get("resources") or ()
    if resources:
        made["resources"] = [{"name": r["name"], "weight": int(r.get("weight") or 1)} for r in resources]
    points = (strategy.get("requestedToCapacityRatio") or {}).get("shape") or ()
    if points:
        made["shape"] = [{"utilization": int(p["utilization"]), "score": int(p["score"])} for p in points]
    return made


_ARGUMENTS = {
    "TargetLoadPacking": _target_load_packing,
    "LoadVariationRiskBalancing": _load_variation_risk_balancing,
    "LowRiskOverCommitment": _low_risk_over_commitment,
    "NodeResourcesFit": _node_resources_fit,
}
