"""Fixtures that give tests a cluster, and a summary that says what could run on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from concerto.kube import ClusterConfig, Session
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import Cluster, LocalControlPlane, NoCluster, open_cluster
from e2e.testbed.clusters.proxy import Wire
from e2e.testbed.failpoints import Failpoint
from e2e.testbed.recorder_verdict import IN_FLIGHT
from e2e.testbed.requirements import (
    add_to_summary,
    require_binaries,
    require_local_plane,
    skip_without_cluster,
    summary_lines,
)
from e2e.testbed.waiting import eventually

# What a test that asks for one of these fixtures needs
_NEEDS_CLUSTER = {"cluster", "control_plane", "namespace", "installed", "own_plane", "admin"}
# What a module that starts nodes imports
_WITH_NODES = {"RealNodes", "real_system"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _NEEDS_CLUSTER & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.apiserver)
    if hasattr(config, "workerinput"):  # what takes longest begins first, beside all else
        items.sort(key=lambda item: (not _WITH_NODES & set(dir(item.module)), not item.nodeid.startswith("e2e/")))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the lines of a process of `-n` for the summary."""
    add_to_summary(*getattr(node, "workeroutput", {}).get("summary", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["summary"] = summary_lines


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a line now, past pytest's capture, and again at the end: what takes long has to show its progress."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def print_line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}" if not summary_lines else text, file=sys.stderr, flush=True)
        add_to_summary(text)

    return print_line


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, say: Callable[[str], None]) -> Iterator[Cluster]:
    """A Kubernetes API server that tests may do anything to, shared by the whole run."""
    options = request.config.option
    try:
        with open_cluster(say, kubeconfig=options.kubeconfig, keep=options.keep_cluster) as found:
            yield found
            if request.session.testsfailed and isinstance(found, LocalControlPlane):
                # each process of `-n` has a control plane of its own
                logs = REPOSITORY / "build" / "e2e-logs" / os.environ.get("PYTEST_XDIST_WORKER", "")
                shutil.copytree(found.logs, logs, dirs_exist_ok=True)
                say(f"logs of the control plane: {logs}")
    except NoCluster as error:
        skip_without_cluster(error)


@pytest.fixture(scope="module")
def own_plane(say: Callable[[str], None]) -> Iterator[LocalControlPlane]:
    """A control plane for one module alone, for what would disturb others."""
    with LocalControlPlane(require_binaries(say)) as started:
        yield started


@pytest.fixture(scope="module")
def failpoint(tmp_path_factory: pytest.TempPathFactory) -> Failpoint:
    """Where processes of this module end that read it."""
    return Failpoint(tmp_path_factory.mktemp("failpoint") / "failpoint")


@pytest.fixture
def control_plane(cluster: Cluster) -> LocalControlPlane:
    """The cluster, if it is one whose API server can be stopped and started."""
    return require_local_plane(cluster)


@pytest.fixture
def admin(cluster: Cluster) -> ClusterConfig:
    """How our own client reaches the cluster as its administrator."""
    return ClusterConfig.from_kubeconfig(cluster.kubeconfig)


@pytest.fixture
async def session(admin: ClusterConfig) -> AsyncIterator[Session]:
    """Our own client, as the administrator."""
    async with await Session.open(admin) as opened:
        yield opened


@pytest.fixture
async def wire(control_plane: LocalControlPlane) -> AsyncIterator[Wire]:
    """A way to the API server that can be broken."""
    async with Wire(control_plane.port) as opened:
        yield opened


@pytest.fixture
async def wired(admin: ClusterConfig, wire: Wire) -> AsyncIterator[Session]:
    """Our own client, by the way that can be broken."""
    async with await Session.open(dataclasses.replace(admin, server=f"https://127.0.0.1:{wire.port}")) as opened:
        yield opened


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A new namespace; deleted in the background afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(name)
    yield name
    cluster.remove_namespace(name)


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The cluster with Concerto's kinds, rules and default profile, but neither operator nor agents."""
    overlay = str(REPOSITORY / "manifests" / "overlays" / "local")
    # A kind and an object of that kind do not go into one apply: the first pass leaves such objects out
    cluster.kubectl("apply", "-k", overlay, check=False)
    cluster.wait("--for=condition=Established", "crd", "--all")
    cluster.kubectl("apply", "-k", overlay)
    eventually("rights and policies are in force", lambda: _refuses_what_it_must(cluster))
    return cluster


@pytest.fixture(scope="module")
def concerto_cluster(installed: Cluster) -> Cluster:
    """The same, without what operators of earlier modules left, on which placements here would depend.

    That is what was measured of other modules' pods, by which unknown pods are judged, and placement records.
    """
    installed.kubectl("delete", "subspacesnapshots.concerto.dev", "--all")
    installed.kubectl("delete", "podreservations.concerto.dev", "--all-namespaces", "-l", IN_FLIGHT)
    return installed


def _refuses_what_it_must(cluster: Cluster) -> bool:
    """Whether the rights and policies that came last are in force."""
    kind = {"apiVersion": "concerto.dev/v1alpha1"}
    reservation = {**kind, "kind": "PodReservation", "spec": {"count": 1, "podSelector": {"matchLabels": {"a": "b"}}}}
    reservation["metadata"] = {"name": "tried", "namespace": "default", "labels": {"concerto.dev/in-flight": "true"}}
    capacity = {**kind, "kind": "NodeCapacity", "metadata": {"name": "tried"}}
    dry = ("create", "--dry-run=server", "-f", "-")
    agent = "--as=system:serviceaccount:concerto-system:concerto-agent"
    in_flight = cluster.kubectl(*dry, stdin=json.dumps(reservation), check=False)
    own_node = cluster.kubectl(*dry, agent, stdin=json.dumps(capacity), check=False)
    return "must have both or neither" in in_flight and "names no node" in own_node


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which suites ran, and which were skipped for what reason."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.getreports(outcome):
            keywords = getattr(report, "keywords", {})
            if outcome == "passed" and report.when != "call":
                continue
            suite = next((name for name in ("realnode", "apiserver", "bench") if name in keywords), "plain")
            counts[suite][outcome] += 1
            if outcome == "skipped" and isinstance(report.longrepr, tuple):
                reasons[suite][str(report.longrepr[2]).removeprefix("Skipped: ").splitlines()[0]] += 1
    terminalreporter.section("suites")
    for suite in ("plain", "apiserver", "realnode", "bench"):
        if suite not in counts:
            continue
        results = ", ".join(f"{number} {outcome}" for outcome, number in counts[suite].items())
        terminalreporter.line(f"{suite}: {results}")
        for reason, number in reasons[suite].most_common():
            terminalreporter.line(f"  skipped {number}: {reason}")
    for line in summary_lines:
        if not line.startswith("["):  # the progress of a build
            terminalreporter.line(line)
