"""Which reservation holds a unit for a pod: the same as a walk over all of its namespace would find."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from concerto.api.podreservation import Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.reservation_ledger import Reservations
from concerto.scheduling.state.signatures import PodSignatures
from support.scheduling_builders import pod
from support.step_counts import steps_of

SELECTORS = [
    LabelSelector.from_raw(raw)
    for raw in (
        {},
        {"matchLabels": {"app": "a"}},
        {"matchLabels": {"app": "b"}},
        {"matchLabels": {"app": "a", "tier": "x"}},
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]},
    )
]
PODS = [
    pod("p", labels=labels, namespace=namespace)
    for labels in ({}, {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}, {"tier": "x"})
    for namespace in ("default", "other")
]


def reservation(name="r", selector=SELECTORS[1], *, namespace="default", created=0.0, units=0, uid="uid", count=2):
    return Reservation(
        namespace, name, uid, selector, count, created, None, placements={"node": units} if units else {}, consumed={}
    )


def reservations(*views):
    made = Reservations(lambda node, units: None, PodSignatures())
    for view in views:
        made.set(view)
    return made


@pytest.mark.parametrize("units", [0, 1], ids=["that hold nothing", "that hold units for others"])
def test_other_reservations_of_the_namespace_cost_a_pod_nothing(units):
    def steps(count):
        others = (
            reservation(f"r{i}", LabelSelector.from_raw({"matchLabels": {"app": f"x{i}"}}), units=units)
            for i in range(count)
        )
        made = reservations(*others, reservation("youngest", created=1.0, units=1))
        assert made.for_pod(pod("p", labels={"app": "a"})) == ("default", "youngest")
        return steps_of(lambda: made.for_pod(pod("p", labels={"app": "a"})))

    assert steps(500) < 1.2 * steps(5)


NAMES = st.sampled_from("abc")
EVENTS = st.one_of(
    st.builds(
        lambda name, selector, namespace, created, units, uid, count: (
            "set",
            reservation(name, selector, namespace=namespace, created=created, units=units, uid=uid, count=count),
        ),
        NAMES,
        st.sampled_from(SELECTORS),
        st.sampled_from(("default", "other")),
        st.sampled_from((1.0, 2.0)),
        st.integers(0, 2),
        st.sampled_from(("first", "second")),
        st.integers(0, 2),
    ),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("hold"), NAMES, st.integers(0, 2)),
    st.tuples(st.just("consume"), NAMES),
    st.tuples(st.just("give_back"), NAMES),
    st.tuples(st.just("expire"), NAMES),
)


@given(st.lists(EVENTS, max_size=20))
def test_it_is_the_oldest_one_that_holds_units_and_selects_the_pod(events):
    made = reservations()
    for what, each, *units in events:
        key = ("default", each)
        if what == "set":
            known = {view.key: view for view in made.views()}.get(each.key)
            created = known.created if known is not None and known.uid == each.uid else each.created
            made.set(replace(each, created=created))  # the API server never changes it
        elif not made.is_known(key):
            continue
        elif what == "remove":
            made.remove(key)
        elif what == "hold":
            made.hold(key, {"node": units[0]} if units[0] else {})
        elif what == "consume":
            made.consume(key, "uid", "node")
        elif what == "give_back":
            made.give_back(key, "uid", "node")
        else:
            view = next(view for view in made.views() if view.key == key)
            made.set(replace(view, expires_at=1.0))
            made.expire(2.0)
        for asking in PODS:
            found = [
                view.key
                for view in made.views()
                if view.namespace == asking.namespace
                and made.held_by(view.key)
                and view.selector.matches(asking.labels)
            ]
            assert made.for_pod(asking) == next(iter(found), None)
    for view in made.views():
        made.remove(view.key)
    assert not made._with_units and not made._with_units._ages
