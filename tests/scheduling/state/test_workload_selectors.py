from dataclasses import replace

import pytest

from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.workload_selectors import MAX_SERVICES, NO_SELECTOR, WorkloadSelectors
from support.scheduling_builders import pod


def view(**labels):
    return pod("p", labels=labels or {"app": "a"})


def selector(**labels):
    return LabelSelector.from_raw({"matchLabels": labels})


CASES = {
    "none": ([], None, None),
    "a Service that selects it": ([{"app": "a"}], None, {"app": "a"}),
    "a Service that selects others": ([{"app": "b"}], None, None),
    "two Services": ([{"app": "a"}, {"tier": "web"}], None, {"app": "a", "tier": "web"}),
    "a Service that wants more": ([{"app": "a", "tier": "db"}], None, None),
    "a Service without a selector": ([{}], None, None),
    "its workload": ([], {"app": "a", "tier": "web"}, {"app": "a", "tier": "web"}),
    "its workload and a Service": ([{"app": "a"}], {"tier": "web"}, {"app": "a", "tier": "web"}),
}


@pytest.mark.parametrize(("services", "workload", "expected"), CASES.values(), ids=CASES)
def test_a_pod_is_spread_by(services, workload, expected):
    selectors = WorkloadSelectors()
    for i, labels in enumerate(services):
        selectors.set_service("default", f"s{i}", labels)
    if workload is not None:
        selectors.set_workload("default", "ReplicaSet", "w", selector(**workload))
    asked = replace(view(app="a", tier="web"), owner=("ReplicaSet", "w"))
    assert selectors.of(asked) == (NO_SELECTOR if expected is None else selector(**expected))


OTHER_APP = {
    "of a ReplicationController the labels count instead of a Service's": (
        "ReplicationController", LabelSelector.from_raw({"matchLabels": {"app": "b"}}),
    ),
    "of a ReplicaSet all that it requires counts beside a Service's labels": (
        "ReplicaSet", LabelSelector.from_raw({"matchExpressions": [
            {"key": "app", "operator": "In", "values": ["a"]}, {"key": "app", "operator": "In", "values": ["b"]},
        ]}),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "expected"), OTHER_APP.values(), ids=OTHER_APP)
def test_of_a_workload_with_another_selector_than_a_service(kind, expected):
    selectors = WorkloadSelectors()
    selectors.set_service("default", "s", {"app": "a"})
    selectors.set_workload("default", kind, "w", selector(app="b"))
    assert selectors.of(replace(view(app="a"), owner=(kind, "w"))) == expected


def test_changes_are_followed():
    selectors = WorkloadSelectors()
    assert selectors.of(view()) == NO_SELECTOR
    selectors.set_service("default", "s", {"app": "a"})
    assert selectors.of(view()) == selector(app="a")
    selectors.set_service("other", "s", {"app": "b"})
    assert selectors.of(view()) == selector(app="a")
    selectors.set_service("default", "s", {"app": "b"})
    assert selectors.of(view()) == NO_SELECTOR
    for _ in range(2):
        selectors.set_service("default", "s", None)
    assert selectors.of(view()) == NO_SELECTOR


def test_a_selector_that_two_services_have_counts_until_both_are_gone():
    selectors = WorkloadSelectors()
    for name in ("s", "t"):
        selectors.set_service("default", name, {"app": "a"})
    selectors.set_service("default", "s", None)
    assert selectors.of(view()) == selector(app="a")
    selectors.set_service("default", "t", None)
    assert selectors.of(view()) == NO_SELECTOR


def test_a_namespace_of_ever_so_many_services_costs_a_pod_no_more_than_some_of_them():
    selectors = WorkloadSelectors()
    own = {f"k{i}": "v" for i in range(1000)}
    for i in range(1000):
        selectors.set_service("default", f"s{i}", {"app": "a", f"k{i}": "v"})
        selectors.set_service("default", f"same{i}", {"app": "a", "k0": "v"})
    requirements = selectors.of(view(app="a", **own)).requirements
    assert len(requirements) == 1 + MAX_SERVICES
    assert selectors.of(view(app="b", **own)) == NO_SELECTOR


def test_the_selector_of_a_workload_without_end_is_left_out():
    selectors = WorkloadSelectors()
    expressions = [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(9000)]
    asked = replace(view(app="a"), owner=("ReplicaSet", "w"))
    selectors.set_workload("default", "ReplicaSet", "w", LabelSelector.from_raw({"matchExpressions": expressions}))
    assert selectors.of(asked) == NO_SELECTOR
    selectors.set_workload("default", "ReplicaSet", "w", selector(app="a"))
    assert selectors.of(asked) == selector(app="a")
    selectors.set_workload("default", "ReplicaSet", "w", LabelSelector.from_raw({"matchExpressions": expressions}))
    assert selectors.of(asked) == NO_SELECTOR


def test_nothing_is_kept_of_a_namespace_that_has_no_services_and_no_workloads():
    selectors = WorkloadSelectors()
    selectors.set_service("default", "s", {"app": "a"})
    selectors.set_workload("default", "ReplicaSet", "w", selector(app="a"))
    for namespace in ("default", "quiet"):
        for i in range(3):
            selectors.of(pod("p", namespace=namespace, labels={"app": "a", "job": str(i)}))
    assert list(selectors._answers) == ["default"]
    selectors.set_service("default", "s", None)
    assert selectors.of(replace(view(), owner=("ReplicaSet", "w"))) == selector(app="a")
    selectors.set_workload("default", "ReplicaSet", "w", None)
    assert selectors.of(replace(view(), owner=("ReplicaSet", "w"))) == NO_SELECTOR
    assert not (selectors._answers or selectors._workloads or selectors._services)
