import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.scheduling.preemption.victims import Victims, by_importance, choose_victims
from support.scheduling_builders import pod
from support.step_counts import steps_of


class OneResource:
    """A node on which pods take millicores, and the pod that needs room `needs` some."""

    def __init__(self, allocatable, needs, pods):
        self.free = allocatable - sum(map(cpu, pods))
        self.needs = needs

    def remove(self, pod):
        self.free += cpu(pod)

    def add(self, pod):
        self.free -= cpu(pod)

    def fits(self):
        return self.free >= self.needs


def cpu(p):
    return p.requests.get("cpu", 0)


def running(name, priority, millicores=1000, *, started=1, labels=None, namespace="default"):
    return pod(
        name,
        priority=priority,
        requests={"cpu": f"{millicores}m"},
        status={"startTime": f"2026-03-01T12:00:{started:02d}Z"} if started else {},
        labels={"app": name.split("-")[0]} if labels is None else labels,
        namespace=namespace,
    )


def budget(app, allowed, *, disrupted=(), namespace="default", selector=None):
    raw = {
        "metadata": {"namespace": namespace, "name": f"for-{app}"},
        "spec": {"selector": {"matchLabels": {"app": app}} if selector is None else selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-03-01T12:00:00Z")},
    }
    return DisruptionBudget.from_raw(raw)


def chosen(needs, pods, budgets=(), allocatable=None):
    allocatable = sum(map(cpu, pods)) if allocatable is None else allocatable
    victims = choose_victims(pods, budgets, OneResource(allocatable, needs, pods))
    return None if victims is None else ([p.name for p in victims.pods], victims.violations)


VICTIMS = {
    "nobody to evict": (1000, [], [], None),
    "too little even without all of them": (3000, [running("a", 1), running("b", 1)], [], None),
    "all of them, the most important first": (2000, [running("a", 1), running("b", 2)], [], (["b", "a"], 0)),
    "the lowest priority goes": (1000, [running("a", 5), running("b", 1), running("c", 3)], [], (["b"], 0)),
    "a small pod of the lowest priority stays if a larger one has to go anyway": (
        1000,
        [running("small", 0, 100), running("large", 5, 1000)],
        [],
        (["large"], 0),
    ),
    "of equal priority the one that started last goes": (
        1000,
        [running("old", 1, started=1), running("new", 1, started=9)],
        [],
        (["new"], 0),
    ),
    "one that has not started goes before those that have": (
        1000,
        [running("waits", 1, started=0), running("new", 1, started=9)],
        [],
        (["waits"], 0),
    ),
    "a budget protects the pod of the lowest priority": (
        1000,
        [running("a", 1), running("b", 2)],
        [budget("a", 0)],
        (["b"], 0),
    ),
    "if there is no other way, a budget is violated, and it is counted": (
        2000,
        [running("a", 1), running("b", 2)],
        [budget("a", 0), budget("b", 1)],
        (["b", "a"], 1),
    ),
    "a budget of one lets one of two go, the second would violate it": (
        1000,
        [running("a-1", 1, started=1), running("a-2", 1, started=2), running("b", 0)],
        [budget("a", 1), budget("b", 0)],
        (["a-1"], 0),
    ),
    "a pod whose eviction was counted violates nothing": (
        2000,
        [running("a-1", 1), running("a-2", 1)],
        [budget("a", 1, disrupted=["a-1"])],
        (["a-1", "a-2"], 0),
    ),
    "of two budgets for a pod, one violated is enough": (
        1000,
        [running("a", 1, labels={"app": "a", "tier": "x"}), running("b", 2)],
        [budget("a", 1), budget("a2", 0, selector={"matchLabels": {"tier": "x"}})],
        (["b"], 0),
    ),
    "a budget of another namespace is not asked": (
        1000,
        [running("a", 1), running("b", 2)],
        [budget("a", 0, namespace="other")],
        (["a"], 0),
    ),
    "an empty selector is for all pods of the namespace": (
        2000,
        [running("a", 1), running("b", 2)],
        [budget("all", 0, selector={})],
        (["b", "a"], 2),
    ),
    "a budget without a status allows nothing": (
        1000,
        [running("a", 1), running("b", 2)],
        [DisruptionBudget.from_raw({"metadata": {"namespace": "default", "name": "n"},
                                    "spec": {"selector": {"matchLabels": {"app": "a"}}}})],
        (["b"], 0),
    ),
    "no budget is for a pod without labels": (
        1000,
        [running("a", 1, labels={}), running("b", 2)],
        [budget("all", 0, selector={})],
        (["a"], 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("needs", "pods", "budgets", "expected"), VICTIMS.values(), ids=VICTIMS)
def test_victims_of_a_node(needs, pods, budgets, expected):
    assert chosen(needs, pods, budgets) == expected


PODS = st.lists(
    st.builds(
        lambda i, priority, millicores, started, app: running(f"{app}-{i}", priority, millicores, started=started),
        st.uuids(),
        st.integers(-3, 3),
        st.integers(0, 5),
        st.integers(0, 9),
        st.sampled_from("abc"),
    ),
    max_size=8,
)
BUDGETS = st.lists(st.builds(budget, st.sampled_from("abc"), st.integers(0, 3)), max_size=3, unique_by=lambda b: b.key)


@given(PODS, BUDGETS, st.integers(1, 20), st.integers(0, 30))
def test_without_any_of_its_victims_less_the_pod_would_not_fit(pods, budgets, needs, spare):
    taken = sum(map(cpu, pods))
    node = OneResource(taken + spare, needs + spare, pods)
    victims = choose_victims(pods, budgets, node)
    if victims is None:
        assert taken < needs or not pods
        return
    assert node.fits()
    assert {p.uid for p in victims.pods} <= {p.uid for p in pods}
    assert list(victims.pods) == by_importance(victims.pods)
    assert 0 <= victims.violations <= len(victims.pods)
    for each in victims.pods:
        node.add(each)
        assert not node.fits()
        node.remove(each)


def test_victims_keep_their_order_of_importance():
    pods = [running("a", 1, started=3), running("b", 7), running("c", 1, started=2)]
    assert [p.name for p in by_importance(pods)] == ["b", "c", "a"]
    assert isinstance(choose_victims(pods, [], OneResource(3000, 3000, pods)), Victims)


def test_a_pod_is_compared_with_the_budgets_of_its_namespace_alone():
    def steps(namespaces):
        pods = [running(f"a-{n}", 1, namespace=f"n{n % namespaces}") for n in range(60)]
        budgets = [budget(f"b{n}", 1, namespace=f"n{n}") for n in range(namespaces)]
        return steps_of(lambda: chosen(1000, pods, budgets))

    assert steps(60) < 2 * steps(6), "each pod has one budget that may be its own in both"
