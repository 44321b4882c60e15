from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from concerto.kube import ClusterConfig, ConfigError
from concerto.kube.config import TOKEN_REREAD_SECONDS, TokenSource


def kubeconfig(path: Path, *, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None) -> Path:
    document = {
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "far", "user": "me"}},
            {"name": "here", "context": {"cluster": "near", "user": "me", "namespace": "mine"}},
        ],
        "clusters": [
            {"name": "near", "cluster": cluster or {"server": "https://near:6443/"}},
            {"name": "far", "cluster": {"server": "https://far:6443"}},
        ],
        "users": [{"name": "me", "user": user or {"token": "secret"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_the_current_context_counts_unless_another_is_named(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "config")
    here, there = ClusterConfig.from_kubeconfig(path), ClusterConfig.from_kubeconfig(path, "there")
    assert (here.server, here.namespace, here.token) == ("https://near:6443", "mine", "secret")
    assert (there.server, there.namespace) == ("https://far:6443", "default")


def test_files_are_found_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "me.pem").write_text("CERT")
    config = ClusterConfig.from_kubeconfig(
        kubeconfig(
            tmp_path / "config",
            cluster={"server": "https://near", "certificate-authority": "ca.pem"},
            user={
                "client-certificate": str(tmp_path / "me.pem"),
                "client-key-data": base64.b64encode(b"KEY").decode(),
                "tokenFile": "token",
            },
        )
    )
    assert config.certificate_authority_data == "CA"
    assert (config.client_certificate, config.client_key) == ("CERT", "KEY")
    assert config.token_file == str(tmp_path / "token")


BAD = {
    "no such file": (lambda p: p / "absent", "absent"),
    "no such context": (lambda p: kubeconfig(p / "config"), "no context named 'nowhere'"),
    "a file that is not there": (
        lambda p: kubeconfig(p / "config", user={"client-certificate": "gone.pem"}),
        "client-certificate .*gone.pem",
    ),
    "a credential plugin": (lambda p: kubeconfig(p / "config", user={"exec": {"command": "x"}}), "credential plugin"),
    "a cluster without a server": (lambda p: kubeconfig(p / "config", cluster={"a": "b"}), "no server"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_used_is_said(tmp_path: Path, make: Any, words: str) -> None:
    context = "nowhere" if "nowhere" in words else None
    with pytest.raises(ConfigError, match=words):
        ClusterConfig.from_kubeconfig(make(tmp_path), context)


def test_a_pod_finds_its_server_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("concerto-system")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    config = ClusterConfig.in_cluster(tmp_path)
    assert config.server == "https://[fd00::1]:6443"
    assert config.namespace == "concerto-system"
    assert TokenSource(config).token() == "secret"

    with pytest.raises(ConfigError, match="not in a pod"):
        ClusterConfig.in_cluster(tmp_path / "elsewhere")


def test_the_file_given_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = kubeconfig(tmp_path / "given", cluster={"server": "https://given"})
    around = kubeconfig(tmp_path / "around", cluster={"server": "https://around"})
    monkeypatch.setenv("KUBECONFIG", str(around))
    assert ClusterConfig.load(given).server == "https://given"
    assert ClusterConfig.load().server == "https://around"
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no cluster"):
        ClusterConfig.load()


def test_secrets_do_not_show_in_a_traceback() -> None:
    config = ClusterConfig("https://a", token="SECRET", client_key="SECRET")
    assert "SECRET" not in repr(config)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_is_read_again_every_minute(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenSource(ClusterConfig("https://a", token_file=str(file)), clock)
    assert tokens.token() == "first"
    file.write_text("second")
    clock.now += TOKEN_REREAD_SECONDS - 1
    assert tokens.token() == "first"
    clock.now += 1
    assert tokens.token() == "second"


def test_a_token_that_is_refused_is_read_again_at_once(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenSource(ClusterConfig("https://a", token_file=str(file)), clock)
    assert tokens.token() == "first"
    assert not tokens.refused("first")
    file.write_text("second")
    assert tokens.refused("first")
    assert tokens.token() == "second"
    # another request that was sent with the first one meanwhile: there is a newer one already
    assert tokens.refused("first")


def test_a_token_file_that_is_away_for_a_moment_does_no_harm(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenSource(ClusterConfig("https://a", token_file=str(file)), clock)
    assert tokens.token() == "first"
    file.unlink()
    clock.now += TOKEN_REREAD_SECONDS
    assert tokens.token() == "first"
    file.write_text("second")
    assert tokens.token() == "second"

    with pytest.raises(ConfigError, match="absent"):
        TokenSource(ClusterConfig("https://a", token_file=str(tmp_path / "absent"))).token()


def test_a_fixed_token_has_nothing_newer() -> None:
    assert not TokenSource(ClusterConfig("https://a", token="only")).refused("only")


def test_tls_material_is_checked_when_it_is_loaded(tmp_path: Path) -> None:
    assert ClusterConfig("http://plain").ssl_context() is True
    with pytest.raises(ConfigError, match="TLS material"):
        ClusterConfig("https://a", certificate_authority_data="not a certificate").ssl_context()

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-subj", "/CN=a"], check=True, capture_output=True,
    )  # fmt: skip
    config = ClusterConfig(
        "https://a",
        certificate_authority_data=certificate.read_text(),
        client_certificate=certificate.read_text(),
        client_key=key.read_text(),
    )
    context = config.ssl_context()
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1
