"""Debian's real Prometheus scrapes a running system; every query of the dashboard has an answer, and nothing warns."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from concerto.api.predictivehpa import PredictiveHPA
from concerto.controllers.autoscaling.status import target_digest
from e2e.suites.test_agent_publishes import make_node
from e2e.suites.test_phpa_controller import deployment, phpa
from e2e.testbed.clusters import Cluster
from e2e.testbed.clusters.local import free_ports
from e2e.testbed.metrics_api import MetricsAPI, Readings
from e2e.testbed.metrics_api.readings import PodReading
from e2e.testbed.processes import NAMESPACE, agent_process, autoscaler_process, operator_process
from e2e.testbed.prometheus import Prometheus, Target, prometheus_available
from e2e.testbed.system import REPOSITORY, hollow_nodes
from e2e.testbed.waiting import eventually
from support.crd_schemas import documents

MONITORING = REPOSITORY / "manifests" / "components" / "monitoring"
PANELS = {p["title"]: p for p in json.loads((MONITORING / "dashboard.json").read_text())["panels"]}
RULES = [r for g in documents(MONITORING / "rules.yaml")[0]["spec"]["groups"] for r in g["rules"]]
# pods' first seconds count, so that nobody has to wait for half a minute of them
FAST = [f"--autoscaling-{what}=1s" for what in ("sync-period", "cpu-initialization-period", "initial-readiness-delay")]
# What is slow where others take the CPU
OF_A_BUSY_MACHINE = {"ConcertoCyclesSlow", "ConcertoAgentMissesSamples"}
READER = "concerto-metrics-reader"
SERVING = ("operator", "autoscaler", "agent")
AVAILABLE, REASON = prometheus_available()
pytestmark = pytest.mark.skipif(not AVAILABLE, reason=REASON)


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    """Where each serves /metrics."""
    return {name: f"127.0.0.1:{port}" for name, port in zip(SERVING, free_ports(len(SERVING)), strict=True)}


@pytest.fixture(scope="module")
def prometheus(
    concerto_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, addresses: dict[str, str]
) -> Iterator[Prometheus]:
    """Scraping an operator that places and scales pods of simulated nodes, and the agent of a node."""
    cluster, logs = concerto_cluster, tmp_path_factory.mktemp("monitoring")
    make_node(cluster, "scraped")
    apply_access(cluster)
    token = cluster.service_account_token(NAMESPACE, READER)
    binds = {name: ["--secure-metrics-bind", address] for name, address in addresses.items()}
    operator = operator_process(cluster, logs, "operator-monitoring", binds["operator"])
    autoscaler = autoscaler_process(cluster, logs, [*FAST, *binds["autoscaler"]])
    agent = agent_process(cluster, logs, "scraped", ["--pinning", *binds["agent"]], serves_metrics=True)
    web = deployment("web", 2, {"cpu": "100m"})
    web["spec"]["template"]["spec"]["schedulerName"] = "concerto"
    scaler = phpa("web", prediction={"mode": "Auto", "horizon": "5s"})
    web, scaler = ({**o, "metadata": {**o["metadata"], "namespace": "monitored"}} for o in (web, scaler))
    targets = [Target(address, {"instance": name}, token=token) for name, address in addresses.items()]
    try:
        with (
            hollow_nodes(cluster, 2, "--prefix", "monitored"),
            MetricsAPI(cluster, cluster.work_dir) as api,
            Prometheus(logs, targets) as server,
        ):
            agent.start()
            cluster.kubectl("create", "namespace", "monitored")
            cluster.apply(scaler)
            remember_load(cluster)
            operator.start()
            autoscaler.start()
            # a rate is of what comes after the first scrape
            eventually("a leader of each", lambda: len(server.query("concerto_leader == 1")) == 2)
            cluster.apply(web)
            for metric in ("concerto_phpa_forecast_error_percent", "concerto_phpa_rescales_total"):
                eventually(metric, lambda metric=metric: say_load(cluster, api) or server.query(metric))
            yield server
    finally:
        for process in (agent, operator, autoscaler):
            process.stop()
        cluster.kubectl("delete", "namespace", "monitored", "--wait=false", "--ignore-not-found")
        cluster.kubectl("delete", "node", "scraped", "--ignore-not-found")


def apply_access(cluster: Cluster) -> None:
    """The account that Prometheus scrapes with; the kinds of the Prometheus operator are not served here."""
    cluster.kubectl("apply", "-f", str(MONITORING / "access.yaml"))


def status_of_metrics(address: str, token: str | None) -> int:
    """What a scrape without or with this token gets."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"https://{address}/metrics")
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20, context=trusting) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("name", SERVING)
def test_metrics_are_for_those_who_may_get_them(
    prometheus: Prometheus, concerto_cluster: Cluster, addresses: dict[str, str], name: str
):
    strangers = concerto_cluster.service_account_token("default", "default")
    reader = concerto_cluster.service_account_token(NAMESPACE, READER)
    found = [status_of_metrics(addresses[name], token) for token in (None, "made-up", strangers, reader)]
    assert found == [401, 401, 403, 200]


def remember_load(cluster: Cluster) -> None:
    """Let the autoscaler find, as after a restart, ten minutes of load in the status: a forecast takes two of them."""
    found = PredictiveHPA.from_raw(cluster.get("phpa", "web", "-n", "monitored"))
    values = [1000 + 20 * step for step in range(40)]
    history = {"stepSeconds": 15, "last": int(time.time() // 15) - 1, "count": 1, "values": values}
    status = {"status": {"history": [history], "historyOf": target_digest(found)}}
    patch = ("--subresource=status", "--type=merge", "-p", json.dumps(status))
    cluster.kubectl("patch", "phpa", "web", "-n", "monitored", *patch)


def say_load(cluster: Cluster, api: MetricsAPI) -> None:
    """Say of each pod of web that it uses enough to have web scaled."""
    pods = cluster.get("pods", "-n", "monitored")["items"]
    reading = {"app": {"cpu": "80m", "memory": "16Mi"}}
    api.readings = Readings(
        pods={("monitored", p["metadata"]["name"]): PodReading(p["metadata"]["labels"], reading, "1s") for p in pods}
    )


@pytest.mark.parametrize("title", PANELS)
def test_every_query_of_the_dashboard_has_an_answer(prometheus: Prometheus, title: str):
    for target in PANELS[title]["targets"]:
        expression = target["expr"].replace("$__rate_interval", "30s")
        for variable in ("$namespace", "$phpa"):
            expression = expression.replace(variable, ".*")

        def answered(expression: str = expression) -> bool:
            # a quantile of nothing is not a number, and a rate is of two samples
            return any(float(sample["value"][1]) >= 0 for sample in prometheus.query(expression))

        eventually(f"{expression} has an answer", answered)


def test_nothing_warns_of_a_system_that_is_well(prometheus: Prometheus, say: Callable[[str], None]):
    def warned() -> dict[str, list[dict[str, Any]]]:
        found = {rule["alert"]: prometheus.query(rule["expr"]) for rule in RULES}
        return {alert: series for alert, series in found.items() if series and alert not in OF_A_BUSY_MACHINE}

    # What lasts less than a minute raises no alert
    eventually(lambda: f"nothing warns, as these do: {warned()}", lambda: not warned())
    for rule in RULES:
        if rule["alert"] in OF_A_BUSY_MACHINE and prometheus.query(rule["expr"]):
            say(f"monitoring: {rule['alert']} would warn: this machine is busy")


def test_no_label_has_a_value_for_each_pod(prometheus: Prometheus):
    series = prometheus.query('{__name__=~"concerto_.+"}')
    assert series
    names = {value for s in series for value in s["metric"].values()}
    assert not any(name.startswith("web-") for name in names)
