"""What the tokens of operator and agents may do, as `kubectl auth can-i --list` says: written down beside this file."""

from __future__ import annotations

import re
from pathlib import Path

from e2e.clusters import Cluster

ACCOUNTS = ("operator", "agent")
NAMESPACE = "concerto-system"
NAMESPACES = (NAMESPACE, "default")
_FOLDER = Path(__file__).resolve().parent


def file(account: str) -> Path:
    """Where an account's rights are written down."""
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


def _ordered(row: str) -> str:
    """A row with the lists in brackets sorted: kubectl has them as the roles come."""
    resource, *lists = re.split(r"\s*\[", row.strip())
    return " ".join([resource, *(f"[{' '.join(sorted(each.rstrip(']').split()))}]" for each in lists)]).strip()
