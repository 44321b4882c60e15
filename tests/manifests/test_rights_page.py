"""docs/security.md names every resource that a role of ours has a right to, and all rights to statuses."""

from __future__ import annotations

import re

import pytest

from support.crd_schemas import REPOSITORY, documents

MANIFESTS = REPOSITORY / "manifests"
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
ROLES = {
    "Rights of the operator": ["base/operator-rbac.yaml", "components/pinning/operator-rbac.yaml"],
    "Rights of the autoscaler": ["components/autoscaling/rbac.yaml"],
    "Rights of an agent": ["base/agent-rbac.yaml", "components/pinning/rbac.yaml"],
}


def named(heading: str) -> str:
    """What the first column of a section's table names, in small letters."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)).lower()


def singular(resource: str) -> str:
    """The resource as a kind, in small letters."""
    if resource.endswith("ies"):
        return f"{resource[:-3]}y"
    return resource[:-2] if resource.endswith("sses") else resource[:-1]


@pytest.mark.parametrize(("heading", "files"), ROLES.items(), ids=ROLES)
def test_the_page_on_security_names_each_resource_of_a_role(heading, files):
    rules = [rule for file in files for role in documents(MANIFESTS / file) for rule in role.get("rules") or ()]
    resources = {resource.partition("/")[0] for rule in rules for resource in rule.get("resources", ())} - {"*"}
    text = named(heading)
    missing = [r for r in sorted(resources) if not re.search(rf"\b({r}|{singular(r)}e?s?)\b", text)]
    assert missing == []


@pytest.mark.parametrize(("heading", "files"), ROLES.items(), ids=ROLES)
def test_the_page_on_security_names_each_right_to_the_status_of_a_kind_of_ours(heading, files):
    rules = [rule for file in files for role in documents(MANIFESTS / file) for rule in role.get("rules") or ()]
    ours = [rule for rule in rules if rule.get("apiGroups") == ["concerto.dev"]]
    given = {", ".join(rule["verbs"]) for rule in ours if any(r.endswith("/status") for r in rule["resources"])}
    rights = named(heading)
    said = set(re.findall(r"((?:get, )?(?:update, )?patch) (?:their|its|the) status", rights))
    assert said == given
