import pytest

from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.disruption_budgets import MAX_PARTS, DisruptionBudgets
from support.scheduling_builders import pod


def budget(namespace, name):
    return DisruptionBudget(namespace, name, LabelSelector(()), 0)


def test_budgets_have_the_same_order_however_they_came():
    budgets = DisruptionBudgets()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y"), ("c", "w")):
        budgets.set(budget(namespace, name))
    found = budgets.of([pod("p", namespace="b"), pod("q", namespace="a")])
    assert [each.key for each in found] == [("a", "y"), ("a", "z"), ("b", "x")]


def selecting(name, allowed=1, namespace="default", **selector):
    return DisruptionBudget(namespace, name, LabelSelector.from_raw(selector or None), allowed)


def test_budgets_that_can_not_select_a_pod_are_not_compared_with_it():
    budgets = DisruptionBudgets()
    for i in range(3000):
        budgets.set(selecting(f"b{i:04}", matchLabels={"app": f"a{i}", "tier": "web"}))
    budgets.set(selecting("any", matchExpressions=[{"key": "app", "operator": "Exists"}]))
    budgets.set(selecting("none"))
    budgets.set(selecting("elsewhere", namespace="other", matchLabels={"app": "a7"}))
    pods = [pod(f"p{i}", labels={"app": f"a{i}", "tier": "web"}) for i in (7, 5)]
    assert [b.name for b in budgets.of(pods)] == ["any", "b0005", "b0007", "none"]
    budgets.set(selecting("b0005", matchLabels={"app": "another"}))
    budgets.remove("default", "any")
    assert [b.name for b in budgets.of(pods)] == ["b0007", "none"]


HOSTILE_BUDGETS = {
    "ever so many": [selecting(f"b{i}", matchLabels={"app": "a"}) for i in range(3500)],
    "one with ever so many expressions": [
        selecting("b", matchExpressions=[{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(9000)])
    ],
    "one with ever so many values": [
        selecting(
            "b", matchExpressions=[{"key": "app", "operator": "NotIn", "values": [str(i) for i in range(60_000)]}]
        )
    ],
}


@pytest.mark.parametrize("hostile", HOSTILE_BUDGETS.values(), ids=HOSTILE_BUDGETS)
def test_budgets_that_take_too_long_to_compare_protect_all_pods_of_their_namespace_and_cost_no_other(hostile):
    budgets = DisruptionBudgets()
    for each in hostile:
        budgets.set(each)
    budgets.set(selecting("good", namespace="quiet", matchLabels={"app": "a"}))
    pods = [pod(f"p{i}", labels={"app": "a"}, namespace=("default", "quiet")[i == 0]) for i in range(40)]
    for_all, good = budgets.of(pods)
    assert (for_all.namespace, for_all.allowed, good.name) == ("default", 0, "good")
    assert all(for_all.selector.matches(each.labels) for each in pods)
    for each in hostile:
        budgets.remove(each.namespace, each.name)
    assert [b.name for b in budgets.of(pods)] == ["good"]


def test_the_budgets_of_many_namespaces_are_compared_no_longer_than_those_of_one():
    """A node, or what a gang may preempt, has pods of many namespaces: someone may be admin of all of them."""
    budgets = DisruptionBudgets()
    for number in range(3):
        for each in range(1200):
            budgets.set(selecting(f"b{each}", namespace=f"crowd-{number}", matchLabels={"app": "a"}))
    budgets.set(selecting("good", namespace="quiet", matchLabels={"app": "a"}))
    namespaces = [*(f"crowd-{number}" for number in range(3)), "quiet"]
    pods = [pod(f"p{i}", labels={"app": "a"}, namespace=namespaces[i % 4]) for i in range(160)]
    found = budgets.of(pods)
    per_namespace = {name: [b for b in found if b.namespace == name] for name in namespaces}
    assert [len(per_namespace[name]) for name in namespaces] == [1200, 1200, 1, 1]
    assert [(b.name, b.allowed) for b in per_namespace["crowd-2"]] == [("", 0)]
    assert [b.name for b in per_namespace["quiet"]] == ["good"]
    assert 0.9 * MAX_PARTS < sum(b.selector.parts * 40 for b in found) <= MAX_PARTS


def test_pods_with_very_many_labels_are_not_looked_up_label_by_label():
    budgets = DisruptionBudgets()
    for namespace in ("crowd", "quiet"):
        budgets.set(selecting("good", namespace=namespace, matchLabels={"app": "a"}))
    labels = {f"l{n}": "" for n in range(4000)}
    pods = [pod(f"p{n}", namespace="crowd", labels=labels | {"app": "a"}) for n in range(60)]
    pods.append(pod("q", namespace="quiet", labels=labels | {"app": "a"}))
    found = budgets.of(pods)
    assert [(b.namespace, b.name) for b in found] == [("crowd", ""), ("quiet", "good")]
