"""Formulas over metrics: what they can compute, and that they can do nothing else."""

from __future__ import annotations

import pytest

from concerto.autoscaling.formula import evaluate
from concerto.autoscaling.pods import MetricError

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
    "stack + 1": "'stack' is not defined",
    "queue +": "not valid",
    "": "not valid",
    "queue ** 2": "not valid",
    "2 << 40": "not valid",
    "queue.real": "not valid",
    "().__class__": "not valid",
    "[1, 2]": "not valid",
    "queue[0]": "not valid",
    "'a' * 3": "'a' is not a number",
    "f'{queue}'": "not valid",
    "True + 1": "True is not a number",
    "lambda: 1": "not valid",
    "[x for x in (1, 2)]": "not valid",
    "__import__('os')": "is not a number",
    "rand()": "not valid",
    "abs": "not valid",
    "max()": "not valid",
    "queue = 5": "not valid",
    "import os": "not valid",
    "1; 2": "not valid",
    "(" * 500 + "1" + ")" * 500: "not valid",
    "-" * 1000 + "1": "",
    "1+" * 600 + "1": "longer than 1024",
    "9" * 400 + " * 1.0": "not valid",
}


@pytest.mark.parametrize(("expression", "words"), [(k, v) for k, v in BAD.items() if v], ids=lambda text: text[:30])
def test_an_error_is_in_words(expression, words):
    with pytest.raises(MetricError, match=words.replace("(", "[(]")) as raised:
        evaluate(expression, VALUES)
    assert len(str(raised.value)) < 400
