"""PredictiveHPA as a typed view: the spec of autoscaling/v2's HorizontalPodAutoscaler, and how forecasts are used.

Defaults are those of the CRD; they stand here a second time only for objects that were written before a field existed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.prediction import PredictionSpec
from concerto.api.quantities import milli, parse_duration, parse_quantity

Raw = Mapping[str, Any]
_API_VERSION = re.compile(r"(([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[a-z0-9]+)?")
MetricType = Literal["Resource", "ContainerResource", "Pods", "Object", "External", "Prometheus", "Formula"]
_MEMBER: dict[str, str] = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
    "Prometheus": "prometheus",
    "Formula": "formula",
}

_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9][-a-z0-9.]*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
_NOT_IN_STATUS = ("target", "activationValue", "query", "expression", "inputs")
"""Members of a metric that ``status.currentMetrics`` does not repeat."""


@dataclass(frozen=True)
class ObjectReference:
    """``scaleTargetRef`` or ``describedObject``: an object in the PredictiveHPA's own namespace."""

    kind: str
    name: str
    api_version: str = ""

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """API version; may be empty."""
        return self.api_version.rpartition("/")[2]

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: a part of it cannot stand in a path, so that it could lead to another object than it names.
        """
        version = raw.get("apiVersion", "")
        if not _API_VERSION.fullmatch(version):
            raise ValueError(f"{version!r} is not an API version (example: apps/v1)")
        return cls(_segment(raw["kind"]), _segment(raw["name"]), version)


@dataclass(frozen=True)
class MetricSpec:
    """One of ``spec.metrics``. Amounts are thousandths; exactly one target is set in an object the CRD has accepted.

    Attributes:
        type: one of autoscaling/v2's five, Prometheus or Formula.
        name: of the resource or the metric; for Prometheus and Formula, what status and messages call it.
        container: for ContainerResource.
        selector: of the metric's labels, as a query parameter; empty for none.
        described: for Object.
        utilization: target in percent of the request.
        average_value: target per pod.
        value: target in all.
        activation: a value up to this one counts as 0; None: every value counts.
        query: for Prometheus: PromQL.
        expression: for Formula: of the inputs' names.
        inputs: for Formula: by name, metrics of type Prometheus or External without a target.
        selector_error: why ``selector`` is not valid; empty if it is.
        identity: the part of the spec that the status repeats.
    """

    type: MetricType
    name: str
    container: str | None = None
    selector: str = ""
    described: ObjectReference | None = None
    utilization: int | None = None
    average_value: int | None = None
    value: int | None = None
    activation: int | None = None
    query: str = ""
    expression: str = ""
    inputs: tuple[tuple[str, MetricSpec], ...] = ()
    selector_error: str = ""
    identity: Raw | None = None

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: a quantity is not valid.
        """
        body = raw[_MEMBER[raw["type"]]]
        metric = body.get("metric") or {}
        target = body["target"]
        average, value = target.get("averageValue"), target.get("value")
        if raw["type"] == "Object":  # may have both; the other one counts for nothing, as in autoscaling/v2
            average, value = (None, value) if target["type"] == "Value" else (average, None)
        described, activation = body.get("describedObject"), body.get("activationValue")
        return cls(
            type=raw["type"],
            name=body.get("name") or _segment(metric["name"]),
            container=body.get("container"),
            selector=format_selector(metric.get("selector")),
            described=ObjectReference.from_raw(described) if described else None,
            utilization=target.get("averageUtilization"),
            average_value=None if average is None else milli(average),
            value=None if value is None else milli(value),
            activation=None if activation is None else milli(activation),
            query=body.get("query", ""),
            expression=body.get("expression", ""),
            inputs=tuple((each["name"], _input(each)) for each in body.get("inputs") or ()),
            selector_error=selector_error(metric.get("selector")),
            identity={k: v for k, v in body.items() if k not in _NOT_IN_STATUS},
        )

    @property
    def member(self) -> str:
        """The key of its body, in spec and status."""
        return _MEMBER[self.type]

    @property
    def needs_pods(self) -> bool:
        """Whether it is measured at the target's pods, so that there is nothing to measure without any."""
        return self.type in ("Resource", "ContainerResource", "Pods")

    @property
    def failure_reason(self) -> str:
        """Reason of condition ScalingActive when it cannot be had, as in autoscaling/v2."""
        return f"FailedGet{self.type}Metric"

    @property
    def target_key(self) -> tuple[Any, ...]:
        """What demand, counted in replicas, is relative to."""
        what = self.query or self.expression or self.name
        inputs = ";".join(f"{name}={'/'.join(map(str, each.target_key))}" for name, each in self.inputs)
        where = (self.type, what + inputs, self.container, self.selector, self.described)
        return (*where, self.utilization, self.average_value, self.value)


def _input(raw: Raw) -> MetricSpec:
    """An input of a formula."""
    if "prometheus" in raw:
        return MetricSpec("Prometheus", raw["name"], query=raw["prometheus"]["query"])
    metric = raw["external"]["metric"]
    selector = metric.get("selector")
    return MetricSpec(
        "External",
        _segment(metric["name"]),
        selector=format_selector(selector),
        selector_error=selector_error(selector),
    )


@dataclass(frozen=True)
class PolicySpec:
    """One of a behaviour's policies."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclass(frozen=True)
class RulesSpec:
    """``behavior.scaleUp`` or ``scaleDown`` as written; None is what was left out."""

    policies: tuple[PolicySpec, ...] | None = None
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    stabilization_seconds: int | None = None
    tolerance: float | None = None

    @classmethod
    def from_raw(cls, raw: Raw | None) -> Self:
        """As the API server holds it."""
        raw = raw or {}
        policies = raw.get("policies")
        tolerance = raw.get("tolerance")
        return cls(
            None
            if policies is None
            else tuple(PolicySpec(p["type"], p["value"], p["periodSeconds"]) for p in policies),
            raw.get("selectPolicy"),
            raw.get("stabilizationWindowSeconds"),
            None if tolerance is None else float(parse_quantity(tolerance)),
        )


@dataclass(frozen=True)
class ScheduleSpec:
    """One of ``spec.schedules``: replicas between two cron expressions; exactly one number is given."""

    name: str
    start: str
    end: str
    time_zone: str = "UTC"
    min_replicas: int | None = None
    replicas: int | None = None

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """As the API server holds it."""
        return cls(
            raw["name"],
            raw["start"],
            raw["end"],
            raw.get("timeZone", cls.time_zone),
            raw.get("minReplicas"),
            raw.get("replicas"),
        )


@dataclass(frozen=True)
class FallbackSpec:
    """``spec.fallback``: at least so many replicas once no metric has had an answer for so long.

    Attributes:
        replicas: never fewer.
        after_seconds: for how long no metric must have had an answer.
        earlier_days: whether what the last days needed at this time of day counts if it is more.
    """

    replicas: int
    after_seconds: float = 180.0
    earlier_days: bool = False

    @classmethod
    def from_raw(cls, raw: Raw) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: the duration is not valid.
        """
        after = parse_duration(raw["after"]) if "after" in raw else cls.after_seconds
        return cls(raw["replicas"], after, raw.get("earlierDays", cls.earlier_days))


PAUSED, PAUSED_REPLICAS = "concerto.dev/paused", "concerto.dev/paused-replicas"
"""Annotations that pause scaling. They are not in the spec, so that GitOps neither sets nor undoes them."""


@dataclass(frozen=True)
class Pause:
    """Scaling is paused.

    Attributes:
        annotation: that asks for it.
        replicas: what the target is scaled to meanwhile; None: it is left as it is.
        error: why a value was not understood; scaling is paused all the same.
    """

    annotation: str
    replicas: int | None = None
    error: str = ""

    @classmethod
    def from_metadata(cls, metadata: Raw) -> Self | None:
        """What the annotations ask for; None where scaling is not paused."""
        annotations = metadata.get("annotations") or {}
        if (text := annotations.get(PAUSED_REPLICAS)) is not None:
            if text.isascii() and text.isdigit() and len(text) <= 9:
                return cls(PAUSED_REPLICAS, int(text))
            error = f"{text[:32]!r} is not a number of replicas: write it like '3'"
            return cls(PAUSED_REPLICAS, None, f"annotation {PAUSED_REPLICAS}: {error}")
        match annotations.get(PAUSED):
            case None | "false":
                return None
            case "true":
                return cls(PAUSED)
            case text:
                return cls(PAUSED, None, f"annotation {PAUSED}: {text[:32]!r} is neither 'true' nor 'false'")


@dataclass(frozen=True)
class PredictiveHPA:
    """The spec of a PredictiveHPA.

    Attributes:
        namespace: of the object and of its target.
        name: of the object.
        uid: of the object.
        generation: of the spec.
        target: what is scaled.
        min_replicas: never fewer.
        max_replicas: never more.
        metrics: what is measured.
        scale_up: None where there is no ``behavior`` at all, which makes other rules apply.
        scale_down: the same.
        prediction: how forecasts are used.
        schedules: replicas by the clock.
        fallback: replicas while no metric has an answer; None: the present ones are kept.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    target: ObjectReference
    min_replicas: int
    max_replicas: int
    metrics: tuple[MetricSpec, ...]
    scale_up: RulesSpec | None
    scale_down: RulesSpec | None
    prediction: PredictionSpec
    schedules: tuple[ScheduleSpec, ...] = ()
    fallback: FallbackSpec | None = None

    @classmethod
    def from_raw(cls, obj: Raw) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: something in the spec is not what it should be; the message says what.
            KeyError: something is missing that the CRD requires.
        """
        meta, spec = obj["metadata"], obj["spec"]
        behavior = spec.get("behavior")
        metrics = tuple(MetricSpec.from_raw(m) for m in spec.get("metrics") or (_DEFAULT_METRIC,))
        return cls(
            namespace=meta["namespace"],
            name=meta["name"],
            uid=meta["uid"],
            generation=meta.get("generation", 0),
            target=ObjectReference.from_raw(spec["scaleTargetRef"]),
            min_replicas=spec.get("minReplicas", 1),
            max_replicas=spec["maxReplicas"],
            metrics=metrics,
            scale_up=None if behavior is None else RulesSpec.from_raw(behavior.get("scaleUp")),
            scale_down=None if behavior is None else RulesSpec.from_raw(behavior.get("scaleDown")),
            prediction=PredictionSpec.from_raw(spec.get("prediction")),
            schedules=tuple(ScheduleSpec.from_raw(s) for s in spec.get("schedules") or ()),
            fallback=FallbackSpec.from_raw(spec["fallback"]) if spec.get("fallback") else None,
        )


_DEFAULT_METRIC: Raw = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def format_selector(raw: Raw | None) -> str:
    """A ``metav1.LabelSelector`` as a query parameter: ``a=b,c in (d,e),!f``."""
    parts = [f"{k}={v}" for k, v in sorted(((raw or {}).get("matchLabels") or {}).items())]
    for each in (raw or {}).get("matchExpressions") or ():
        key, values = each["key"], ",".join(each.get("values") or ())
        match each["operator"]:
            case "In":
                parts.append(f"{key} in ({values})")
            case "NotIn":
                parts.append(f"{key} notin ({values})")
            case "Exists":
                parts.append(key)
            case "DoesNotExist":
                parts.append(f"!{key}")
    return ",".join(parts)


def selector_error(raw: Raw | None) -> str:
    """Why a ``metav1.LabelSelector`` is not valid, as its text would then select something else; empty if it is.

    Source: ``LabelSelectorAsSelector`` of k8s.io/apimachinery, whose rules are those of labels.
    """
    labels = [(key, [value]) for key, value in ((raw or {}).get("matchLabels") or {}).items()]
    for each in (raw or {}).get("matchExpressions") or ():
        key, values, operator = each["key"], each.get("values") or [], each["operator"]
        if (operator in ("In", "NotIn")) != bool(values):
            wrong = "needs values" if operator in ("In", "NotIn") else "takes no values"
            return f"the metric's selector: operator {operator} of label {key[:63]!r} {wrong}"
        labels.append((key, values))
    for key, values in labels:
        if not _LABEL_KEY.fullmatch(key):
            return f"the metric's selector: {key[:63]!r} is not a label's name: write it like app or example.com/team"
        for value in values:
            if not _LABEL_VALUE.fullmatch(value):
                return f"the metric's selector: {value[:63]!r} is not a value of a label: write it like web"
    return ""


def _segment(name: str) -> str:
    """The name, if it is one segment of a path, as the API server asks of names."""
    if name in (".", "..") or "/" in name or "%" in name:
        raise ValueError(f"{name!r} is not a valid name: it may not contain / or %, nor be . or ..")
    return name
