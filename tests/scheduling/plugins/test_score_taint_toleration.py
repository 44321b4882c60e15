import pytest

from concerto.scheduling.plugins.taint_toleration.score import TaintToleration
from support.scheduling_builders import cluster_state, node, pod, query, scores


def tainted(**effects):
    return [node(n, taints=[(f"key{i}", "v", e) for i, e in enumerate(of)]) for n, of in effects.items()]


PREFER = "PreferNoSchedule"
CASES = {
    "no taints: all nodes are alike": (tainted(a=[], b=[]), [], {}),
    "the fewer the better": (tainted(a=[], b=[PREFER], c=[PREFER] * 3), [], {"a": 100, "b": 67, "c": 0}),
    "hard taints are the filter's": (tainted(a=["NoSchedule"], b=["NoExecute"]), [], {}),
    "a toleration of that effect": (
        tainted(a=[PREFER], b=[PREFER] * 2),
        [{"key": "key0", "operator": "Equal", "value": "v", "effect": PREFER}],
        {"a": 100, "b": 0},
    ),
    "a toleration of every effect": (tainted(a=[PREFER]), [{"operator": "Exists"}], {}),
    "one of another effect does not help": (
        tainted(a=[], b=[PREFER]),
        [{"key": "key0", "operator": "Exists", "effect": "NoSchedule"}],
        {"a": 100, "b": 0},
    ),
}


@pytest.mark.parametrize(("nodes", "tolerations", "expected"), CASES.values(), ids=CASES)
def test_soft_taints(nodes, tolerations, expected):
    assert scores(TaintToleration(), query(cluster_state(nodes), pod("p", tolerations=tolerations))) == expected
