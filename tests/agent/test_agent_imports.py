"""What an agent keeps in memory on every node: nothing that it was not asked for."""

from __future__ import annotations

import subprocess
import sys

UNWANTED = (
    "aiohttp.test_utils", "concerto.controllers", "concerto.kube.election", "concerto.kube.events",
    "concerto.kube.kubeconfig", "concerto.kube.lease", "concerto.scheduling", "concerto_agent.bindings",
    "concerto_agent.node_cpusets", "concerto_agent.nri", "concerto_agent.pinner", "importlib.metadata", "kopf",
    "kubernetes", "msgspec", "numpy.random", "prometheus_client", "scipy",
)  # fmt: skip


def test_an_agent_that_does_not_pin_imports_nothing_for_pinning_nor_for_the_operator():
    code = (
        "import sys, concerto_agent.main, concerto_agent.pod_metrics_server, concerto.serving.http_server, "
        "concerto.serving.authorized, concerto.serving.certificate; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "concerto_agent.agent" in done.stdout.split()
    assert [name for name in UNWANTED if name in done.stdout.split()] == []
