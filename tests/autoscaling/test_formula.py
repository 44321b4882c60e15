"""Formulas over metrics: what they can compute, and that they can do nothing else."""

from __future__ import annotations

import contextlib
import keyword
import math
import random
import re
from pathlib import Path

import pytest

from concerto.autoscaling.formula import FUNCTIONS, evaluate
from concerto.autoscaling.pods import MetricError
from support.traced_memory import traced_memory

VALUES = {"queue": 30.0, "jobs": 2.0, "none": 0.0}
GOOD = {
    "queue / 10 + 2 * jobs": 7.0,
    "max(queue, jobs, 40)": 40.0,
    "min(queue, 10) - -jobs": 12.0,
    "queue if jobs > 1 and not none else 0": 30.0,
    "(jobs >= 2) * 5": 5.0,
    "ceil(queue / 7) + floor(2.5) + abs(-1) + queue % 7": 10.0,
}


@pytest.mark.parametrize(("expression", "value"), GOOD.items())
def test_arithmetic(expression, value):
    assert evaluate(expression, VALUES) == value


BAD = {
    "queue / none": "divides by zero",
    "queue % none": "divides by zero",
    "1e308 * 10": "gives inf, which is not a load",
    "stack + 1": "stack is not the name of an input",
    "queue +": "not valid",
    "": "not valid",
    "queue ** 2": "can't compute queue ** 2",
    "queue // 2 + 1": "can't compute queue // 2",
    "2 << 40": "can't compute 2 << 40",
    "queue in jobs": "can't compute queue in jobs",
    "queue is not jobs": "can't compute queue is not jobs",
    "0 < queue not in jobs": "can't compute",
    "(queue, jobs)": "can't compute",
    "max(queue, key=abs)": "can't compute",
    "max(*queue)": "can't compute",
    "queue()": "'queue' not defined",
    "queue(1)(2)": "can't compute",
    "(x for x in queue)": "can't compute",
    "queue.real": "can't compute queue.real",
    "().__class__": "not valid",
    "[1, 2]": "not valid",
    "queue[0]": "not valid",
    "'a' * 3": "'a' is not a number",
    "f'{queue}'": "not valid",
    "True + 1": "True is not a number",
    "lambda: 1": "not valid",
    "[x for x in (1, 2)]": "not valid",
    "__import__('os')": "__import__ is not a function (abs, ceil, floor, max, min)",
    "rand()": "rand is not a function",
    "queue if queue > 0 else quene": "quene is not the name of an input",
    "abs": "abs is a function: write it like abs(queue)",
    "max(abs, ceil)": "is a function",
    "max()": "not valid",
    "queue = 5": "not valid",
    "import os": "not valid",
    "1; 2": "not valid",
    "(" * 500 + "1" + ")" * 500: "not valid",
    "-" * 1000 + "1": "nested too deeply",
    "1+" * 600 + "1": "longer than 1024",
    "9" * 400 + " * 1.0": "not valid",
}


@pytest.mark.parametrize(("expression", "words"), BAD.items(), ids=lambda text: text[:30])
def test_an_error_is_in_words(expression, words):
    with pytest.raises(MetricError, match=re.escape(words)) as raised:
        evaluate(expression, VALUES)
    assert len(str(raised.value)) < 400


WORDS = (
    *("queue", "jobs", "in", "is", "not", "and", "or", "if", "else", "for", "True", "min", "abs", "1", "2.5", "1e308"),
    *("+", "-", "*", "/", "%", "**", "//", "(", ")", ",", ".", "<", ">", "==", "="),
)


def test_whatever_is_written_is_a_number_or_an_error_in_words():
    chosen = random.Random(1)
    for _ in range(3000):
        text = " ".join(chosen.choice(WORDS) for _ in range(chosen.randint(1, 7)))
        with contextlib.suppress(MetricError):
            assert math.isfinite(evaluate(text, VALUES))


def test_formulas_take_no_memory_once_they_are_computed():
    with traced_memory() as memory:
        for number in range(20):
            evaluate(f"{number}" + "+queue" * 100, VALUES)
    assert memory.held < 200_000


def test_the_crd_refuses_each_name_that_an_expression_can_not_have_as_an_input():
    text = (Path(__file__).parents[2] / "crds" / "predictivehpas.yaml").read_text()
    (names,) = re.findall(r"A-Za-z0-9_\]\*\$'\) && !\(self in \[(.*?)\]\)", text, flags=re.DOTALL)
    assert set(re.findall(r"'(\w+)'", names)) == {*keyword.kwlist, *FUNCTIONS}
