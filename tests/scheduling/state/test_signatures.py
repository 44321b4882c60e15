import pytest

from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod


def selector(**over):
    return LabelSelector.from_raw(over)


NAMED = {
    "no selector: labels and namespaces are nothing": ([], {"app": "a"}, {"app": "b"}, "other", True),
    "a value that is selected": ([selector(matchLabels={"app": "a"})], {"app": "a"}, {"app": "b"}, "default", False),
    "values that nobody selects": ([selector(matchLabels={"app": "a"})], {"app": "b"}, {"app": "c"}, "default", True),
    "a label that nobody selects": ([selector(matchLabels={"app": "a"})], {"job": "1"}, {"job": "2"}, "default", True),
    "a label that must exist": (
        [selector(matchExpressions=[{"key": "job", "operator": "Exists"}])], {"job": "1"}, {"job": "2"}, "default",
        True,
    ),
    "a label that exists or not": (
        [selector(matchExpressions=[{"key": "job", "operator": "DoesNotExist"}])], {"job": "1"}, {}, "default", False,
    ),
    "values that must not be": (
        [selector(matchExpressions=[{"key": "app", "operator": "NotIn", "values": ["a"]}])], {"app": "a"}, {"app": "b"},
        "default", False,
    ),
    "terms are about namespaces": ([selector(matchLabels={"app": "a"})], {}, {}, "other", False),
    "a workload type": ([], {"concerto.dev/workload-type": "cpu-bound"}, {}, "default", False),
}  # fmt: skip


@pytest.mark.parametrize(("selectors", "one", "other", "namespace", "alike"), NAMED.values(), ids=NAMED)
def test_pods_are_alike_unless_a_selector_distinguishes_them(selectors, one, other, namespace, alike):
    signatures = PodSignatures()
    for each in selectors:
        signatures.add_selector(each)
    first, second = pod("p", labels=one), pod("q", labels=other, namespace=namespace)
    assert (signatures.of(first) == signatures.of(second)) is alike


def test_selectors_are_counted_and_go():
    signatures = PodSignatures()
    before = signatures.of(pod("p", labels={"app": "a"}, namespace="x"))
    for _ in range(2):
        signatures.add_selector(selector(matchLabels={"app": "a"}))
    version = signatures.version
    signatures.add_selector(selector(matchLabels={"app": "a"}))
    assert signatures.version == version, "nothing new is selected"
    for _ in range(3):
        assert signatures.of(pod("p", labels={"app": "a"}, namespace="x")) != before
        signatures.remove_selector(selector(matchLabels={"app": "a"}))
    assert signatures.of(pod("p", labels={"app": "a"}, namespace="x")) == before


def test_pods_of_different_services_are_not_alike_as_they_are_spread_by_them():
    signatures = PodSignatures()
    a, b = pod("p", labels={"app": "a"}), pod("q", labels={"app": "b"})
    assert signatures.of(a) == signatures.of(b)
    version = signatures.version
    signatures.workload_selectors.set_service("default", "s", {"app": "a"})
    assert signatures.of(a) != signatures.of(b)
    signatures.workload_selectors.set_service("default", "s", None)
    assert signatures.version == version, "it is a preference: they wait together as before"
    assert signatures.of(a) == signatures.of(b)
