"""What the tokens of operator, autoscaler and agents may do, by `kubectl auth can-i --list`, and what roles let people
do with our kinds: written down beside this file.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from e2e.testbed.clusters import Cluster

ACCOUNTS = ("operator", "autoscaler", "agent")
NAMESPACE = "concerto-system"
NAMESPACES = (NAMESPACE, "default")
ROLES = ("view", "edit", "admin", "concerto-reserve", "concerto-pin")
"""Roles that people have: those of Kubernetes, and ours that are part of no other."""
_FOLDER = Path(__file__).resolve().parent


def file(account: str) -> Path:
    """Where the rights of an account, or those of ``people``, are written down."""
    return _FOLDER / f"{account}.txt"


def listing(cluster: Cluster, account: str, node: str) -> str:
    """An account's rights at home and elsewhere, a line each, sorted: resource, [URL], [names], [verbs].

    What every authenticated user may do is left out: discovery, health, reviews of oneself, and whatever a release of
    Kubernetes adds to those.

    Args:
        cluster: with Concerto's rights applied.
        account: one of `ACCOUNTS`.
        node: the agent's; its Node object exists.
    """
    bound = node if account == "agent" else None
    kubeconfig = cluster.token_kubeconfig(
        NAMESPACE, f"concerto-{account}", file_name=f"rights-{account}", bound_node=bound
    )
    anybody = cluster.token_kubeconfig("default", "default", file_name="rights-anybody")
    parts = []
    for namespace in NAMESPACES:
        rows = _rows(cluster, kubeconfig, namespace) - _rows(cluster, anybody, namespace)
        parts.append("\n".join([f"# in namespace {namespace}", *sorted(rows.elements())]))
    return "\n".join(parts) + "\n"


def _rows(cluster: Cluster, kubeconfig: Path, namespace: str) -> Counter[str]:
    """The rights in a namespace, and how many rules give each."""
    table = cluster.kubectl("auth", "can-i", "--list", "--no-headers", "-n", namespace, "--kubeconfig", str(kubeconfig))
    return Counter(_ordered(row) for row in table.splitlines() if row.strip())


def people(cluster: Cluster) -> str:
    """What each of `ROLES` allows in Concerto's group, a line for a resource: resource, [verbs]."""
    parts = []
    for role in ROLES:
        verbs: dict[str, set[str]] = {}
        for rule in cluster.get("clusterrole", role)["rules"] or ():
            if {"concerto.dev", "*"} & set(rule.get("apiGroups", ())):
                for resource in rule["resources"]:
                    verbs.setdefault(resource, set()).update(rule["verbs"])
        parts += [f"# {role}", *(f"{resource} [{' '.join(sorted(verbs[resource]))}]" for resource in sorted(verbs))]
    return "\n".join(parts) + "\n"


def _ordered(row: str) -> str:
    """A row with the lists in brackets sorted: kubectl has them as the roles come."""
    resource, *lists = re.split(r"\s*\[", row.strip())
    return " ".join([resource, *(f"[{' '.join(sorted(each.rstrip(']').split()))}]" for each in lists)]).strip()
