"""Equal parts of many objects, which are held once."""

from __future__ import annotations

import json

import orjson
import pytest

from concerto.api.shared_parts import SharedParts
from support.traced_memory import traced_memory


def pod(name, **spec):
    return {"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"tolerations": [{"key": "k"}], **spec}}


def test_equal_parts_of_two_objects_are_one():
    parts = SharedParts()
    a, b = parts.share(pod("a")), parts.share(pod("b"))
    assert (a, b) == (pod("a"), pod("b"))
    assert a["metadata"]["labels"] is b["metadata"]["labels"]
    assert a["spec"]["tolerations"] is b["spec"]["tolerations"]


def test_what_differs_stays_different():
    parts = SharedParts()
    kinds = [{"x": 1}, {"x": 1.0}, {"x": True}, {"x": "1"}, {"x": None}, {}, []]
    shared = [parts.share({"spec": {"part": kind}})["spec"]["part"] for kind in kinds]
    assert [json.dumps(each) for each in shared] == [json.dumps(each) for each in kinds]


def test_an_object_keeps_a_part_that_is_forgotten():
    parts = SharedParts(max_bytes=1000)
    first = parts.share(pod("a"))
    for number in range(100):
        parts.share(pod("b", nodeSelector={"number": str(number)}))
    assert first == pod("a")
    assert parts.share(pod("c")) == pod("c")


def test_what_is_asked_for_again_and_again_is_not_forgotten():
    parts = SharedParts(max_bytes=3000)
    labels = parts.share(pod("a"))["metadata"]["labels"]
    for number in range(100):
        assert parts.share(pod("b", nodeSelector={"number": str(number)}))["metadata"]["labels"] is labels


SHAPES = {
    "labels": lambda n: {"a": f"{n:x}"},
    "many labels": lambda n: {f"{k}-{n:x}": f"{n:x}" for k in range(50)},
    "tolerations": lambda n: [{"key": f"{n:x}"} for _ in range(50)],
    "values": lambda n: [{"values": [f"{k:x}{n:x}" for k in range(200)]}],
    "numbers": lambda n: [300 + n + k for k in range(200)],
    "lists": lambda n: [[n], [], [], [], []],
    "maps": lambda n: [{}, {}, {}, {"a": n}],
    "floats": lambda n: [n + 0.5, 1.5, 2.5, 3.5],
    "long texts": lambda n: {"a": f"{n:x}" + "x" * 5000},
    "wide texts": lambda n: {"a": f"{n:x}" + "\U0001f600" * 1000},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_memory_for_what_is_remembered_is_bounded(shape):
    most = 300_000
    parts = SharedParts(max_bytes=most)
    texts = [orjson.dumps(shape(number)) for number in range(2 * most // 200)]
    with traced_memory() as memory:
        for text in texts:
            parts.read(bytes(memoryview(text)))
    assert most / 4 < memory.held < 2 * most
    assert parts._earlier


def test_a_long_part_is_not_remembered():
    parts = SharedParts(max_part_bytes=50)
    a, b = (parts.share(pod(name, nodeSelector={"long": "x" * 50})) for name in "ab")
    assert a["spec"]["nodeSelector"] == b["spec"]["nodeSelector"]
    assert a["spec"]["nodeSelector"] is not b["spec"]["nodeSelector"]


def test_a_part_that_is_nested_too_deeply_is_left_as_it_is():
    deep = []
    for _ in range(500):
        deep = [deep]
    assert SharedParts().share({"spec": {"deep": deep}})["spec"]["deep"] is deep
