"""APIs of servers on this machine, behind the API server: each an APIService of a Service of type ExternalName."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from e2e.testbed.clusters import Cluster
from e2e.testbed.waiting import eventually


def register(cluster: Cluster, name: str, port: int, apis: Mapping[str, str]) -> None:
    """Have the API server ask ``https://localhost:port`` for API groups; returns when it does.

    Args:
        cluster: whose API server.
        name: of the Service, and of its namespace.
        port: where the groups are served, by whatever certificate.
        apis: version by group.

    Raises:
        AssertionError: it does not in time.
    """
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": name},
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        *(
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": {
                    "group": group,
                    "version": version,
                    "insecureSkipTLSVerify": True,
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "service": {"name": name, "namespace": name, "port": port},
                },
            }
            for group, version in apis.items()
        ),
    )

    def is_served(group: str, version: str) -> bool:
        return f'"{group}/{version}"' in cluster.kubectl("get", "--raw", f"/apis/{group}/{version}", check=False)

    for group, version in apis.items():
        eventually(f"the API server serves {group} of {name}", partial(is_served, group, version))


def unregister(cluster: Cluster, apis: Mapping[str, str]) -> None:
    """Have the API server forget API groups."""
    cluster.kubectl("delete", "apiservice", *(f"{v}.{g}" for g, v in apis.items()), "--ignore-not-found")
