"""The default queries, evaluated by Prometheus's own engine over what the exporters would have said."""

import shutil
import subprocess
from typing import get_args

import pytest
import yaml

from concerto.api.metric_provider import MetricProviderSettings, PrometheusSettings
from concerto.api.prometheus_queries import Exporter, default_queries, ranges

CPUS = 4
GIB = 2**30
MINUTES = 31
# Seconds of each CPU's minute: a is half busy all the time, and b is idle and busy for 5 minutes each
BUSY = {"a": [30] * MINUTES, "b": [0 if (m // 5) % 2 == 0 else 60 for m in range(MINUTES)]}
MEMORY = {"a": [4 * GIB] * MINUTES, "b": [(2 if (m // 5) % 2 == 0 else 6) * GIB for m in range(MINUTES)]}


def counter(per_minute):
    """A counter's samples, a minute apart, from its growth in each minute."""
    total, samples = 0, []
    for growth in per_minute:
        samples.append(str(total))
        total += growth
    return " ".join(samples)


def node_exporter():
    for node, busy in BUSY.items():
        label = f'instance="{node}:9100",job="node"'
        half_idle = [(60 - b) // 2 for b in busy]
        for cpu in range(CPUS):
            for mode, growth in (("user", busy), ("idle", half_idle), ("iowait", half_idle)):
                yield f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}",{label}}}', counter(growth)
        yield f"node_memory_MemAvailable_bytes{{{label}}}", " ".join(str(8 * GIB - m) for m in MEMORY[node])
        yield f"node_memory_MemTotal_bytes{{{label}}}", f"{8 * GIB}x{MINUTES}"


def cadvisor():
    for node, busy in BUSY.items():
        label = f'instance="{node}:10250",job="kubelet"'
        yield f'container_cpu_usage_seconds_total{{id="/",cpu="total",{label}}}', counter(CPUS * b for b in busy)
        yield f'container_cpu_usage_seconds_total{{id="/kubepods",cpu="total",{label}}}', counter(busy)
        yield f"machine_cpu_cores{{{label}}}", f"{CPUS}x{MINUTES}"
        yield f"machine_memory_bytes{{{label}}}", f"{8 * GIB}x{MINUTES}"
        yield f'container_memory_working_set_bytes{{id="/",{label}}}', " ".join(map(str, MEMORY[node]))


EXPORTERS = {"NodeExporter": (node_exporter, "9100"), "CAdvisor": (cadvisor, "10250")}
# At minute 30, b was idle from 20 to 25 and busy from 25 to 30. Points of a rate lag behind by up to 2 minutes
EXPECTED = {
    ("cpu", "average"): {"a": 0.5, "b": 0.5},
    ("cpu", "latest"): {"a": 0.5, "b": 1.0},
    ("cpu", "deviation"): {"a": 0.0, "b": 0.5},
    ("memory", "average"): {"a": 0.5, "b": 0.5},
    ("memory", "latest"): {"a": 0.5, "b": 0.25},
    ("memory", "deviation"): {"a": 0.0, "b": 0.25},
}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_they_give_each_nodes_fraction_of_the_machine(exporter, tmp_path):
    made, port = EXPORTERS[exporter]
    tests = []
    for key, expression in default_queries(exporter).items():
        asked = expression.replace("$window", "10m").replace("$nodeLabel", "instance")
        samples = [{"labels": f'{{instance="{n}:{port}"}}', "value": v} for n, v in EXPECTED[key].items()]
        # Rates are extrapolated, and points are 30 s apart
        tests.append({"expr": f"round({asked}, 0.125)", "eval_time": "30m", "exp_samples": samples})
    series = [{"series": name, "values": values} for name, values in made()]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


RANGES = {
    "avg_over_time(x[5m])": ("5m",),
    "avg_over_time(x[5m:30s])": ("5m",),
    "avg_over_time(rate(x[2m])[$window:])": ("2m", "$window"),
    'x{a="[1h]"}': (),
    "x": (),
}


@pytest.mark.parametrize(("expression", "found"), RANGES.items(), ids=RANGES)
def test_ranges_are_found(expression, found):
    assert ranges(expression) == found


def prometheus(**raw):
    provider = {"type": "Prometheus", "prometheus": {"address": "http://p:9090", **raw}}
    return MetricProviderSettings.from_raw(provider).prometheus


@pytest.mark.parametrize("exporter", get_args(Exporter))
def test_an_exporter_gives_all_queries_and_its_label_and_own_queries_come_first(exporter):
    made = prometheus(exporter=exporter, queries={"cpu": {"average": "mine by ($nodeLabel)"}})
    assert made.node_label == "instance"
    by_name = {query.name: query.expression for query in made.queries}
    assert set(by_name) == {f"{r}.{s}" for r in ("cpu", "memory") for s in ("average", "standardDeviation", "latest")}
    assert by_name["cpu.average"] == "mine by (instance)"
    assert "$nodeLabel" not in "".join(by_name.values())
    assert prometheus(exporter=exporter, nodeLabel="node").node_label == "node"
    assert prometheus(queries={"cpu": {"latest": "x"}}).node_label == "node"


def test_neither_queries_nor_an_exporter_is_an_error():
    with pytest.raises(ValueError, match="neither queries nor an exporter"):
        PrometheusSettings.from_raw({"address": "http://p"})
