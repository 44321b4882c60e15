"""`python docs/reference.py`: writes docs/reference.md from the CustomResourceDefinitions and the metrics."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from concerto.controllers.autoscaling.forecast_metrics import ForecastMetrics
from concerto.controllers.runtime.metrics import Metrics
from concerto_agent.metrics import Counters, Gauges, describe

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "reference.md"

HEAD = """# Reference

<!-- Written by `python docs/reference.py` from crds/ and the metrics in the code: edit those. -->

Look up a field of one of the seven kinds, or a metric. Group `concerto.dev`, version `v1alpha1`; `kubectl explain`
prints the same texts. **Bold** fields are required. *Refused* lists the messages with which the API server refuses an
object. [Metrics](#metrics) come last. Words are explained in the [glossary](../CONTRIBUTING.md#glossary).
"""


def kinds() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions, by kind."""
    found = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "crds").glob("*.yaml"))]
    return sorted(
        (crd for crd in found if crd["kind"] == "CustomResourceDefinition"),
        key=lambda crd: crd["spec"]["names"]["kind"],
    )


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    """Every field below a schema, with its path and whether it must be given."""
    required = set(schema.get("required", ()))
    for name, member in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, member, name in required
        yield from fields(member, here)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from fields(schema[key], path + mark)


def type_of(schema: dict[str, Any]) -> str:
    """The type of a field in a word or two."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return "number or string"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if "enum" in schema:
        return " \\| ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {type_of(schema['additionalProperties'])}"
    return str(schema.get("format") or schema.get("type", "any"))


def limits(schema: dict[str, Any]) -> str:
    """Default and bounds."""
    parts = []
    if "default" in schema:
        default = (
            yaml.safe_dump(schema["default"], default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
        )
        parts.append(f"default `{default}`" if len(default) < 60 else "has a default")
    for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("minItems", "items ≥"), ("maxItems", "items ≤")):
        if key in schema and (schema.get("type") == "array" or not key.endswith("Items")):
            parts.append(f"{sign} {schema[key]}")
    return ", ".join(parts)


def refusals(schema: dict[str, Any]) -> list[str]:
    """The sentences of all CEL rules below a schema."""
    found = [
        " ".join(rule["message"].split()) for rule in schema.get("x-kubernetes-validations", ()) if "message" in rule
    ]
    children = list(schema.get("properties", {}).values())
    children += [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    for child in children:
        found += refusals(child)
    return list(dict.fromkeys(found))


def cell(text: str) -> str:
    """Text that keeps to its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("\\\\|", "\\|")


def section(crd: dict[str, Any]) -> str:
    """One kind."""
    spec = crd["spec"]
    names = spec["names"]
    (version,) = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"## {names['kind']}",
        "",
        f"`kubectl get {names['plural']}` or `{names['shortNames'][0]}`; {spec['scope'].lower()} scope.",
        "",
        *textwrap.wrap(" ".join(schema["description"].split()), 120),
        "",
    ]
    for part in ("spec", "status"):
        member = schema["properties"][part]
        lines += [f"### {names['kind']}.{part}", "", *textwrap.wrap(" ".join(member["description"].split()), 120), ""]
        rows = [
            f"| {f'**`{path}`**' if required else f'`{path}`'} | {cell(type_of(field))} | {cell(limits(field))} "
            f"| {cell(field.get('description', ''))} |"
            for path, field, required in fields(member)
        ]
        if rows:
            lines += ["| field | type | default, bounds | what it is |", "| --- | --- | --- | --- |", *rows, ""]
    columns = [c["name"] + " (wide)" * bool(c.get("priority")) for c in version["additionalPrinterColumns"]]
    lines += [f"Columns: {', '.join(columns)}.", ""]
    if refused := refusals(schema):
        lines += ["*Refused*:", "", *(f"- {sentence}" for sentence in refused), ""]
    return "\n".join(lines)


BOTH = {
    "concerto_event_loop_held_seconds",
    "concerto_event_loop_max_held_seconds",
    "concerto_events_dropped_total",
    "concerto_leader",
    "concerto_reconciles_total",
}
"""Metrics that operator and autoscaler set, each for itself."""


def metrics() -> str:
    """The metrics of operator and agents."""
    operator = Metrics()
    forecasts = ForecastMetrics(operator.registry)
    families = [*vars(operator).values(), *vars(forecasts).values(), *forecasts.gauges()]
    rows = []
    for metric in families:
        if not hasattr(metric, "_labelnames"):
            continue
        (family,) = metric.describe() if hasattr(metric, "describe") else (metric,)
        name = family.name + "_total" * (family.type == "counter")
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        of = "autoscaler" if name.startswith("concerto_phpa_") else "operator" + ", autoscaler" * (name in BOTH)
        rows.append(f"| `{name}` | {of} | {family.type} | {labels} | {cell(family.documentation)} |")
    for metric in describe(Counters(), Gauges()):
        label = "" if metric.label is None else f"`{metric.label}`"
        rows.append(f"| `{metric.name}` | agent | {metric.type} | {label} | {cell(metric.help)} |")
    text = (
        "Operator and autoscaler serve `:8443/metrics`, each agent `:9103/metrics`, over TLS and to callers that may "
        "get it ([security.md](security.md#ports-and-tokens)). Labels `namespace` and `name` of "
        "`concerto_phpa_*` are those of the PredictiveHPA. No metric is labelled by pod. "
        "`manifests/components/monitoring` has scrape settings, alerts ([runbooks](runbooks.md)) and a dashboard."
    )
    head = ["| metric | of | type | labels | what it is |", "| --- | --- | --- | --- | --- |"]
    return "\n".join(["## Metrics", "", *textwrap.wrap(text, 120), "", *head, *sorted(rows)])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(section, kinds()), metrics()]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
