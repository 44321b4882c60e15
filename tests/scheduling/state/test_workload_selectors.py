from dataclasses import replace

import pytest

from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.workload_selectors import NO_SELECTOR, WorkloadSelectors
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


def test_changes_are_followed_and_pods_that_were_asked_about_are_named():
    changes = []
    selectors = WorkloadSelectors(lambda: changes.append(1))
    selectors.set_service("default", "s", {"app": "a"})
    assert not changes, "nobody has asked yet"
    assert selectors.of(view()) == selector(app="a")
    selectors.set_service("other", "s", {"app": "a"})
    selectors.set_service("default", "s", {"app": "a"})
    assert not changes, "nothing is different in its namespace"
    selectors.set_service("default", "s", {"app": "b"})
    assert len(changes) == 1
    assert selectors.of(view()) == NO_SELECTOR
    selectors.set_service("default", "s", None)
    selectors.set_service("default", "s", None)
    assert len(changes) == 2
    assert selectors.of(view()) == NO_SELECTOR
