"""The CRDs as JSON schemas, read as the API server reads them: strictly, and with defaults filled in."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker

from concerto.api.timestamps import parse_timestamp

REPOSITORY = Path(__file__).resolve().parents[2]
FORMATS = FormatChecker(formats=())
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""A tenth of the time, where PyYAML has it."""


@FORMATS.checks("date-time", raises=ValueError)
def _is_time(value: object) -> bool:
    return not isinstance(value, str) or parse_timestamp(value) > 0


def documents(source: Path | str) -> list[dict[str, Any]]:
    """The objects of a YAML file, or of a text."""
    text = source.read_text() if isinstance(source, Path) else source
    return [document for document in yaml.load_all(text, YAML_LOADER) if document]


def yaml_of_docs() -> Iterator[tuple[str, int, str]]:
    """Each YAML example of the docs: name of the page, number of the example there, and text."""
    for page in sorted((REPOSITORY / "docs").glob("*.md")):
        blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
        yield from ((page.stem, number, text) for number, text in enumerate(blocks))


CRDS: dict[str, dict[str, Any]] = {
    crd["spec"]["names"]["kind"]: crd
    for path in sorted((REPOSITORY / "crds").glob("*.yaml"))
    for crd in documents(path)
    if crd["kind"] == "CustomResourceDefinition"
}


def structural_schema(kind: str) -> dict[str, Any]:
    """The schema as it stands in the CRD."""
    (version,) = CRDS[kind]["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The same with fields that it does not name refused, as kubectl's strict validation does."""
    strict = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-")}
    if "properties" in schema:
        strict["properties"] = {name: _strict(member) for name, member in schema["properties"].items()}
        strict["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        strict["additionalProperties"] = _strict(schema["additionalProperties"])
    elif schema.get("type") == "object":
        strict["additionalProperties"] = False
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    return strict


def problems(obj: dict[str, Any]) -> list[str]:
    """What is wrong with an object of one of our kinds, each with its field; metadata is not looked at."""
    return [f"{error.json_path}: {error.message}" for error in _validator(obj["kind"]).iter_errors(obj)]


@cache
def _validator(kind: str) -> Draft202012Validator:
    schema = _strict(structural_schema(kind))
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft202012Validator(schema, format_checker=FORMATS)


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """The value as the API server stores it: defaults filled in where a field is left out, outermost first."""
    value = copy.deepcopy(value)
    if isinstance(value, dict):
        for name, member in schema.get("properties", {}).items():
            if name not in value and "default" in member:
                value[name] = member["default"]
            if name in value:
                value[name] = with_defaults(member, value[name])
    if isinstance(value, list):
        return [with_defaults(schema.get("items", {}), item) for item in value]
    return value


def stored_spec(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as the API server stores it."""
    stored: dict[str, Any] = with_defaults(structural_schema(kind), {"spec": spec})["spec"]
    return stored


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema with its path; ``[]`` stands for an item and ``{}`` for a value of a map."""
    for name, member in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, member
        yield from fields(member, here)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield path + mark, schema[key]
            yield from fields(schema[key], path + mark)
