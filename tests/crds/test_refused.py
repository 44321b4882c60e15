"""What the suites expect the API server to say of a refused object is said by a kind's own rules, or by the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.crd_schemas import CRDS, REPOSITORY

REFUSED = REPOSITORY / "e2e" / "suites" / "refused"
# The API server's own words, for what schemas alone refuse; and values of an enum, which it lists
OF_THE_SERVER = re.compile(
    r'"\w+"(, "\w+")*|Required|Duplicate|unknown field|at least 1( properties)?|match|greater than'
    r"|(less|greater) than or equal to \d+"
)


def messages(value: Any) -> Iterator[str]:
    """The messages of all rules in a CRD."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("message", "messageExpression") and isinstance(item, str):
                yield " ".join(item.split())
            else:
                yield from messages(item)
    elif isinstance(value, list):
        for item in value:
            yield from messages(item)


@pytest.mark.parametrize("path", sorted(REFUSED.glob("*.yaml")), ids=lambda path: path.stem)
def test_advice_is_in_the_rules_of_the_kind_or_in_the_servers_own_words(path):
    (crd,) = [crd for kind, crd in CRDS.items() if kind.lower() == path.stem]
    said = list(messages(crd))
    expected = [case["advice"] for case in yaml.safe_load(path.read_text())]
    unknown = [
        advice
        for advice in expected
        if not OF_THE_SERVER.fullmatch(advice) and not any(" ".join(advice.split()) in message for message in said)
    ]
    assert unknown == []
