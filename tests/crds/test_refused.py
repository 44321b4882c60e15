"""Each rule of a kind refuses a case, and what the suites expect to read is said by a rule or by the API server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.crd_schemas import CRDS, REPOSITORY, fields, structural_schema

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


def cases(kind: str) -> list[dict[str, Any]]:
    """What e2e/suites/test_crds.py has the API server refuse of a kind."""
    listed: list[dict[str, Any]] = yaml.safe_load((REFUSED / f"{kind.lower()}.yaml").read_text())
    return listed


def rules_of_specs(kind: str) -> list[tuple[str, str]]:
    """Field and message of each rule below spec; rules about a change (oldSelf) have tests of their own."""
    return [
        (path + rule.get("fieldPath", ""), " ".join((rule.get("message") or rule["messageExpression"]).split()))
        for path, schema in fields(structural_schema(kind))
        for rule in schema.get("x-kubernetes-validations", ())
        if path.partition(".")[0] == "spec" and "oldSelf" not in rule["rule"]
    ]


def refuses(case: dict[str, Any], field: str, message: str) -> bool:
    """Whether the case expects this message at this field, or at one that the message names."""
    expected = re.sub(r"\[\d+\]", "[]", case["field"])
    return " ".join(case["advice"].split()) in message and (expected == field or expected in message)


@pytest.mark.parametrize("kind", sorted(CRDS))
def test_each_rule_has_a_case_of_its_own_that_it_refuses(kind):
    rules = rules_of_specs(kind)
    caught = [[rule for rule in rules if refuses(case, *rule)] for case in cases(kind)]
    alone = {found[0] for found in caught if len(found) == 1}
    assert [rule for rule in rules if rule not in alone] == []
