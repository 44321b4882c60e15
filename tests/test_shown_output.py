"""What pages show as printed by a command: its columns, fields and sentences are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

from support.crd_schemas import CRDS, REPOSITORY, fields, structural_schema

FEW = 12
"""Characters of a text in the code that tell it from others."""
SHORTEST = 4
"""Characters of a text, and of a word, that are looked for in a message."""
SHORT = {name: kind for kind, crd in CRDS.items() for name in crd["spec"]["names"]["shortNames"]}
"""Kinds by the names that kubectl takes."""


class Shown(NamedTuple):
    """A command, and what a page shows of its output.

    Attributes:
        page: the page's name.
        command: as it is typed.
        output: the lines below it.
    """

    page: str
    command: str
    output: str


def shown() -> Iterator[Shown]:
    for page in sorted((REPOSITORY / "docs").glob("*.md")):
        for block in re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n?)*)", block, re.MULTILINE):
                yield Shown(page.name, command, output)


SHOWN = list(shown())


@cache
def written() -> frozenset[tuple[str | None, ...]]:
    """The texts in the code, in parts; None where it puts in a value."""
    found = set[tuple[str | None, ...]]()
    for path in (p for root in ("operator", "agent") for p in sorted((REPOSITORY / root).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.add(tuple(str(part.value) if isinstance(part, ast.Constant) else None for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add((node.value,))
    return frozenset(found)


@cache
def texts() -> tuple[re.Pattern[str], ...]:
    """Those that are long enough, with anything where the code puts in a value."""
    long = (parts for parts in written() if sum(len(part) for part in parts if part is not None) >= FEW)
    joined = {"".join(".+" if part is None else re.escape(part) for part in parts) for parts in long}
    return tuple(re.compile(text) for text in sorted(joined))


@cache
def parts_of_texts() -> frozenset[str]:
    """What stands between the values that the code puts in."""
    found = {part.strip() for parts in written() for part in parts if part is not None and " " in part}
    return frozenset(part for part in found if len(part) >= SHORTEST)


@cache
def words() -> frozenset[str]:
    """The texts in the code of the command line that have no values, in capital letters."""
    folders = ("operator/concerto/cli", "operator/concerto/capacity")
    return frozenset(
        re.sub(r"(?<=[a-z])(?=[A-Z])", " ", node.value).upper()  # `headRoom` is printed as HEAD ROOM
        for folder in folders
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_said(message: str) -> bool:
    return any(text.fullmatch(message) for text in texts())


def unsaid(message: str) -> list[str]:
    """Words of a message that are in no text of the code: what may stand where it puts in a value lets all through."""
    found = (re.finditer(re.escape(part), message) for part in parts_of_texts() if part in message)
    said = {index for places in found for place in places for index in range(*place.span())}
    left = "".join(" " if index in said else character for index, character in enumerate(message))
    return re.findall(rf"\b[a-z]{{{SHORTEST},}}\b", re.sub(r"\S*[/\d]\S*", " ", left))


DESCRIBED = [each for each in SHOWN if each.command.startswith("kubectl describe ")]
OF_OURS = [each for each in DESCRIBED if each.command.split()[2] in SHORT]
LISTED = [
    each
    for each in SHOWN
    if each.command.startswith("kubectl get ") and each.command.split()[2] in SHORT and " -o " not in each.command
]
PRINTED = [each for each in SHOWN if each.command.startswith("concerto ")]


def name_of(each: Shown) -> str:
    return f"{each.page}: {each.command}"


def test_pages_show_output_of_each_sort():
    assert len(DESCRIBED) > len(OF_OURS) > 5
    assert len(PRINTED) > 4
    assert len(LISTED) > 3
    assert not is_said("The agent is out for lunch.")
    assert unsaid("New size: 4; reason: the moon is above target") == ["moon"]


@pytest.mark.parametrize("each", DESCRIBED, ids=name_of)
def test_messages_of_conditions_and_events_are_those_of_the_code(each: Shown) -> None:
    messages = re.findall(r"^ +Message: +(.+)$", each.output, re.MULTILINE)
    event = r"^  (?:Normal|Warning) .*? (?:concerto-\w+|\w+-controller)  +(.+)$"
    messages += re.findall(event, each.output, re.MULTILINE)
    assert [message for message in messages if not is_said(message)] == []
    assert [word for message in messages for word in unsaid(message)] == []


@pytest.mark.parametrize("each", OF_OURS, ids=name_of)
def test_fields_that_kubectl_describes_are_those_of_the_kind(each: Shown) -> None:
    schema = structural_schema(SHORT[each.command.split()[2]])
    known = {path.rpartition(".")[2].strip("[]{}").lower() for path, _ in fields(schema)} | {"events"}
    described = re.findall(r"^ *([A-Z][\w ]*):(?: |$)", each.output.partition("\nEvents:")[0], re.MULTILINE)
    assert [name for name in described if name.replace(" ", "").lower() not in known] == []


@pytest.mark.parametrize("each", PRINTED, ids=name_of)
def test_columns_of_a_table_that_concerto_prints_are_those_of_the_code(each: Shown) -> None:
    column = r"[A-Z][A-Z-]*(?: [A-Z-]+)*"
    headers = re.findall(rf"^{column}(?:  +{column})+ *$", each.output, re.MULTILINE)
    columns = {column for header in headers for column in re.split(r"  +", header.strip())}
    assert columns - words() == set()


@pytest.mark.parametrize("each", LISTED, ids=name_of)
def test_columns_that_kubectl_lists_are_those_of_the_kind(each: Shown) -> None:
    (version,) = CRDS[SHORT[each.command.split()[2]]]["spec"]["versions"]
    columns = [column["name"].upper() for column in version["additionalPrinterColumns"] if not column.get("priority")]
    assert re.split(r"  +", each.output.partition("\n")[0].strip()) == ["NAME", *columns]
