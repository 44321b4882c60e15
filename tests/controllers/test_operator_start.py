"""What an operator cannot start with: one sentence and status 2, before anything is sent to the API server."""

from __future__ import annotations

import json
import logging
import socket
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import kopf
import pytest

from concerto.controllers import operator
from concerto.serving import certificate
from concerto.serving.certificate import CertificateError

CA = {"certificate-authority-data": "bm90IGEgY2VydGlmaWNhdGU="}


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    def run(**_):
        raise AssertionError("kopf runs")

    monkeypatch.setattr(kopf, "run", run)
    before = logging.getLogger("kopf").level
    yield
    logging.getLogger("kopf").setLevel(before)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def kubeconfig(directory: Path, **cluster: str) -> Path:
    path = directory / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9", **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def sentence(capsys, *arguments: str) -> str:
    """What an operator with these arguments prints before it ends with status 2: one line."""
    parser = ArgumentParser()
    operator.add_arguments(parser)
    assert operator.run(parser.parse_args(arguments)) == 2
    err = capsys.readouterr().err
    assert err.startswith("concerto operator: ") and err.count("\n") == 1, err
    return str(err.removeprefix("concerto operator: ").rstrip("\n"))


@pytest.mark.parametrize("option", ["--bind", "--secure-metrics-bind"])
def test_an_address_that_is_taken_is_named(option, taken, tmp_path, capsys):
    arguments = ["--bind=127.0.0.1:0", f"--kubeconfig={kubeconfig(tmp_path)}", f"{option}={taken}"]
    assert sentence(capsys, *arguments) == f"cannot listen on {taken}: Address already in use"


@pytest.mark.parametrize(
    "bind", ["192.0.2.1:80", "nosuch.invalid:80", f"{'a' * 64}.example:80", "a..b:80", "[::1]x:80"]
)
def test_an_address_that_this_machine_does_not_have_is_named(bind, tmp_path, capsys):
    assert sentence(capsys, f"--kubeconfig={kubeconfig(tmp_path)}", f"--bind={bind}").startswith("cannot listen on ")


def test_a_certificate_authority_that_is_not_one_is_named(tmp_path, capsys):
    text = sentence(capsys, f"--kubeconfig={kubeconfig(tmp_path, **CA)}", "--bind=127.0.0.1:0")
    assert text.startswith("TLS material for https://127.0.0.1:9 cannot be used: ")


def test_an_openssl_that_makes_no_certificate_is_named(tmp_path, capsys, monkeypatch):
    def fail(_: str) -> bytes:
        raise CertificateError("OpenSSL: X509_sign failed")

    monkeypatch.setattr(certificate, "_make", fail)
    arguments = [f"--kubeconfig={kubeconfig(tmp_path)}", "--bind=127.0.0.1:0", "--secure-metrics-bind=127.0.0.1:0"]
    assert sentence(capsys, *arguments) == "OpenSSL: X509_sign failed"


PROMETHEUS = "--autoscaling-prometheus-url=http://127.0.0.1:9090"
FILES = {
    "a token without a server": (["--autoscaling-prometheus-token-file={}/token"], "go with --autoscaling-prometheus"),
    "certificates without a server": (["--autoscaling-prometheus-ca-file={}/token"], "go with --autoscaling-prometh"),
    "no such token": ([PROMETHEUS, "--autoscaling-prometheus-token-file={}/none"], "cannot read the token in"),
    "an empty token": ([PROMETHEUS, "--autoscaling-prometheus-token-file={}/empty"], "does not contain a token"),
    "a folder": ([PROMETHEUS, "--autoscaling-prometheus-token-file={}"], "cannot read the token in"),
    "no such certificates": ([PROMETHEUS, "--autoscaling-prometheus-ca-file={}/none"], "cannot read certificates in"),
    "other than certificates": ([PROMETHEUS, "--autoscaling-prometheus-ca-file={}/token"], "has no certificates in P"),
}


@pytest.mark.parametrize(("arguments", "expected"), FILES.values(), ids=FILES)
def test_files_for_prometheus_are_read_before_any_cluster_is_looked_for(
    arguments, expected, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(operator, "load_config", lambda *_: pytest.fail("a cluster was looked for"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "empty").write_text("\n")
    text = sentence(capsys, *(each.format(tmp_path) for each in arguments))
    assert text.startswith("--autoscaling-prometheus-")
    assert expected in text
    assert "secret" not in text


@pytest.mark.parametrize(
    "arguments", [["--controllers=pinning"], ["--leader-elect-renew-deadline=20s"], ["--leader-elect-retry-period=10s"]]
)
def test_options_that_contradict_each_other_are_refused_before_any_cluster_is_looked_for(
    arguments, capsys, monkeypatch
):
    monkeypatch.setattr(operator, "load_config", lambda *_: pytest.fail("a cluster was looked for"))
    assert sentence(capsys, *arguments).startswith(("--controllers=pinning needs", "--leader-elect-retry-period"))


@pytest.mark.parametrize(
    "url",
    ["nope", "", "ftp://prometheus", "http://", "http://:9090", "http://a b", "http://a:70000", "http://a:b",
     "http://[1", "http://a/?b=c", "http://a/#b", "http://a\u00a0b", "prometheus:9090"],
)  # fmt: skip
def test_a_url_that_no_server_has_is_refused(url, capsys):
    parser = ArgumentParser()
    operator.add_arguments(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([f"--autoscaling-prometheus-url={url}"])
    assert ended.value.code == 2
    expected = f"{url!r} is not an http or https URL: write for example http://prometheus.monitoring:9090"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    "url", ["http://prometheus:9090", "https://10.0.0.1/prometheus/", "http://[fd00::1]:9090", "HTTPS://u:p@a.b"]
)
def test_urls_of_servers_are_taken(url):
    parser = ArgumentParser()
    operator.add_arguments(parser)
    assert parser.parse_args([f"--autoscaling-prometheus-url={url}"]).autoscaling_prometheus_url == url
    assert operator.autoscaling_settings(parser.parse_args([])).prometheus.address == ""
