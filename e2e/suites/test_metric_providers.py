"""Profiles with a metric provider, against the real things: metrics-server and Debian's Prometheus on real nodes.

Of two nodes one is busy. Prometheus scrapes their agents, and is asked in two ways: by its own TLS and login, and
through the API server's proxy, which wants a bearer token.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from concerto.api.schedulingprofile import DEFAULT_FILTERS
from e2e.suites.test_scheduling import condition, events, node_of, pod
from e2e.testbed import metrics_server
from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.clusters.pki import Authority
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.processes import NAMESPACE, Process, operator_process
from e2e.testbed.prometheus import Guard, Prometheus, Target
from e2e.testbed.requirements import require_metrics_server, require_prometheus, require_real_nodes
from e2e.testbed.system import agent_on
from e2e.testbed.waiting import eventually

BUSY, IDLE = "measured-busy", "measured-idle"
PASSWORD = "only-for-tests"
HASH = "$2b$04$abcdefghijklmnopqrstuuSOASZ5gFdIXxQU/MI4albXfVKBHc6R2"  # of the above, by bcrypt
USAGE = 'concerto_agent_usage_ratio{resource="%s"}'
QUERIES = {
    "cpu": {
        "average": f"avg_over_time({USAGE % 'cpu'}[5m])",
        "standardDeviation": f"stddev_over_time({USAGE % 'cpu'}[5m])",
        "latest": USAGE % "cpu",
    },
    "memory": {"average": f"avg_over_time({USAGE % 'memory'}[5m])"},
}
SECRET = ("secret", "concerto-prometheus", "-n", NAMESPACE)

# Where metrics-server must be built first, the first test waits for that
pytestmark = [pytest.mark.realnode, pytest.mark.timeout(1200)]


@dataclass
class Measured:
    """What runs: the operator, and who measures the nodes.

    Attributes:
        operator: the operator.
        guarded: Prometheus behind its own TLS and login.
        proxied: URL of Prometheus behind the API server's proxy.
        authority: of the guarded one's certificate.
        metrics_server: returns once metrics-server has metrics.
    """

    operator: Process
    guarded: Prometheus
    proxied: str
    authority: Path
    metrics_server: Callable[[], None]


@pytest.fixture(scope="module")
def measured(concerto_cluster: Cluster, say: Callable[[str], None], tmp_path_factory: Any) -> Iterator[Measured]:
    cluster = require_real_nodes(concerto_cluster)
    require_prometheus()
    require_metrics_server(say)
    logs = tmp_path_factory.mktemp("providers")
    pki = Authority(logs / "pki")
    guard = Guard(*pki.server("prometheus"), pki.certificate, "concerto", PASSWORD, HASH)
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(RealNodes(cluster, (BUSY, IDLE)))
        nodes.wait_ready()
        stack.enter_context(busy(nodes[BUSY]))
        # 20 s, in which the others are tried
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(
            stack.enter_context, metrics_server.start(cluster, say)
        )
        targets = []
        for node in nodes:
            address = f"127.0.0.1:{free_ports(1)[0]}"
            agent = agent_on(cluster, node, logs, ["--metrics-bind", address]).start()
            stack.callback(agent.stop)
            targets.append(Target(address, {"instance": node.name}))
        guarded = stack.enter_context(Prometheus(logs / "guarded", targets, guard=guard))
        plain = stack.enter_context(Prometheus(logs / "plain", targets, listen=nodes.slot.gateway))
        operator = operator_process(cluster, logs, "operator-providers").start()
        stack.callback(operator.stop)
        stack.callback(cluster.kubectl, "delete", *SECRET, "--ignore-not-found")
        stack.callback(cluster.kubectl, "delete", "namespace", "providers", "--wait=false", "--ignore-not-found")
        stack.callback(cluster.kubectl, "delete", "sprof", "by-server", "by-token", "by-login", "--ignore-not-found")
        proxied = behind_the_api_server(cluster, nodes.slot.gateway, plain.port)
        operator.wait_ready()
        eventually("Prometheus has scraped both agents", lambda: len(guarded.query(USAGE % "cpu")) == 2)
        yield Measured(operator, guarded, proxied, pki.certificate, waiting.result)
        waiting.result()


@contextlib.contextmanager
def busy(node: RealNode) -> Iterator[None]:
    """All the node's CPUs at work, in its cgroup, whatever else this machine does meanwhile."""
    for name, most in (("cpu.shares", "20480"), ("cpu.weight", "1000")):
        if (weight := node.cgroup_path("cpu") / name).exists():
            weight.write_text(most)
    processes = [subprocess.Popen(node.in_cgroup(["sh", "-c", "while :; do :; done"])) for _ in node.cpus]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def behind_the_api_server(cluster: Cluster, address: str, port: int) -> str:
    """Make it a Service that ServiceAccount providers/asker may be proxied to; the URL of that."""
    namespace = {"namespace": "providers"}
    ports = [{"name": "http", "port": port}]
    target = {"kind": "Pod", "name": "prometheus", **namespace}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "providers"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "asker", **namespace}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "prometheus", **namespace},
            "spec": {"ports": ports},
        },
        # It passes on to pods alone, so it is given one that has this address
        pod("providers", "prometheus", serviceAccountName="asker", schedulerName="nobody"),
        {
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": {"name": "prometheus", **namespace},
            "subsets": [{"addresses": [{"ip": address, "targetRef": target}], "ports": ports}],
        },
    )
    status = json.dumps({"status": {"podIP": address, "podIPs": [{"ip": address}]}})
    cluster.kubectl(
        "patch", "pod", "prometheus", "-n", "providers", "--subresource=status", "--type=merge", "-p", status
    )
    cluster.kubectl("create", "role", "asker", "-n", "providers", "--verb=get", "--resource=services/proxy")
    cluster.kubectl(
        "create", "rolebinding", "asker", "-n", "providers", "--role=asker", "--serviceaccount=providers:asker"
    )
    server = cluster.kubectl("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    return f"{server}/api/v1/namespaces/providers/services/http:prometheus:http/proxy"


def profile(name: str, **provider: Any) -> dict[str, Any]:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": name,
            # Neither node's capacity is asked for: what else this machine does may leave the idle one none
            "filters": [{"name": each} for each in DEFAULT_FILTERS if each != "PodCapacity"],
            # The idle node is below that, and the busy one above
            "scores": [{"name": "TargetLoadPacking", "targetLoadPacking": {"targetUtilization": 20}}],
            "metricProvider": {"interval": "1s", "timeout": "1s", **provider},
        },
    }


def prometheus(address: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "Prometheus",
        "prometheus": {"address": address, "nodeLabel": "instance", "queries": QUERIES, **more},
    }


def keep_secret(cluster: Cluster, **data: str) -> None:
    """What is in the Secret from now on; ``_`` stands for a dot."""
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET[1], "namespace": NAMESPACE},
            "stringData": {key.replace("_", "."): value for key, value in data.items()},
        }
    )


def provider_is(cluster: Cluster, name: str, reason: str, fresh: int = 0) -> dict[str, Any]:
    """The profile, once its provider is so and has said something of so many nodes."""
    obj: dict[str, Any] = {}

    def look() -> bool:
        nonlocal obj
        obj = cluster.get("sprof", name)
        said = condition(obj, "ProviderReady")
        return bool(said and said["reason"] == reason and obj["status"]["metrics"]["fresh"] >= fresh)

    eventually(lambda: f"the provider of {name} is {reason}: {obj.get('status')}", look)
    return obj


def idle_node_is_taken(cluster: Cluster, namespace: str, scheduler: str) -> None:
    name = f"by-{scheduler}"
    # Other tests' nodes may still be about, which nobody measures
    ours = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [BUSY, IDLE]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ours]}}
    cluster.apply(pod(namespace, name, schedulerName=scheduler, affinity={"nodeAffinity": required}))
    assert eventually("bound", lambda: node_of(cluster, namespace, name)) == IDLE
    (said,) = eventually("the event", lambda: events(cluster, namespace, name, "Scheduled"))
    assert "metrics of too few nodes" not in said


def test_prometheus_by_a_bearer_token_and_a_ca_from_the_secret(
    concerto_cluster: Cluster, measured: Measured, namespace: str
) -> None:
    cluster = concerto_cluster
    uses = {"authorization": {"key": "token"}, "tls": {"caKey": "ca.crt"}}
    cluster.apply(profile("by-token", **prometheus(measured.proxied, **uses)))
    missing = provider_is(cluster, "by-token", "SecretMissing")
    assert f"there is no Secret {NAMESPACE}/concerto-prometheus" in condition(missing, "ProviderReady")["message"]
    authority = Path(cluster.work_dir / "pki" / "ca.crt").read_text()
    keep_secret(cluster, token="wrong", ca_crt=authority)
    provider_is(cluster, "by-token", "Unauthorized")
    keep_secret(cluster, token="wrong", ca_crt=measured.authority.read_text())
    provider_is(cluster, "by-token", "CertificateRefused")
    keep_secret(cluster, token=cluster.service_account_token("providers", "asker"), ca_crt=authority)
    status = provider_is(cluster, "by-token", "Answering", fresh=2)["status"]
    assert (status["metrics"]["provider"], status["metrics"]["fresh"]) == ("Prometheus", 2)
    idle_node_is_taken(cluster, namespace, "by-token")

    def reported() -> bool:
        found = cluster.get("events", "--field-selector", "involvedObject.name=by-token")["items"]
        both = {("Warning", "MetricProviderFailed"), ("Normal", "MetricProviderRecovered")}
        return {(e["type"], e["reason"]) for e in found} == both

    eventually("events report the failure and its end", reported)


def test_prometheus_by_its_own_tls_and_login(concerto_cluster: Cluster, measured: Measured, namespace: str) -> None:
    cluster = concerto_cluster
    keep_secret(cluster, login=f"concerto:{PASSWORD}", own_crt=measured.authority.read_text())
    uses = {"authorization": {"type": "Basic", "key": "login"}, "tls": {"caKey": "own.crt"}}
    cluster.apply(profile("by-login", **prometheus(measured.guarded.url, **uses)))
    status = provider_is(cluster, "by-login", "Answering", fresh=2)["status"]
    assert (status["metrics"]["fresh"], status["metrics"]["rejected"]) == (2, [])
    idle_node_is_taken(cluster, namespace, "by-login")


def test_metrics_server_of_real_nodes(concerto_cluster: Cluster, measured: Measured, namespace: str) -> None:
    cluster = concerto_cluster
    measured.metrics_server()
    cluster.apply(profile("by-server", type="KubernetesMetricsServer"))
    # It knows a node from its second look on, 10 s after the first
    status = provider_is(cluster, "by-server", "Answering", fresh=2)["status"]
    assert (status["metrics"]["provider"], status["metrics"]["unmatched"]) == ("KubernetesMetricsServer", [])
    idle_node_is_taken(cluster, namespace, "by-server")
    fresh = 'concerto_load_nodes{profile="by-server",state="fresh"} 2.0'
    eventually("the operator's metrics show it", lambda: fresh in measured.operator.get("/metrics"))
    polls = 'concerto_metric_provider_polls_total{profile="by-server",result="Answering"}'
    assert polls in measured.operator.get("/metrics")
    assert json.loads(cluster.kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"))["items"]
