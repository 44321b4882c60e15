"""Label selectors written as text, as the scale subresource gives them: ``app=web,tier in (a,b),!canary``.

Source: ``labels.Parse`` of k8s.io/apimachinery.
"""

from __future__ import annotations

import re

from concerto.api.selectors import LabelSelector, Requirement

_PART = re.compile(r",(?![^(]*\))")
_SET = re.compile(r"^([^\s!=<>]+)\s+(in|notin)\s*\(([^)]*)\)$")
_COMPARED = re.compile(r"^([^\s!=<>]+)\s*(==|=|!=|>|<)\s*([^\s!=<>]*)$")
_KEY = re.compile(r"^(!?)\s*([A-Za-z0-9][-A-Za-z0-9_./]*)$")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def parse_selector(text: str) -> LabelSelector:
    """The selector that ``text`` stands for; an empty text selects everything.

    Raises:
        ValueError: it is not a selector; the message quotes the part that is not.
    """
    parts = [part.strip() for part in _PART.split(text)] if text.strip() else []
    return LabelSelector(tuple(_requirement(part) for part in parts))


def _requirement(part: str) -> Requirement:
    if found := _SET.match(part):
        key, operator, values = found.groups()
        return Requirement(key, _OPERATORS[operator], tuple(v.strip() for v in values.split(",")))
    if found := _COMPARED.match(part):
        key, operator, value = found.groups()
        return Requirement(key, _OPERATORS[operator], (value,))
    if found := _KEY.match(part):
        absent, key = found.groups()
        return Requirement(key, "DoesNotExist" if absent else "Exists")
    raise ValueError(f"{part!r} is not part of a label selector (examples: app=web, tier in (a,b), !canary)")
