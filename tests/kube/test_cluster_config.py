from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from concerto.kube import ClusterConfig, ConfigError
from concerto.kube.credentials import TOKEN_REREAD_SECONDS, Credentials, FixedCredentials, TokenFile
from concerto.kube.tls import AUTHORITY_REREAD_SECONDS, TlsContexts


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


def test_the_current_context_counts(tmp_path: Path) -> None:
    config = ClusterConfig.from_kubeconfig(kubeconfig(tmp_path / "config"))
    assert (config.server, config.namespace, config.token) == ("https://near:6443", "mine", "secret")


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
    assert config.certificate_authority == str(tmp_path / "ca.pem")
    assert (config.client_certificate, config.client_key) == ("CERT", "KEY")
    assert config.token_file == str(tmp_path / "token")


def stranger(path: Path) -> Path:
    path.write_text(kubeconfig(path).read_text().replace("user: me", "user: stranger"))
    return path


BAD = {
    "no such file": (lambda p: p / "absent", "absent"),
    "no such user": (lambda p: stranger(p / "config"), "no user named 'stranger'"),
    "a file that is not there": (
        lambda p: kubeconfig(p / "config", user={"client-certificate": "gone.pem"}),
        "client-certificate .*gone.pem",
    ),
    "a credential plugin": (
        lambda p: kubeconfig(p / "config", user={"exec": {"command": "x"}}),
        "exec is not supported",
    ),
    "a cluster without a server": (lambda p: kubeconfig(p / "config", cluster={"a": "b"}), "no server"),
}


@pytest.mark.parametrize(("make", "words"), BAD.values(), ids=BAD.keys())
def test_an_error_names_what_cannot_be_used(tmp_path: Path, make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ClusterConfig.from_kubeconfig(make(tmp_path))


async def test_a_pod_finds_its_server_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("concerto-system")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    config = ClusterConfig.in_cluster(tmp_path)
    assert config.server == "https://[fd00::1]:6443"
    assert config.namespace == "concerto-system"
    assert (await config.credential_source().current()).authorization == "Bearer secret"

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


async def test_a_token_is_read_again_every_minute(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenFile(file, clock)
    assert await tokens.current() == Credentials("Bearer first")
    file.write_text("second")
    clock.now += TOKEN_REREAD_SECONDS - 1
    assert await tokens.current() == Credentials("Bearer first")
    clock.now += 1
    assert await tokens.current() == Credentials("Bearer second")


async def test_a_token_that_is_refused_is_read_again_at_once(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenFile(file, clock)
    first = await tokens.current()
    assert not await tokens.refresh(first)
    file.write_text("second")
    assert await tokens.refresh(first)
    assert await tokens.current() == Credentials("Bearer second")
    # another request that was sent with the first one meanwhile: there is a newer one already
    assert await tokens.refresh(first)


@pytest.mark.parametrize("fault", [Path.unlink, lambda file: file.write_text("")], ids=["gone", "empty"])
async def test_a_token_file_that_is_away_for_a_moment_does_no_harm(tmp_path: Path, fault: Any) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = TokenFile(file, clock)
    assert await tokens.current() == Credentials("Bearer first")
    fault(file)
    clock.now += TOKEN_REREAD_SECONDS
    assert await tokens.current() == Credentials("Bearer first")
    file.write_text("second")
    assert await tokens.current() == Credentials("Bearer second")

    with pytest.raises(ConfigError, match="absent"):
        await TokenFile(tmp_path / "absent").current()


async def test_a_fixed_token_has_nothing_newer() -> None:
    source = ClusterConfig("https://a", token="only").credential_source()
    assert isinstance(source, FixedCredentials)
    assert not await source.refresh(await source.current())


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    key, certificate = directory / f"{name}-key.pem", directory / f"{name}.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", certificate, "-subj", f"/CN={name}"], check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


def test_tls_material_is_checked_when_it_is_loaded(tmp_path: Path) -> None:
    assert TlsContexts(ClusterConfig("http://plain")).context(Credentials()) is True
    for bad in ("not a certificate", " "):
        with pytest.raises(ConfigError, match=r"cannot be used|is empty"):
            TlsContexts(ClusterConfig("https://a", certificate_authority_data=bad)).context(Credentials())

    authority, key = certificate(tmp_path, "a")
    config = ClusterConfig("https://a", certificate_authority_data=authority.read_text())
    context = TlsContexts(config).context(Credentials(None, authority.read_text(), key.read_text()))
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert len(context.get_ca_certs()) == 1


def subjects(context: ssl.SSLContext | bool) -> set[str]:
    assert isinstance(context, ssl.SSLContext)
    return {field[0][1] for found in context.get_ca_certs() for field in found["subject"]}  # type: ignore[index,misc]


def test_a_rotated_certificate_authority_is_read_again(tmp_path: Path) -> None:
    file, clock = tmp_path / "ca.crt", Clock()
    old, new = (certificate(tmp_path, name)[0].read_text() for name in ("old", "new"))
    file.write_text(old)
    contexts = TlsContexts(ClusterConfig("https://a", certificate_authority=str(file)), clock)
    first = contexts.context(Credentials())
    assert subjects(first) == {"old"}
    clock.now += AUTHORITY_REREAD_SECONDS
    assert contexts.context(Credentials()) is first  # nothing has changed: connections are shared
    file.write_text(old + new)
    assert contexts.context(Credentials()) is first
    contexts.expect_rotation()  # a server's certificate was not signed by it
    assert subjects(contexts.context(Credentials())) == {"old", "new"}
    # half written: what was good stays in use
    clock.now += AUTHORITY_REREAD_SECONDS
    file.write_text("")
    assert subjects(contexts.context(Credentials())) == {"old", "new"}
    clock.now += AUTHORITY_REREAD_SECONDS
    file.write_text(new)
    assert subjects(contexts.context(Credentials())) == {"new"}
