"""APIs of servers on this machine, behind the API server: each an APIService of a Service of type ExternalName."""

from __future__ import annotations

import time
from collections.abc import Mapping

from e2e.clusters import Cluster, ClusterError


def register(cluster: Cluster, name: str, port: int, apis: Mapping[str, str], timeout_seconds: float = 60.0) -> None:
    """Have the API server ask ``https://localhost:port`` for API groups; returns when it does.

    Args:
        cluster: whose API server.
        name: of the Service, and of its namespace.
        port: where the groups are served, by whatever certificate.
        apis: version by group.
        timeout_seconds: for the first answers.

    Raises:
        ClusterError: there was none in time.
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
    deadline = time.monotonic() + timeout_seconds
    for group, version in apis.items():
        while f'"{group}/{version}"' not in cluster.kubectl("get", "--raw", f"/apis/{group}/{version}", check=False):
            if time.monotonic() > deadline:
                raise ClusterError(f"{group} of {name} is not served by the API server")
            time.sleep(0.2)


def unregister(cluster: Cluster, apis: Mapping[str, str]) -> None:
    """Have the API server forget API groups."""
    cluster.kubectl("delete", "apiservice", *(f"{v}.{g}" for g, v in apis.items()), "--ignore-not-found")
