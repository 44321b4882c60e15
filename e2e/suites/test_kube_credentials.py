"""Credentials from kubeconfigs on a real API server: a plugin whose tokens end, a configuration in two files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from concerto.kube import Session
from concerto.kube.kubeconfig import load_config
from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import concerto_command

WHO = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
PLUGIN = """#!{python}
import datetime, json
from pathlib import Path
runs = Path({runs!r})
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
status = {{"token": Path({token!r}).read_text(), "expirationTimestamp": end.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""


def split(cluster: Cluster, namespace: str, directory: Path) -> tuple[str, Path, Path]:
    """KUBECONFIG of two files, the second with a user whose plugin prints the token in a file, and counts its runs."""
    whole = yaml.safe_load(cluster.token_kubeconfig(namespace, "default").read_text())
    token, runs, plugin = (directory / name for name in ("token", "runs", "plugin"))
    token.write_text(Path(whole["users"][0]["user"]["tokenFile"]).read_text())
    plugin.write_text(PLUGIN.format(python=sys.executable, runs=str(runs), token=str(token)))
    plugin.chmod(0o700)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}
    }
    users = [{"name": whole["users"][0]["name"], "user": user}]
    (directory / "clusters").write_text(yaml.safe_dump({**whole, "users": []}))
    (directory / "users").write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "users": users}))
    return f"{directory / 'clusters'}{os.pathsep}{directory / 'users'}", token, runs


async def who(session: Session) -> str:
    answer = await session.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", WHO)
    return str(answer["status"]["userInfo"]["username"])


async def test_a_plugin_is_run_again_before_its_token_ends(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig, token, runs = split(cluster, namespace, tmp_path)
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    async with await Session.open(load_config()) as session:
        assert await who(session) == f"system:serviceaccount:{namespace}:default"
        cluster.kubectl("create", "serviceaccount", "-n", namespace, "another")
        token.write_text(cluster.service_account_token(namespace, "another"))
        async with asyncio.timeout(30):
            while await who(session) != f"system:serviceaccount:{namespace}:another":
                await asyncio.sleep(0.2)
        # 20 requests and more, and a run about every 4 s
        assert 2 <= len(runs.read_text()) <= 8


def test_the_command_line_takes_a_plugin_two_files_and_a_context(
    concerto_cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    kubeconfig, _, runs = split(concerto_cluster, namespace, tmp_path)
    context = yaml.safe_load((tmp_path / "clusters").read_text())["current-context"]
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    done = subprocess.run(
        concerto_command("top", "--context", context), capture_output=True, text=True, env=environment
    )
    # Known by its token, and not allowed to look, whichever of its requests is refused first
    assert "forbidden" in done.stderr.lower()
    assert f'User "system:serviceaccount:{namespace}:default" cannot ' in done.stderr
    assert runs.read_text() == "x"
    done = subprocess.run(
        concerto_command("explain", "pod", "a/b", "--context", "nowhere"),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert (done.returncode, "nowhere" in done.stderr) == (1, True), json.dumps(done.stderr)
