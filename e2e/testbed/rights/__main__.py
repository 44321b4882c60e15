"""``make rights``: write down what operator, autoscaler, agents and people may do, after a change of their roles."""

from __future__ import annotations

import sys

from e2e.testbed.clusters import LocalControlPlane, find_binaries
from e2e.testbed.rights import ACCOUNTS, file, listing, people
from e2e.testbed.system import install
from e2e.testbed.waiting import eventually


def main() -> int:
    """Apply manifests/overlays/local to a new control plane, and write what it says; the exit status."""
    with LocalControlPlane(find_binaries(print)) as cluster:
        install(cluster)
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "rights"}})
        for account in ACCOUNTS:
            file(account).write_text(listing(cluster, account, "rights"))
            print(file(account))
        # the controller manager adds up roles in its own time
        eventually("edit takes in our kinds", lambda: "predictivehpas [create" in people(cluster))
        file("people").write_text(people(cluster))
        print(file("people"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
