"""A default has one value: in the CRD, in the code that reads objects without it, and in the docs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from concerto.api.prediction import PredictionSpec
from concerto.api.predictivehpa import PredictiveHPA
from concerto.autoscaling.settings import DEFAULT_SCALE_DOWN, DEFAULT_SCALE_UP, ControllerSettings
from concerto.controllers.autoscaling.spec import bounds_of
from support.crd_schemas import REPOSITORY, stored_spec, structural_schema

MINIMAL = {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 9}
PREDICTION = structural_schema("PredictiveHPA")["properties"]["spec"]["properties"]["prediction"]["properties"]
PAGE = (REPOSITORY / "docs" / "autoscaling.md").read_text()


def read(spec: dict[str, Any]) -> PredictiveHPA:
    return PredictiveHPA.from_raw({"metadata": {"namespace": "n", "name": "web", "uid": "u"}, "spec": spec})


def test_an_object_that_says_nothing_is_read_the_same_with_and_without_the_crds_defaults():
    stored = stored_spec("PredictiveHPA", MINIMAL)
    assert read(stored).prediction == read(MINIMAL).prediction == PredictionSpec()
    assert (read(stored).min_replicas, read(stored).metrics) == (read(MINIMAL).min_replicas, read(MINIMAL).metrics)


def test_an_empty_behavior_has_the_defaults_of_the_code():
    stored = stored_spec("PredictiveHPA", {**MINIMAL, "behavior": {}})
    behavior = bounds_of(read(stored), ControllerSettings()).behavior
    assert behavior is not None
    assert (behavior.scale_up, behavior.scale_down) == (DEFAULT_SCALE_UP, DEFAULT_SCALE_DOWN)


def documented() -> dict[str, str]:
    """Defaults in the page's table, by field of spec.prediction."""
    rows = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", PAGE, re.MULTILINE)
    return {name: default.strip() for names, default in rows for name in re.findall(r"`([a-zA-Z.]+)`", names)}


@pytest.mark.parametrize("field", PREDICTION)
def test_the_page_gives_the_crds_default(field):
    schema = PREDICTION[field]
    if schema["type"] == "object":
        nested = {f"{field}.{name}": member for name, member in schema["properties"].items() if "default" in member}
    else:
        nested = {field: schema}
    for name, member in nested.items():
        default = member["default"]
        assert documented()[name] == (str(default).lower() if isinstance(default, bool) else default)
