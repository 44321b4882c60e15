"""A number from several metrics, by an expression that can do arithmetic and nothing else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from concerto.autoscaling.pods import MetricError

FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_NODES = (ast.Expr, ast.Name, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Constant)
_MAX_LETTERS = 1024


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """The value of an expression, such as ``max(queue / 10, 2 * jobs)`` or ``queue if jobs > 0 else 0``.

    It knows + - * / %, comparisons, and, or, not, if-else, `FUNCTIONS`, numbers and the names in ``values``. It takes
    time in proportion to its length, which is bounded.

    Raises:
        MetricError: the expression is not valid, or its value is not a finite number.
    """
    try:
        parsed = _parsed(expression)
        found = float(_evaluator(values).eval(expression, previously_parsed=parsed))
    except ZeroDivisionError as error:
        raise MetricError("the formula divides by zero") from error
    except SyntaxError as error:
        raise MetricError(f"the formula is not valid: {error.msg}") from error
    except (InvalidExpression, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise MetricError(f"the formula is not valid: {str(error)[:200]}") from error
    if not math.isfinite(found):
        raise MetricError(f"the formula gives {found}, which is not a load")
    return found


def _evaluator(values: Mapping[str, float]) -> SimpleEval:
    made = SimpleEval(operators=_OPERATORS, functions=FUNCTIONS, names=dict(values))
    # Without attributes, subscripts, strings and assignments there is nothing to reach but numbers
    made.nodes = {node: handler for node, handler in made.nodes.items() if node in _NODES}
    return made


@lru_cache(maxsize=4096)
def _parsed(expression: str) -> ast.AST:
    if len(expression) > _MAX_LETTERS:
        raise ValueError(f"it is longer than {_MAX_LETTERS} characters")
    parsed = ast.parse(expression.strip(), mode="eval").body
    for node in ast.walk(parsed):
        if isinstance(node, ast.Constant) and (isinstance(node.value, bool) or not isinstance(node.value, int | float)):
            raise ValueError(f"{node.value!r} is not a number")
    return parsed
