from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.disruption_budgets import DisruptionBudgets
from support.scheduling_builders import pod


def budget(namespace, name):
    return DisruptionBudget(namespace, name, LabelSelector(()), 0)


def test_budgets_have_the_same_order_however_they_came():
    budgets = DisruptionBudgets()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y"), ("c", "w")):
        budgets.set(budget(namespace, name))
    found = budgets.of([pod("p", namespace="b"), pod("q", namespace="a")])
    assert [each.key for each in found] == [("a", "y"), ("a", "z"), ("b", "x")]
