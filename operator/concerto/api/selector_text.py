"""Label selectors written as text, as the scale subresource gives them: ``app=web,tier in (a,b),!canary``.

Source: ``labels.Parse`` of k8s.io/apimachinery.
"""

from __future__ import annotations

import re

from concerto.api.selectors import LabelSelector, Requirement

MAX_LENGTH = 16_384
"""Characters of a selector; custom kinds may serve texts of any length."""

_SET = re.compile(r"^([^\s!=<>]+)\s+(in|notin)\s*\(([^)]*)\)$")
_COMPARED = re.compile(r"^([^\s!=<>]+)\s*(==|=|!=|>|<)\s*([^\s!=<>]*)$")
_KEY = re.compile(r"^(!?)\s*([A-Za-z0-9][-A-Za-z0-9_./]*)$")
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt", "in": "In", "notin": "NotIn"}


def parse_selector(text: str) -> LabelSelector:
    """The selector that ``text`` stands for; an empty text selects everything.

    Raises:
        ValueError: it is longer than `MAX_LENGTH`, or is not a selector; the message quotes the part that is not.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the label selector has {len(text)} characters: shorten it to {MAX_LENGTH} or fewer")
    return LabelSelector(tuple(_requirement(part) for part in _parts(text))) if text.strip() else LabelSelector(())


def _parts(text: str) -> list[str]:
    """The text between the commas that are not in parentheses; takes linear time."""
    parts, start, in_parentheses = [], 0, False
    for index, character in enumerate(text):
        if character == "(":
            in_parentheses = True
        elif character == ")":
            in_parentheses = False
        elif character == "," and not in_parentheses:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


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
    raise ValueError(f"{part[:100]!r} is not part of a label selector (examples: app=web, tier in (a,b), !canary)")
