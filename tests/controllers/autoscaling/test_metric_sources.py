"""Metrics APIs that answer anything: the caller gets an error in words, and nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from concerto.api.predictivehpa import MetricSpec, ObjectReference
from concerto.autoscaling.decision import Failure
from concerto.autoscaling.pods import MetricError, Sample
from concerto.autoscaling.replicas import MAX_REPLICAS, Proposal
from concerto.autoscaling.settings import ControllerSettings, Tolerances
from concerto.controllers.autoscaling.measurements import Measurements, MetricRequest
from concerto.controllers.autoscaling.sources import (
    CustomMetrics,
    PodReader,
    PrometheusMetrics,
    PrometheusServer,
    ResourceMetrics,
    answers,
    external_metric,
)
from concerto.controllers.autoscaling.targets import Scale
from concerto.kube import Resource
from concerto.kube.discovery import Kinds
from support.decoding_turns import decoding_turns
from support.faulty_server import Answer, Faulty, faulty, refuses, says
from support.pod_views import target_pod
from support.traced_memory import traced_memory

NOW = 1_772_366_400.0
STAMP = "2026-03-01T12:00:00Z"
NAMESPACE = ObjectReference("Namespace", "n", "v1")
REPLICA_SETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
USAGE = [{"name": "app", "usage": {"cpu": "5"}}]
ITEM = {
    "metadata": {"name": "p"},
    "describedObject": {"name": "p"},
    "timestamp": STAMP,
    "window": "30s",
    "windowSeconds": 30,
    "value": "5",
    "containers": USAGE,
}


def items(**changed: Any) -> dict[str, Any]:
    return {"items": [ITEM | changed]}


async def ask(source: str, answer: Answer) -> Any:
    group = [] if source in ("resource", "external") else [says(200, {"preferredVersion": {"version": "v1beta2"}})]
    async with faulty([*group, answer]) as server:
        session, clock = server.session, lambda: NOW
        custom = CustomMetrics(session, Kinds(session, clock), timeout_seconds=20)
        match source:
            case "resource":
                found = await ResourceMetrics(session, clock, timeout_seconds=20).usage("n")
                return {name: usage.sample("cpu", None) for name, usage in found.items()}
            case "pods":
                return await custom.of_pods("n", "m", "app=web", "", now=NOW)
            case "object":
                return await custom.of_object("n", "m", NAMESPACE, "")
        return await external_metric(session, "n", "m", "", timeout_seconds=20)


def reader(server: Faulty) -> Measurements:
    """Measurements whose metrics APIs and Prometheus are that server."""
    session, clock = server.session, lambda: NOW
    pods = PodReader(ResourceMetrics(session, clock, timeout_seconds=20), None)
    prometheus = PrometheusMetrics(PrometheusServer(session.config.server), timeout_seconds=20)
    return Measurements(session, Kinds(session, clock), pods, prometheus, timeout_seconds=20)


EVERY = ("resource", "pods", "object", "external")
SELECTED = ("resource", "pods")
GARBAGE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no JSON": ("<html>", EVERY),
    "a list": ("[1]", EVERY),
    "null": ("null", EVERY),
    "nested without end": ("[" * 200_000, EVERY),
    "items that are a word": ({"items": "abc"}, EVERY),
    "items that are numbers": ({"items": [1]}, EVERY),
    "items that are null": ({"items": [None]}, EVERY),
    "no object": ({"items": [{}]}, EVERY),
    "a name that is a list": (items(metadata={"name": []}, describedObject={"name": []}), SELECTED),
    "a time that is a number": (items(timestamp=5), SELECTED),
    "a time that is a word": (items(timestamp="yesterday"), SELECTED),
    "a window beyond all numbers": (items(window="x", windowSeconds=10**400), SELECTED),
    "a window without end": (items(windowSeconds="Infinity"), ("pods",)),
    "a window that is no number": (items(windowSeconds="NaN"), ("pods",)),
    "a window below nothing": (items(windowSeconds=-5), ("pods",)),
    "a value that is no number": (items(value="NaN", containers=[{"name": "a", "usage": {"cpu": "NaN"}}]), EVERY),
    "a value that is an object": (items(value={}, containers=[{"name": "a", "usage": {"cpu": {}}}]), EVERY),
    "no value": (items(value=None, containers=[{"name": "a", "usage": {"cpu": None}}]), EVERY),
    "containers that are a number": (items(containers=5), ("resource",)),
    "an error page": ("<p>" * 100_000, EVERY),
}


@pytest.mark.parametrize(
    ("body", "source"),
    [(body, source) for body, sources in GARBAGE.values() for source in sources],
    ids=[f"{sentence}-{source}" for sentence, (_, sources) in GARBAGE.items() for source in sources],
)
async def test_garbage_is_an_error_in_words(body, source):
    with pytest.raises(MetricError) as reported:
        await ask(source, says(200, body if isinstance(body, str) else json.dumps(body)))
    assert 10 < len(str(reported.value)) < 1000


@pytest.mark.parametrize("source", EVERY)
async def test_a_refusal_of_any_length_is_reported_briefly(source):
    with pytest.raises(MetricError, match=r"unable to fetch metrics from .* metrics API") as reported:
        await ask(source, refuses(400, "BadRequest", message="m" * 100_000))
    assert len(str(reported.value)) < 1000


@pytest.mark.parametrize("source", EVERY)
async def test_a_refusal_has_nothing_that_a_terminal_would_obey(source):
    with pytest.raises(MetricError, match="gone�") as reported:
        await ask(source, refuses(400, "BadRequest", message="\x1b[2Jgone\n"))
    assert str(reported.value).isprintable()


@pytest.mark.parametrize("source", EVERY)
async def test_an_answer_without_end_is_not_taken_in(source, monkeypatch):
    assert answers.LARGEST_BYTES > 2**20
    monkeypatch.setattr(answers, "LARGEST_BYTES", 10_000)
    with pytest.raises(MetricError, match="the answer is larger than 10000 bytes"):
        await ask(source, says(200, items(padding="x" * 20_000)))


MANY = b"[]," * (2**19)
LONG = {
    "a list of numbers": b'{"items":[' + b"0," * 2**21 + b"0]}",
    "lists in lists": b'{"items":[' + b"[[[[[[[[]]]]]]]]," * 2**18 + b"0]}",
    "no list": b'{"x":[' + MANY + b"0]}",
    "an item of many values": b'{"items":[{"x":[' + MANY + b"0]}]}",
    "an item of many values beside ordinary ones": b'{"items":[' + orjson.dumps(ITEM) + b',{"x":[' + MANY + b"0]}]}",
    "no JSON": MANY,
}


@pytest.mark.parametrize("body", LONG.values(), ids=LONG)
@pytest.mark.parametrize("source", EVERY)
async def test_of_an_answer_of_many_values_few_are_decoded(source, body):
    """Decoded, a list of two letters takes 56 bytes: 32 MiB of them would take a gigabyte, and hold the event loop."""
    with traced_memory() as memory, pytest.raises(MetricError) as reported:
        await ask(source, says(200, body.decode()))
    assert len(str(reported.value)) < 1000
    assert memory.peak < 16 * len(body)


async def test_of_the_answer_that_names_the_versions_of_an_api_little_is_taken_in():
    async with faulty([says(200, (b"[" + MANY + b"0]").decode())]) as server:
        custom = CustomMetrics(server.session, Kinds(server.session, lambda: NOW), timeout_seconds=20)
        with pytest.raises(MetricError, match="the answer is larger than 65536 bytes"):
            await custom.of_object("n", "m", NAMESPACE, "")


@pytest.mark.parametrize("source", ["resource", "pods", "external"])
async def test_of_a_long_answer_few_items_are_read_without_a_pause(source, monkeypatch):
    """Anybody may make 30 MiB of series for a metrics adapter to sum up: at once, they hold the loop for seconds."""
    body = b'{"items":[' + b",".join(
        orjson.dumps(ITEM | {"metadata": {"name": f"p{n}"}, "describedObject": {"name": f"p{n}"}}) for n in range(1000)
    ) + b"]}"  # fmt: skip
    async with decoding_turns(monkeypatch) as decoded_in:
        await ask(source, says(200, body.decode()))
    assert decoded_in.total() >= 1000
    assert max(decoded_in.values()) <= 200


@pytest.mark.parametrize("stamp", [None, STAMP])
async def test_readings_that_do_not_say_when_they_were_taken_count_as_for_hpa(stamp):
    """An adapter that leaves the time out sends null."""
    said = items(timestamp=stamp)
    assert await ask("pods", says(200, said)) == {"p": Sample(5000, NOW, 30.0)}
    assert await ask("object", says(200, said)) == await ask("external", says(200, said)) == 5000


async def test_of_several_results_about_one_object_none_counts():
    """autoscaling/v2 refuses them, too: one of many would be any."""
    with pytest.raises(MetricError, match="returned 2 results when asked for exactly one"):
        await ask("object", says(200, {"items": [ITEM, ITEM | {"value": "90"}]}))


async def test_namespaces_that_nobody_asks_about_any_more_are_forgotten():
    now = [NOW]
    async with faulty([says(200, items())]) as server:
        source = ResourceMetrics(server.session, lambda: now[0], timeout_seconds=20)
        for number in range(100):
            await source.usage(f"n{number}")
            now[0] += 60
        assert len(source._kept) <= 6


async def test_a_clock_that_is_set_back_does_not_make_an_old_answer_fresh():
    now = [NOW]
    async with faulty([says(200, items())]) as server:
        source = ResourceMetrics(server.session, lambda: now[0], timeout_seconds=20)
        await source.usage("n")
        await source.usage("n")
        now[0] -= 3600
        await source.usage("n")
        assert len(server.seen) == 2


async def test_the_last_value_of_a_pod_that_has_ended_does_not_count():
    """Pods that have ended are not followed, and a metrics API may still have values of them."""
    served = [
        ITEM | {"describedObject": {"name": name}, "value": value} for name, value in (("p", "11"), ("old", "90"))
    ]
    group = says(200, {"preferredVersion": {"version": "v1beta2"}})
    async with faulty([group, says(200, {"items": served})]) as server:
        measurements = reader(server)
        scale = Scale(1, 1, "app=web", REPLICA_SETS, {})
        tolerances = Tolerances(0.1, 0.1)
        request = MetricRequest("n", scale, [target_pod("p")], tolerances, ControllerSettings(), NOW)
        measured = await measurements.measure([MetricSpec("Pods", "qps", average_value=10_000)], request)
    (proposal,) = measured.outcomes
    assert (proposal.replicas, proposal.average_value) == (1, 11_000)


ACTIVATION = {
    "a value up to the activation asks for nothing": (5_000, 5, 0),
    "a value above it counts whole": (5_000, 6, 6),
    "without an activation every value counts": (None, 1, 1),
}


@pytest.mark.parametrize(("activation", "value", "replicas"), ACTIVATION.values(), ids=ACTIVATION)
@pytest.mark.parametrize("current", [0, 3])
async def test_a_value_up_to_the_activation_counts_as_none(activation, value, replicas, current):
    async with faulty([says(200, items(value=str(value)))]) as server:
        measurements = reader(server)
        scale = Scale(current, current, "app=web", REPLICA_SETS, {})
        request = MetricRequest("n", scale, [], Tolerances(0.0, 0.0), ControllerSettings(), NOW)
        metric = MetricSpec("External", "queue", average_value=1_000, activation=activation)
        measured = await measurements.measure([metric], request)
    (proposal,) = measured.outcomes
    assert proposal.replicas == replicas


def test_the_activation_is_read_and_is_no_part_of_what_the_status_repeats():
    body = {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "1"}, "activationValue": "500m"}
    metric = MetricSpec.from_raw({"type": "External", "external": body})
    assert (metric.activation, metric.identity) == (500, {"metric": {"name": "queue"}})


async def formula(*answers: Answer, expression: str = "hits + 2 * jobs") -> Proposal | Failure:
    inputs = tuple((name, MetricSpec("External", name)) for name in ("hits", "jobs"))
    metric = MetricSpec("Formula", "load", average_value=10_000, expression=expression, inputs=inputs)
    async with faulty(answers) as server:
        scale = Scale(2, 2, "app=web", REPLICA_SETS, {})
        request = MetricRequest("n", scale, [], Tolerances(0.0, 0.0), ControllerSettings(), NOW)
        (outcome,) = (await reader(server).measure([metric], request)).outcomes
    return outcome


async def test_a_formula_takes_the_values_of_its_inputs():
    found = await formula(says(200, items(value="15")), says(200, items(value="5500m")))
    assert (found.replicas, found.demand, found.metric) == (3, 2.6, "formula load")


PRECISE = {
    "of Prometheus": ({"query": "seconds"}, says(200, {"data": {"resultType": "scalar", "result": [1.5, "0.0004"]}})),
    "of external metrics": ({}, says(200, items(value="400u"))),
}


@pytest.mark.parametrize(("fields", "answer"), PRECISE.values(), ids=PRECISE)
async def test_a_formula_takes_values_below_a_thousandth_as_they_are(fields, answer):
    each = MetricSpec("Prometheus" if fields else "External", "seconds", **fields)
    inputs = (("queue", MetricSpec("External", "queue")), ("seconds", each))
    metric = MetricSpec("Formula", "load", average_value=1_000, expression="queue * seconds", inputs=inputs)
    async with faulty([says(200, items(value="10000")), answer]) as server:
        request = MetricRequest(
            "n", Scale(2, 2, "a=b", REPLICA_SETS, {}), [], Tolerances(0.0, 0.0), ControllerSettings(), NOW
        )
        (outcome,) = (await reader(server).measure([metric], request)).outcomes
    assert (outcome.replicas, outcome.demand) == (4, 4.0)


async def test_a_metric_whose_selector_is_not_valid_is_not_asked_for():
    wrong = MetricSpec("External", "queue", value=1_000, selector_error="the metric's selector: no")
    inputs = (("queue", wrong),)
    metrics = [wrong, MetricSpec("Formula", "load", value=1_000, expression="queue", inputs=inputs)]
    async with faulty([says(200, items(value="15"))]) as server:
        scale = Scale(2, 2, "app=web", REPLICA_SETS, {})
        request = MetricRequest("n", scale, [], Tolerances(0.0, 0.0), ControllerSettings(), NOW)
        outcomes = (await reader(server).measure(metrics, request)).outcomes
        assert [outcome.reason for outcome in outcomes] == ["FailedGetExternalMetric", "FailedGetFormulaMetric"]
        assert all("the metric's selector: no" in outcome.message for outcome in outcomes)
        assert server.seen == []


async def test_a_formula_with_an_input_that_is_not_known_is_not_known():
    found = await formula(says(200, items(value="15")), says(200, {"items": []}))
    assert found.reason == "FailedGetFormulaMetric"
    assert "load formula value: input jobs: no metrics returned" in found.message


async def test_a_formula_that_is_not_valid_is_reported_before_its_inputs_are_read():
    found = await formula(refuses(500, "InternalError"), refuses(500, "InternalError"), expression="hits + job")
    assert found.reason == "FailedGetFormulaMetric"
    assert "the formula is not valid: job is not the name of an input" in found.message


@pytest.mark.parametrize("expression", ["hits * 1e306", "hits * 1e300 + jobs"])
async def test_a_formula_may_give_more_than_can_be_written(expression):
    found = await formula(says(200, items(value="15")), says(200, items(value="1")), expression=expression)
    assert found.replicas == MAX_REPLICAS
