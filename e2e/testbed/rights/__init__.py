"""What the tokens of operator and agents may do, as `kubectl auth can-i --list` says, and what roles let people do with
our kinds: written down beside this file.
"""

from __future__ import annotations

import re
from pathlib import Path

from e2e.testbed.clusters import Cluster

ACCOUNTS = ("operator", "agent")
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

    Args:
        cluster: with Concerto's rights applied.
        account: one of `ACCOUNTS`.
        node: the agent's; its Node object exists.
    """
    bound = node if account == "agent" else None
    kubeconfig = cluster.token_kubeconfig(
        NAMESPACE, f"concerto-{account}", file_name=f"rights-{account}", bound_node=bound
    )
    parts = []
    for namespace in NAMESPACES:
        said = cluster.kubectl(
            "auth", "can-i", "--list", "--no-headers", "-n", namespace, "--kubeconfig", str(kubeconfig)
        )
        rows = sorted(_ordered(row) for row in said.splitlines() if row.strip())
        parts.append("\n".join([f"# in namespace {namespace}", *rows]))
    return "\n".join(parts) + "\n"


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
