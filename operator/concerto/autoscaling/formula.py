"""A number from several metrics, by an expression that can do arithmetic and nothing else."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
_NODES = (ast.Name, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Constant)
_MAX_LETTERS, _MAX_QUOTED = 1024, 60


def evaluate(expression: str, values: Mapping[str, float]) -> float:
    """The value of an expression, such as ``max(queue / 10, 2 * jobs)`` or ``queue if jobs > 0 else 0``.

    It knows + - * / %, comparisons, and, or, not, if-else, `FUNCTIONS`, numbers and the names in ``values``. It takes
    time in proportion to its length, which is bounded.

    Raises:
        MetricError: the expression is not valid, or its value is not a finite number.
    """
    with _errors_in_words():
        parsed = _parsed(expression, values)
        found = float(_evaluator(values).eval(expression, previously_parsed=parsed))
    if not math.isfinite(found):
        raise MetricError(f"the formula gives {found}, which is not a load")
    return found


def check(expression: str, names: Iterable[str]) -> None:
    """Check an expression without the values of its inputs, also the parts that not every value leads to.

    Raises:
        MetricError: the expression is not valid, or holds a name that is not among the inputs' names.
    """
    with _errors_in_words():
        _parsed(expression, names)


@contextmanager
def _errors_in_words() -> Iterator[None]:
    try:
        yield
    except ZeroDivisionError as error:
        raise MetricError("the formula divides by zero") from error
    except SyntaxError as error:
        raise MetricError(f"the formula is not valid: {error.msg}") from error
    except (RecursionError, MemoryError) as error:
        raise MetricError("the formula is not valid: it is nested too deeply") from error
    except (InvalidExpression, ValueError, TypeError, ArithmeticError) as error:
        raise MetricError(f"the formula is not valid: {str(error)[:200]}") from error


def _evaluator(values: Mapping[str, float]) -> SimpleEval:
    made = SimpleEval(operators=_OPERATORS, functions=FUNCTIONS, names=dict(values))
    # Without attributes, subscripts, strings and assignments there is nothing to reach but numbers
    made.nodes = {node: handler for node, handler in made.nodes.items() if node in _NODES}
    return made


def _parsed(expression: str, names: Iterable[str]) -> ast.expr:
    """The expression's tree. It isn't kept: that of 1,024 characters takes 0.4 MiB, and is made anew in a millisecond.

    Raises:
        ValueError: there is something in it that formulas do not know; the message quotes it.
    """
    if len(expression) > _MAX_LETTERS:
        raise ValueError(f"it is longer than {_MAX_LETTERS} characters")
    parsed = ast.parse(expression.strip(), mode="eval").body
    known = {*names, *FUNCTIONS}
    called = {id(node.func) for node in ast.walk(parsed) if isinstance(node, ast.Call)}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Name) and node.id not in known:
            what = f"a function ({', '.join(FUNCTIONS)})" if id(node) in called else "the name of an input"
            raise ValueError(f"{_quoted(node)} is not {what}")
        if isinstance(node, ast.expr):
            _check(node, is_called=id(node) in called)
    return parsed


def _check(node: ast.expr, *, is_called: bool) -> None:
    known = isinstance(node, _NODES)
    match node:
        case ast.Constant(value=value):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{_quoted(node)} is not a number")
        case ast.Name(id=name):
            if name in FUNCTIONS and not is_called:
                raise ValueError(f"{name} is a function: write it like {name}(queue)")
        case ast.BinOp() | ast.UnaryOp():
            known = type(node.op) in _OPERATORS
        case ast.Compare():
            known = all(type(op) in _OPERATORS for op in node.ops)
        case ast.Call():
            known = isinstance(node.func, ast.Name) and not node.keywords
    if not known:
        raise ValueError(f"it can't compute {_quoted(node)}")


def _quoted(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 1]}…"
