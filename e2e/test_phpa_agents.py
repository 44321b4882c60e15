"""Who may read an agent's metrics of pods, with the API server's own answers and the rights of manifests/."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from concerto.autoscaling.pods import PodView
from concerto.controllers.metrics_sources import AgentMetrics
from concerto.kube import ClusterConfig, Session
from concerto.kube.config import TokenSource
from concerto_agent.certificate import make_certificate
from concerto_agent.cgroups import Hierarchies
from concerto_agent.pod_metrics import PodMetrics
from concerto_agent.pod_metrics_server import AUDIENCE, Callers, serve
from e2e.clusters import Cluster

OPERATOR = ("concerto-system", "concerto-operator")
# Whose token, and what the agent's refusal says; None where it answers
CALLERS: dict[str, tuple[Callable[[Cluster, str], str], str | None]] = {
    "the operator, by a token for agents": (lambda c, _: c.service_account_token(*OPERATOR, audience=AUDIENCE), None),
    "the operator, by a token for the API server": (
        lambda c, _: c.service_account_token(*OPERATOR),
        f"401 the token is not valid for audience {AUDIENCE}",
    ),
    "somebody else": (
        lambda c, namespace: c.service_account_token(namespace, "default", audience=AUDIENCE),
        "may not get nodecapacities/metrics of n1",
    ),
    "nobody": (lambda *_: "made-up", f"401 the token is not valid for audience {AUDIENCE}"),
}


@pytest.mark.parametrize(("token_of", "refusal"), CALLERS.values(), ids=CALLERS)
async def test_the_agent_asks_the_api_server_who_may_read(
    concerto_cluster: Cluster, namespace: str, token_of: Callable[[Cluster, str], str], refusal: str | None
):
    admin = ClusterConfig.from_kubeconfig(concerto_cluster.kubeconfig)
    own = concerto_cluster.service_account_token("concerto-system", "concerto-agent")
    config = replace(admin, token=own, client_certificate=None, client_key=None)
    metrics = PodMetrics(Hierarchies.detect(Path("/sys")), {}, {})
    token = TokenSource(ClusterConfig("", token=token_of(concerto_cluster, namespace)))
    async with await Session.open(config) as session:
        server, endpoint = await serve("127.0.0.1:0", metrics, Callers(session, "n1"), make_certificate())
        capacity = {"status": {"agent": {"metrics": endpoint.to_raw()}}}
        agents = AgentMetrics({("", "n1"): capacity}, token, time.time)
        try:
            troubles = (await agents.usage(namespace, [PodView("web", node="n1")])).troubles
        finally:
            await agents.close()
            await server.cleanup()
    if refusal is None:
        assert troubles == ()
    else:
        assert refusal in troubles[0]
