"""The documentation says what is so: generated pages are current, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import re

import pytest

from crd_schemas import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def test_the_reference_is_what_the_crds_say():
    spec = importlib.util.spec_from_file_location("reference", REPOSITORY / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert reference.PAGE.read_text() == reference.page(), "run `python docs/reference.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}
    local = {target for target in targets if target and "://" not in target}
    assert [target for target in sorted(local) if not (page.parent / target).exists()] == []
