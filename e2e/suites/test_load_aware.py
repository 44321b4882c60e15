"""Load-aware scheduling on a real API server with 100 simulated nodes: with metrics, with some, and with none.

What the agents do not say is then asked of Debian's Prometheus, until that stops to answer, too.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from e2e.suites.test_scheduling import condition, events, node_of, pod
from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.binaries import Unusable, find_or_build_watcher_client
from e2e.testbed.processes import Process, concerto_command, operator_process
from e2e.testbed.prometheus import Prometheus, Target
from e2e.testbed.requirements import require_prometheus
from e2e.testbed.system import hollow_nodes
from e2e.testbed.waiting import eventually
from e2e.testbed.watcher_client import Load, WatcherClient

NODES = 100
PREFIX = "load"
SCORES = [
    {"name": "Capacity"},
    {"name": "TargetLoadPacking", "targetLoadPacking": {"targetUtilization": 50}},
    {"name": "LoadVariationRiskBalancing", "loadVariationRiskBalancing": {"formula": "Upstream"}},
    {"name": "LowRiskOverCommitment"},
    {"name": "NodeResourcesFit", "nodeResourcesFit": {"strategy": "MostAllocated"}},
    {"name": "NodeResourcesBalancedAllocation"},
    {"name": "NodeAffinity"},
    {"name": "TaintToleration"},
]
WINDOWS = [
    {"resource": r, "window": w, "average": 0.2, "standardDeviation": 0.05, "latest": 0.25, "coveredSeconds": 300}
    for r in ("cpu", "memory", "network", "io")
    for w in ("5m", "10m", "15m")
]
RESOURCES = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}}
FRESH_SECONDS = 120.0
"""The watcher API and profiles leave a status out once it is five minutes old."""


@pytest.fixture(scope="module")
def operator(concerto_cluster: Cluster) -> Iterator[Process]:
    """An operator with a profile of every score, and one of load-aware scores alone."""
    profiles = [profile("every-score", SCORES), profile("load-only", SCORES[1:3])]
    concerto_cluster.apply(*profiles)
    process = operator_process(concerto_cluster, concerto_cluster.work_dir, "operator-load", restarts=True).start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()
        concerto_cluster.kubectl("delete", "sprof", "every-score", "load-only", "by-prometheus", "--ignore-not-found")


@pytest.fixture(scope="module")
def nodes(concerto_cluster: Cluster, operator: Process) -> Iterator[dict[str, float]]:
    """100 nodes that stay Ready; gives the time at which the status of all was last written, by ``publish``.

    What their agents publish is written here, so that agents can fall silent one by one.
    """
    with hollow_nodes(concerto_cluster, NODES, "--api-only", "--prefix", PREFIX):
        # those of other tests' nodes go, too, sooner or later
        eventually("there are these alone", lambda: len(concerto_cluster.get("ncap")["items"]) == NODES)
        yield {"published": -math.inf}
        concerto_cluster.kubectl("delete", "ncap", "--all", "--wait=false", timeout_seconds=120)


@pytest.fixture
def measured(concerto_cluster: Cluster, operator: Process, nodes: dict[str, float]) -> None:
    """Every node is measured, and is so for some more minutes, however long the tests before this one took."""
    if time.monotonic() - nodes["published"] > FRESH_SECONDS:
        publish(concerto_cluster, operator)
        nodes["published"] = time.monotonic()


def publish(cluster: Cluster, operator: Process) -> None:
    """Write the windows of every node, and wait until the operator has them."""
    listed = cluster.get("ncap")
    for capacity in listed["items"]:
        capacity["status"] |= {"observedAt": now(), "windows": WINDOWS}
    cluster.kubectl("replace", "--subresource=status", "-f", "-", stdin=json.dumps(listed), timeout_seconds=120)

    def known() -> bool:
        loads = WatcherClient(f"http://{operator.health}").all().loads if healthy(operator) else {}
        return len(loads) == NODES and all(load.get("CPU") == Load(20.0, 5.0, 25.0) for load in loads.values())

    eventually(f"metrics of {NODES} nodes", known)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def profile(name: str, scores: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "SchedulingProfile",
        "metadata": {"name": name},
        "spec": {"schedulerName": name, "scores": scores},
    }


def place(cluster: Cluster, namespace: str, name: str, scheduler: str) -> str:
    """Create a pod and return what its Scheduled event says."""
    containers = [{"name": "c", "image": "none.invalid/none", "resources": RESOURCES}]
    cluster.apply(pod(namespace, name, schedulerName=scheduler, containers=containers))
    eventually(f"{name} is bound", lambda: node_of(cluster, namespace, name))
    return str(eventually("the event", lambda: events(cluster, namespace, name, "Scheduled"))[0])


def test_a_client_written_from_the_published_form_reads_every_node(operator, measured):
    client = WatcherClient(f"http://{operator.health}")
    metrics = client.all()
    assert len(metrics.loads) == NODES
    assert metrics.duration == "15m"
    assert metrics.end - metrics.start == 900
    assert abs(metrics.end - time.time()) < 60
    for load in metrics.loads.values():
        assert set(load) == {"CPU", "Memory", "Bandwidth", "Storage"}
        assert load["CPU"] == Load(20.0, 5.0, 25.0)
    name = sorted(metrics.loads)[0]
    one = client.host(name)
    assert one is not None and set(one.loads) == {name}
    assert client.host("nobody") is None


@pytest.fixture
def go_client(say: Callable[[str], None]) -> str:
    """The program. To build it may take longer than a status is fresh, so it is asked for before ``measured``."""
    try:
        return str(find_or_build_watcher_client(say))
    except Unusable as error:
        pytest.skip(str(error))


def test_a_client_in_go_with_load_watchers_json_library_reads_every_node(go_client, operator, measured):
    address = f"http://{operator.health}"
    done = subprocess.run([go_client, address], capture_output=True, text=True, check=True, timeout=60)
    head, *lines = done.stdout.splitlines()
    assert head == "Concerto 15m 900"
    read = {tuple(line.split()[:4]) for line in lines}
    values = {"AVG": "20", "STD": "5", "Latest": "25"}
    types = ("CPU", "Memory", "Bandwidth", "Storage")
    assert read == {
        (name, kind, operator_, value)
        for name in WatcherClient(address).all().loads
        for kind in types
        for operator_, value in values.items()
    }


def test_clients_that_ask_without_pause_keep_no_other_behind_their_address_from_an_answer(operator, measured):
    host, port = operator.health.split(":")
    done = threading.Event()

    def ask_on_and_on() -> int:
        answered = 0
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        while not done.is_set():
            connection.request("GET", "/watcher")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
            answered += 1
        connection.close()
        return answered

    with ThreadPoolExecutor(20) as pool:
        noisy = [pool.submit(ask_on_and_on) for _ in range(20)]
        try:
            client = WatcherClient(f"http://{operator.health}")
            assert [len(client.all().loads) for _ in range(5)] == [NODES] * 5
        finally:
            done.set()
        # Whoever asks without pause waits for its own turns, and is refused none
        assert all(each.result() > 0 for each in noisy)


def test_the_watcher_api_is_a_metric_provider_itself(concerto_cluster, operator, measured, namespace):
    """Concerto reads Concerto, in the place of upstream's load watcher."""
    wanted = profile("by-watcher", SCORES[1:2])
    watcher = {"type": "LoadWatcher", "interval": "1s", "timeout": "1s"}
    wanted["spec"]["metricProvider"] = watcher | {"loadWatcher": {"address": f"http://{operator.health}"}}
    concerto_cluster.apply(wanted)

    def known() -> bool:
        metrics = concerto_cluster.get("sprof", "by-watcher").get("status", {}).get("metrics", {})
        return metrics.get("fresh") == NODES and metrics["provider"] == "LoadWatcher"

    eventually("the load of every node is known", known)
    assert "metrics of too few nodes" not in place(concerto_cluster, namespace, "by-watcher", "by-watcher")
    concerto_cluster.kubectl("delete", "sprof", "by-watcher")


def healthy(operator: Process) -> bool:
    try:
        with urllib.request.urlopen(f"http://{operator.health}/watcher/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_every_score_counts_and_the_event_shows_what_each_gave(concerto_cluster, operator, measured, namespace):
    said = place(concerto_cluster, namespace, "every", "every-score")
    best = said.split("Best nodes: ")[1].split("; ")
    assert len(best) == 3
    assert len(said) <= 1024
    reported = {name for name, _ in re.findall(r"(\w+) (\d+)", best[0].split("(")[1])}
    assert reported == {s["name"] for s in SCORES} - {"NodeAffinity", "TaintToleration"}  # the same on all nodes
    assert best[0].startswith(node_of(concerto_cluster, namespace, "every"))


def test_explain_reports_every_node(concerto_cluster, operator, measured, namespace):
    place(concerto_cluster, namespace, "why", "every-score")
    where = node_of(concerto_cluster, namespace, "why")
    lines = explained(concerto_cluster, namespace, "why")
    assert lines[0] == f"Pod {namespace}/why, on {where}, schedulerName every-score"
    # There may be events of attempts before that, and sentences about the pod's kind
    heading = lines.index("Were it placed now (*: where it is):")
    decided = [line for line in lines[1:heading] if "Successfully assigned" in line]
    assert len(decided) == 1 and decided[0].strip().startswith(f"Successfully assigned {namespace}/why to {where}")
    table = [line.split() for line in lines[heading + 1 :]]
    assert table[0] == ["NODE", "BASIS", "TOTAL", *(s["name"] for s in SCORES)]
    assert {row[0].rstrip("*") for row in table[1:]} == {
        n["metadata"]["name"] for n in concerto_cluster.get("nodes")["items"]
    }
    assert [row[0] for row in table if row[0].endswith("*")] == [f"{where}*"]


def explained(cluster: Cluster, namespace: str, name: str) -> list[str]:
    """What `concerto explain` prints."""
    command = concerto_command("explain", "pod", f"{namespace}/{name}", "--kubeconfig", str(cluster.kubeconfig))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_agents_die_and_scheduling_goes_on(concerto_cluster, operator, measured, namespace):
    assert "metrics of too few nodes" not in place(concerto_cluster, namespace, "before", "load-only")
    capacities = sorted(c["metadata"]["name"] for c in concerto_cluster.get("ncap")["items"])
    assert len(capacities) == NODES
    for name in capacities[:3]:
        concerto_cluster.kubectl("delete", "ncap", name)
        place(concerto_cluster, namespace, f"after-{name}", "load-only")

    def told_of_three() -> bool:
        some = metrics_condition(concerto_cluster, "SomeMissing")
        return some is not None and "of 3 of " in some["message"]

    eventually("metrics of three nodes are missing", told_of_three)
    concerto_cluster.kubectl("delete", "ncap", "--all", "--wait=false", timeout_seconds=120)
    eventually("requests decide", lambda: "metrics of too few nodes" in place_again(concerto_cluster, namespace))
    eventually("no metrics are left", lambda: metrics_condition(concerto_cluster, "AllMissing"))
    assert not healthy(operator)


def place_again(cluster: Cluster, namespace: str, scheduler: str = "load-only") -> str:
    return place(cluster, namespace, f"again-{time.monotonic_ns()}", scheduler)


def metrics_condition(
    cluster: Cluster, reason: str, name: str = "load-only", kind: str = "MetricsComplete"
) -> dict[str, Any] | None:
    found = condition(cluster.get("sprof", name), kind)
    return found if found and found["reason"] == reason else None


@contextlib.contextmanager
def exporter(loads: dict[str, float]) -> Iterator[str]:
    """What one could read off many nodes: their loads, for Prometheus to scrape; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = [f'node_load_ratio{{node="{name}"}} {load}\n' for name, load in loads.items()]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("".join(lines).encode())

        def log_message(self, *_: Any) -> None:
            """Not said."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_prometheus_that_times_out_holds_up_nobody(concerto_cluster, operator, nodes, namespace, tmp_path):
    """By now no agent is left. One node is nearly as busy as the profile wants nodes to be, all others are too busy."""
    require_prometheus()
    cluster = concerto_cluster
    names = sorted(
        n["metadata"]["name"] for n in cluster.get("nodes")["items"] if n["metadata"]["name"].startswith(PREFIX)
    )
    loads = dict.fromkeys(names, 0.9) | {names[7]: 0.3, "elsewhere": 0.1}
    wanted = profile("by-prometheus", SCORES[1:2])
    wanted["spec"] |= {
        "staleAfter": "6s",
        "metricProvider": {"type": "Prometheus", "interval": "1s", "timeout": "500ms"},
    }
    with exporter(loads) as address, Prometheus(tmp_path, [Target(address, {})]) as prometheus:
        query = {"cpu": {"latest": "node_load_ratio"}}
        wanted["spec"]["metricProvider"]["prometheus"] = {"address": prometheus.url, "queries": query}
        eventually("it has scraped", lambda: len(prometheus.query("node_load_ratio")) == NODES + 1)
        cluster.apply(wanted)

        def known() -> Any:
            metrics = cluster.get("sprof", "by-prometheus").get("status", {}).get("metrics", {})
            return metrics if metrics.get("fresh") == NODES else None

        metrics = eventually("the load of every node is known", known)
        assert (metrics["provider"], metrics["unmatched"], metrics["unmatchedCount"]) == (
            "Prometheus",
            ["elsewhere"],
            1,
        )

        def placed() -> str:
            name = f"packed-{time.monotonic_ns()}"
            return name if f"to {names[7]}" in place(cluster, namespace, name, "by-prometheus") else ""

        # On a busy machine several answers in a row may time out, until what they said is too old
        packed = eventually("the node that is nearly as busy is taken", placed)

        def scores() -> dict[str, str] | None:
            rows = [line.split() for line in explained(cluster, namespace, packed) if PREFIX in line]
            found = {row[0]: row[3] for row in rows}
            return found if found[f"{names[7]}*"].isdecimal() else None

        table = eventually("each node has its score", scores)
        (score,) = {table[name] for name in names[:7]}
        assert 0 < int(score) < int(table[f"{names[7]}*"])
        avoids_nodes_without_metrics(cluster, namespace, prometheus, names[9])
        os.kill(prometheus.pid, signal.SIGSTOP)
        try:
            eventually("timeouts", lambda: metrics_condition(cluster, "Timeout", "by-prometheus", "ProviderReady"))
            assert "Successfully assigned" in place_again(cluster, namespace, "by-prometheus")
            eventually(
                "requests decide",
                lambda: "metrics of too few nodes" in place_again(cluster, namespace, "by-prometheus"),
            )
            eventually("no metrics are left", lambda: metrics_condition(cluster, "AllMissing", "by-prometheus"))
        finally:
            os.kill(prometheus.pid, signal.SIGCONT)
        eventually("an answer", lambda: metrics_condition(cluster, "Answering", "by-prometheus", "ProviderReady"))
        eventually(
            "metrics decide", lambda: "metrics of too few nodes" not in place_again(cluster, namespace, "by-prometheus")
        )
    text = operator.get("/metrics")
    assert re.search(r'provider_polls_total\{profile="by-prometheus",result="Timeout"\} [1-9]', text)

    def reported() -> bool:
        found = cluster.get("events", "--field-selector", "involvedObject.name=by-prometheus")["items"]
        reasons = {e["reason"] for e in found if e["reason"] != "MetricProviderFailed" or "Timeout: " in e["message"]}
        return reasons == {"MetricProviderFailed", "MetricProviderRecovered"}

    eventually("events report the timeout and its end", reported)


def avoids_nodes_without_metrics(cluster: Cluster, namespace: str, prometheus: Prometheus, measured: str) -> None:
    """With metricsPolicy Avoid all pods go to the one node that is measured, however busy it is."""
    wanted = profile("avoiding", SCORES[1:2])
    query = {"cpu": {"latest": f'node_load_ratio{{node="{measured}"}}'}}
    wanted["spec"] |= {
        "metricsPolicy": "Avoid",
        "metricProvider": {"type": "Prometheus", "prometheus": {"address": prometheus.url, "queries": query}},
    }
    cluster.apply(wanted)
    for index in range(3):
        assert f"to {measured}" in place(cluster, namespace, f"avoiding-{index}", "avoiding")
    missing = eventually("the other nodes lack metrics", lambda: metrics_condition(cluster, "SomeMissing", "avoiding"))
    assert f"TargetLoadPacking lacks that of {NODES - 1} (missingMetrics Avoid)" in missing["message"]
    cluster.kubectl("delete", "sprof", "avoiding")


def test_what_was_decided_without_metrics_is_counted(concerto_cluster, operator, nodes, namespace):
    assert "metrics of too few nodes" in place_again(concerto_cluster, namespace)

    def counted() -> Any:
        status = concerto_cluster.get("sprof", "load-only")["status"]
        return status if status["fallbacks"] else None

    # Counts alone are written twice a minute at most; one such write may fail
    status = eventually("the status counts it", counted)
    assert {a["plugin"] for a in status["abstentions"]} == {"TargetLoadPacking", "LoadVariationRiskBalancing"}
    assert re.search(r'concerto_score_abstentions_total\{plugin="TargetLoadPacking"\} [1-9]', operator.get("/metrics"))


def test_an_edit_is_in_use_without_a_restart_and_the_status_says_which(concerto_cluster, operator, namespace):
    concerto_cluster.apply(profile("load-only", [SCORES[0], SCORES[4]]))
    generation = concerto_cluster.get("sprof", "load-only")["metadata"]["generation"]
    eventually(
        "seen", lambda: concerto_cluster.get("sprof", "load-only")["status"].get("observedGeneration") == generation
    )
    assert "NodeResourcesFit" in place(concerto_cluster, namespace, "edited", "load-only")
