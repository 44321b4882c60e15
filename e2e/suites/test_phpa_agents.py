"""Who may read an agent's metrics of pods, with the API server's own answers and the rights of manifests/."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from concerto.api.nodecapacity import METRICS_AUDIENCE, metrics_audience
from concerto.controllers.autoscaling.sources import AgentMetrics, AgentTokens
from concerto.kube import Session
from concerto.kube.access_review import AccessReviewer
from concerto.serving.certificate import make_certificate
from concerto_agent.cgroups import Hierarchies
from concerto_agent.pod_metrics import PodMetrics
from concerto_agent.pod_metrics_server import read_pod_metrics, serve
from e2e.testbed.clusters import Cluster
from e2e.testbed.phpa_helpers import Shown, autoscaler_config
from support.pod_views import target_pod

AUTOSCALER = ("concerto-system", "concerto-autoscaler")
NOT_VALID = f"401 the token is not valid for audience {metrics_audience('n1')}"


# Whose token, and what the agent's refusal says; None where it answers
CALLERS: dict[str, tuple[Callable[[Cluster, str], str], str | None]] = {
    "a token for all agents": (lambda c, _: c.service_account_token(*AUTOSCALER, audience=METRICS_AUDIENCE), None),
    "a token that was shown to another agent": (
        lambda c, _: c.service_account_token(*AUTOSCALER, audience=metrics_audience("n2")),
        NOT_VALID,
    ),
    "the autoscaler's token for the API server": (lambda c, _: c.service_account_token(*AUTOSCALER), NOT_VALID),
    "somebody else": (
        lambda c, namespace: c.service_account_token(namespace, "default", audience=metrics_audience("n1")),
        "may not get nodecapacities/metrics of n1",
    ),
    "nobody": (lambda *_: "made-up", NOT_VALID),
}


async def troubles(cluster: Cluster, namespace: str, tokens: Shown | AgentTokens) -> tuple[str, ...]:
    """What goes wrong when the agent of node n1 is shown a token."""
    metrics = PodMetrics(Hierarchies.detect(Path("/sys")), {}, {})
    token = cluster.service_account_token("concerto-system", "concerto-agent")
    async with await Session.open(replace(autoscaler_config(cluster), token=token)) as session:
        server, endpoint = await serve(
            "127.0.0.1:0", metrics, AccessReviewer(session, read_pod_metrics("n1")), make_certificate()
        )
        capacity = {"status": {"agent": {"metrics": endpoint.to_raw()}}}
        agents = AgentMetrics({("", "n1"): capacity}, tokens, time.time)
        try:
            return (await agents.usage(namespace, [target_pod("web", node_name="n1")])).troubles
        finally:
            await agents.close()
            await server.cleanup()


async def test_the_autoscaler_asks_for_a_token_and_the_agent_knows_it(concerto_cluster: Cluster, namespace: str):
    async with await Session.open(autoscaler_config(concerto_cluster)) as session:
        tokens = AgentTokens(session, *AUTOSCALER, time.time)
        assert await troubles(concerto_cluster, namespace, tokens) == ()


@pytest.mark.parametrize(("token_of", "refusal"), CALLERS.values(), ids=CALLERS)
async def test_the_agent_asks_the_api_server_who_may_read(
    concerto_cluster: Cluster, namespace: str, token_of: Callable[[Cluster, str], str], refusal: str | None
):
    said = await troubles(concerto_cluster, namespace, Shown(token_of(concerto_cluster, namespace)))
    assert (refusal is None) == (said == ())
    assert all(str(refusal) in each for each in said)
