from dataclasses import replace

import pytest

from concerto.api.podreservation import Assignment, Reservation
from concerto.api.selectors import LabelSelector
from concerto.scheduling.state.ledger import Ledger
from support.scheduling_builders import capacity, pod, restored_ledger
from support.step_counts import steps_of

NOW = 1000.0


def assignment(name, node="node", reservation=None):
    return Assignment("default", name, f"uid-{name}", node, "Capacity", "1", 5.0, reservation=reservation)


def standing(name="res", count=2, *, created=0.0, expires_at=None, app="a", placements=None, consumed=None, uid="r"):
    selector = LabelSelector.from_raw({"matchLabels": {"app": app}})
    return Reservation(
        "default", name, uid, selector, count, created, expires_at, placements=placements or {}, consumed=consumed or {}
    )


def bound(name, **over):
    return pod(name, **{"nodeName": "node", "phase": "Running", **over})


def ledger_with(*pods, value=5.0, observed=()):
    ledger = Ledger()
    ledger.set_capacity(capacity("node", value, observed), NOW)
    for p in pods:
        ledger.set_pod(p, NOW)
    return ledger


# The identity, event by event: what happened, and what the node can still take of 5
STORIES = {
    "nothing": ([], 5),
    "a pod is assumed": ([("assume", "p")], 4),
    "assumed twice counts once": ([("assume", "p"), ("assume", "p")], 4),
    "a pod that waits takes nothing": ([("pod", pod("p"))], 5),
    "bound by another scheduler": ([("pod", bound("p", schedulerName="default-scheduler"))], 4),
    "seen bound before it was assumed": ([("pod", bound("p")), ("assume", "p")], 4),
    "assumed, then an old event of the waiting pod": ([("assume", "p"), ("pod", pod("p"))], 4),
    "assumed, then bound": ([("assume", "p"), ("pod", bound("p"))], 4),
    "assumed here, bound elsewhere": ([("assume", "p"), ("pod", bound("p", nodeName="other"))], 5),
    "assumed, then taken back": ([("assume", "p"), ("forget", "p")], 5),
    "bound, then taken back too late": ([("assume", "p"), ("pod", bound("p")), ("forget", "p")], 4),
    "confirmed, then taken back too late": ([("assume", "p"), ("confirm", "p"), ("forget", "p")], 4),
    "assumed, then deleted": ([("assume", "p"), ("delete", "p")], 5),
    "assumed, then failed before it was bound": ([("assume", "p"), ("pod", pod("p", phase="Failed"))], 5),
    "observed: the agent's number has it": ([("pod", bound("p")), ("status", 4, ["p"])], 4),
    "observed before the binding was seen": ([("assume", "p"), ("status", 4, ["p"])], 4),
    "observed, then ended: its unit is free before the agent says so": (
        [("pod", bound("p")), ("status", 4, ["p"]), ("pod", bound("p", phase="Succeeded"))],
        5,
    ),
    "observed on a node that runs 3 pods too many, then ended: still 2 too many": (
        [("pod", bound("p")), ("status", -3, ["p"]), ("pod", bound("p", phase="Succeeded"))],
        -2,
    ),
    "assumed on a node that runs 3 pods too many": ([("status", -3, []), ("assume", "p")], -4),
    "ended twice is credited once": (
        [("pod", bound("p")), ("status", 4, ["p"]), ("pod", bound("p", phase="Succeeded")), ("delete", "p")],
        5,
    ),
    "ended and gone from the agent's list": (
        [("pod", bound("p")), ("status", 4, ["p"]), ("pod", bound("p", phase="Succeeded")), ("status", 5, [])],
        5,
    ),
    "started and ended between two statuses": ([("pod", bound("p")), ("pod", bound("p", phase="Succeeded"))], 5),
    "ended, and only then reported as observed": (
        [("pod", bound("p")), ("pod", bound("p", phase="Succeeded")), ("status", 4, ["p"])],
        5,
    ),
    "an old event of a pod that has ended": (
        [("pod", bound("p")), ("pod", bound("p", phase="Succeeded")), ("pod", bound("p"))],
        5,
    ),
    "an observed pod that nobody knows is not credited": ([("status", 4, ["stranger"])], 4),
    "a new agent that has not seen the pod yet": (
        [("pod", bound("p")), ("status", 4, ["p"]), ("status", 5, [], "second")],
        4,
    ),
    "a pod of a DaemonSet is the node's own": ([("pod", bound("p", owner="DaemonSet"))], 5),
    "a static pod is the node's own": ([("pod", bound("p", annotations={"kubernetes.io/config.mirror": "x"}))], 5),
    "its start has failed for long: it takes nothing": (
        [("assume", "p"), ("pod", bound("p")), ("pod", replace(bound("p"), counted=False, uses_nothing=True))],
        5,
    ),
    "its start has failed for long, then it starts": (
        [("pod", replace(bound("p"), counted=False, uses_nothing=True)), ("pod", bound("p"))],
        4,
    ),
    "its start has failed for long, then it starts, seen by its agent first": (
        [
            ("pod", replace(bound("p"), counted=False, uses_nothing=True)),
            ("status", 4, ["p"]),
            ("pod", bound("p")),
            ("pod", bound("p", phase="Succeeded")),
        ],
        5,
    ),
    "its start has failed for long, then it ends": (
        [("pod", replace(bound("p"), counted=False, uses_nothing=True)), ("pod", bound("p", phase="Failed"))],
        5,
    ),
    "its containers have ended, and its agent still counts it": (
        [("pod", bound("p")), ("status", 4, ["p"]), ("pod", replace(bound("p"), counted=False, uses_nothing=True))],
        5,
    ),
    "its containers have ended, and only then it is reported as observed": (
        [("pod", bound("p")), ("pod", replace(bound("p"), counted=False, uses_nothing=True)), ("status", 4, ["p"])],
        5,
    ),
    "its start has failed for long, then its agent counts it": (
        [("pod", replace(bound("p"), counted=False, uses_nothing=True, start_fails=True)), ("status", 4, ["p"])],
        4,
    ),
    "its containers have ended, then it is gone, and only then it is reported as observed": (
        [
            ("pod", replace(bound("p"), counted=False, uses_nothing=True)),
            ("delete", "p"),
            ("status", 4, ["p"]),
        ],
        5,
    ),
    "its containers have ended, then it has, and its agent still counts it": (
        [
            ("pod", bound("p")),
            ("status", 4, ["p"]),
            ("pod", replace(bound("p"), counted=False, uses_nothing=True)),
            ("pod", bound("p", phase="Succeeded")),
        ],
        5,
    ),
    "its containers have ended, then it is gone, and its agent does not count it any more": (
        [
            ("pod", bound("p")),
            ("status", 4, ["p"]),
            ("pod", replace(bound("p"), counted=False, uses_nothing=True)),
            ("delete", "p"),
            ("status", 5, []),
        ],
        5,
    ),
    "its containers run again, and its agent has counted it all the time": (
        [
            ("pod", bound("p")),
            ("status", 4, ["p"]),
            ("pod", replace(bound("p"), counted=False, uses_nothing=True)),
            ("pod", bound("p")),
        ],
        4,
    ),
    "a running pod whose deletion has begun still runs": ([("pod", bound("p", deleting=True))], 4),
}


@pytest.mark.parametrize(("events", "available"), STORIES.values(), ids=STORIES)
def test_the_identity_holds_through(events, available):
    ledger = ledger_with()
    version = 1
    for kind, what, *more in events:
        match kind:
            case "pod":
                ledger.set_pod(what, NOW)
            case "assume":
                ledger.assume(assignment(what), NOW)
            case "forget":
                ledger.forget(f"uid-{what}")
            case "confirm":
                ledger.confirm(f"uid-{what}")
            case "delete":
                ledger.remove_pod(f"uid-{what}")
            case "status":
                version += 1
                observed = tuple(f"uid-{name}" for name in more[0])
                instance = more[1] if len(more) > 1 else "first"
                ledger.set_capacity(
                    capacity("node", what, observed, version=version, at=NOW + version, instance=instance), NOW
                )
    assert ledger.nodes.available("node") == available


def test_what_has_no_status_has_no_number():
    ledger = Ledger()
    ledger.set_pod(bound("p"), NOW)
    assert ledger.nodes.available("node") is None
    ledger.set_capacity(capacity("node", None), NOW)
    assert ledger.nodes.available("node") is None
    ledger.set_capacity(capacity("node", 3, version=2), NOW)
    assert ledger.nodes.available("node") == 2
    ledger.remove_capacity("node")
    assert ledger.nodes.available("node") is None
    assert ledger.nodes.in_flight("node") == 1


def test_versions_decide_which_status_is_newer_not_the_agents_clock():
    ledger = Ledger()
    assert ledger.set_capacity(capacity("node", 5, version=10, at=900), NOW)
    assert not ledger.set_capacity(capacity("node", 7, version=10, at=900), NOW)
    assert not ledger.set_capacity(capacity("node", 7, version=9, at=950), NOW)
    assert ledger.nodes.available("node") == 5
    assert ledger.set_capacity(capacity("node", 3, version=11, at=100), NOW)
    assert ledger.nodes.available("node") == 3


HEARD = {
    "the first status may have lain there for long": ([(900.0, "first", 1000.0)], 900.0),
    "a clock ahead of ours does not make it fresh for ever": ([(5000.0, "first", 1000.0)], 1000.0),
    "a new measurement is as old as its arrival": ([(900.0, "first", 1000.0), (930.0, "first", 1031.0)], 1031.0),
    "an edit of the spec is no measurement": ([(900.0, "first", 1000.0), (900.0, "first", 1031.0)], 900.0),
    "a clock set back is a measurement": ([(900.0, "first", 1000.0), (10.0, "first", 1031.0)], 1031.0),
    "another agent at the same instant is one": ([(900.0, "first", 1000.0), (900.0, "second", 1031.0)], 1031.0),
}


@pytest.mark.parametrize(("statuses", "last_status_at"), HEARD.values(), ids=HEARD)
def test_the_age_of_telemetry(statuses, last_status_at):
    ledger = Ledger()
    for version, (at, instance, now) in enumerate(statuses, 1):
        ledger.set_capacity(capacity("node", 5, version=version, at=at, instance=instance), now)
    assert ledger.nodes.last_status_at("node") == last_status_at
    assert ledger.nodes.with_stale_agent(last_status_at + 90.0, 3) == []
    assert ledger.nodes.with_stale_agent(last_status_at + 90.1, 3) == ["node"]


def test_the_longest_heartbeat_is_that_of_a_node_whose_agent_has_reported():
    ledger = Ledger()
    assert ledger.nodes.longest_heartbeat() is None
    for name in ("b", "a"):
        ledger.set_capacity(capacity(name, 5), NOW)
    assert ledger.nodes.longest_heartbeat() == ("a", 30.0)


def test_ended_pods_are_forgotten_one_day_which_promises_nothing():
    ledger = Ledger(max_ended_remembered=1)
    for name in ("p", "q"):
        ledger.set_pod(bound(name, phase="Succeeded"), NOW)
    ledger.set_capacity(capacity("node", 3, ("uid-p", "uid-q")), NOW)
    assert ledger.nodes.available("node") == 4


class TestBatches:
    def open(self, *names):
        ledger = ledger_with()
        assignments = [assignment(name) for name in names]
        for a in assignments:
            assert ledger.assume(a, NOW)
        ledger.open_record("cycle-1", assignments)
        return ledger

    def test_a_batch_ends_with_its_last_assignment(self):
        ledger = self.open("seen", "ended", "deleted", "requeued")
        for name in ("seen", "ended"):
            ledger.set_pod(bound(name), NOW)
        ledger.set_capacity(capacity("node", 4, ("uid-seen",), version=2, at=NOW + 1), NOW)
        ledger.set_pod(bound("ended", phase="Succeeded"), NOW)
        ledger.remove_pod("uid-deleted")
        assert ledger.closable_records() == []
        ledger.forget("uid-requeued")
        assert ledger.closable_records() == ["cycle-1"]
        ledger.close_record("cycle-1")
        assert ledger.closable_records() == []

    def test_being_bound_is_not_the_end(self):
        ledger = self.open("p")
        ledger.confirm("uid-p")
        ledger.set_pod(bound("p"), NOW)
        assert ledger.closable_records() == []

    def test_what_is_over_when_the_batch_is_stored_is_not_waited_for(self):
        ledger = ledger_with()
        ledger.assume(assignment("p"), NOW)
        ledger.remove_pod("uid-p")
        ledger.open_record("cycle-1", [assignment("p")])
        assert ledger.closable_records() == ["cycle-1"]

    def test_a_pod_decided_again_belongs_to_its_new_batch(self):
        ledger = self.open("p")
        ledger.forget("uid-p")
        ledger.assume(assignment("p"), NOW)
        ledger.open_record("cycle-2", [assignment("p")])
        assert ledger.closable_records() == ["cycle-1"]
        ledger.close_record("cycle-1")
        ledger.set_pod(bound("p", phase="Failed"), NOW)
        assert ledger.closable_records() == ["cycle-2"]

    def test_overdue_distinguishes_bound_from_unbound(self):
        ledger = self.open("slow", "stuck")
        ledger.confirm("uid-slow")
        assert ledger.overdue(NOW + 60, 60) == []
        late = ledger.overdue(NOW + 61, 60)
        assert [(o.uid, o.bound) for o in late] == [("uid-slow", True), ("uid-stuck", False)]


class TestRebuild:
    def test_from_what_the_api_server_holds(self):
        pods = [pod("waiting"), bound("flying"), bound("seen"), bound("done", phase="Succeeded")]
        batch = [assignment(name) for name in ("waiting", "flying", "seen", "done", "gone")]
        capacities = [capacity("node", 5, ("uid-seen", "uid-done"))]
        ledger = restored_ledger(pods, capacities, {"cycle-1": batch}, now=NOW)
        # 5, less the one in flight, and the ended one's unit back; the waiting one is decided afresh
        assert ledger.nodes.available("node") == 5
        assert ledger.nodes.in_flight("node") == 1
        assert ledger.closable_records() == []
        ledger.set_capacity(capacity("node", 4, ("uid-seen", "uid-flying"), version=2, at=NOW + 1), NOW)
        assert ledger.closable_records() == ["cycle-1"]

    def test_a_binding_that_lands_after_all_counts(self):
        ledger = restored_ledger([pod("p")], [capacity("node", 5)], {"cycle-1": [assignment("p")]}, now=NOW)
        assert ledger.closable_records() == ["cycle-1"]
        ledger.set_pod(bound("p"), NOW)
        assert ledger.nodes.available("node") == 4

    def test_standing_units_used_in_flight_are_not_held_again(self):
        key = ("default", "res")
        batch = [assignment(name, reservation=key) for name in ("bound", "waiting", "gone")]
        ledger = restored_ledger(
            [bound("bound"), pod("waiting")],
            [capacity("node", 5)],
            {"cycle-1": batch},
            [standing(count=4, placements={"node": 4})],
            now=NOW,
        )
        assert ledger.reservations.state(key).consumed == {"uid-bound": "node", "uid-gone": "node"}
        assert ledger.reservations.state(key).held == {"node": 2}
        assert ledger.nodes.available("node") == 5 - 1 - 2


class TestStanding:
    key = ("default", "res")

    def test_no_unit_can_be_held_on_a_node_that_runs_too_many_pods_before_as_many_have_ended(self):
        ledger = ledger_with(*[bound(name) for name in "abcd"], value=-3, observed=[f"uid-{n}" for n in "abcd"])
        assert ledger.nodes.holdable("node") == -3
        for name in "abc":
            ledger.set_pod(bound(name, phase="Succeeded"), NOW)
        assert ledger.nodes.holdable("node") == ledger.nodes.startable("node") == 0
        ledger.set_pod(bound("d", phase="Succeeded"), NOW)
        assert ledger.nodes.holdable("node") == 1

    def test_a_held_unit_keeps_room_and_not_the_one_start_that_a_node_allows_at_a_time(self):
        ledger = Ledger()
        ledger.set_capacity(capacity("node", 1, room=4), NOW)
        ledger.reservations.set(standing(count=3))
        ledger.reservations.hold(self.key, {"node": 3})
        assert ledger.nodes.holdable("node") == 1
        assert ledger.nodes.available("node") == 1
        ledger.assume(assignment("other"), NOW)
        assert ledger.nodes.available("node") == ledger.nodes.startable("node") == ledger.nodes.holdable("node") == 0
        # Counted by the agent; what is left of the room is held
        ledger.set_capacity(capacity("node", 1, ("uid-other",), room=3, version=2), NOW)
        assert (ledger.nodes.startable("node"), ledger.nodes.holdable("node"), ledger.nodes.available("node")) == (
            1,
            0,
            0,
        )

    def test_held_units_are_not_for_others_and_change_hands_once(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=2))
        ledger.reservations.hold(self.key, {"node": 2})
        assert ledger.nodes.available("node") == 3
        assert ledger.nodes.startable("node") == 5
        assert ledger.reservations.for_pod(pod("p", labels={"app": "a"})) == self.key
        assert ledger.reservations.for_pod(pod("p", labels={"app": "b"})) is None
        assert ledger.reservations.for_pod(pod("p", labels={"app": "a"}, namespace="other")) is None
        ledger.assume(assignment("p", reservation=self.key), NOW)
        assert ledger.nodes.available("node") == 3
        assert ledger.reservations.state(self.key).held == {"node": 1}
        ledger.set_pod(bound("p"), NOW)
        ledger.set_pod(bound("p", phase="Succeeded"), NOW)
        assert ledger.nodes.available("node") == 4
        assert ledger.reservations.state(self.key).remaining == 1

    def test_a_decision_taken_back_gives_its_unit_back(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=1))
        ledger.reservations.hold(self.key, {"node": 1})
        ledger.assume(assignment("p", reservation=self.key), NOW)
        assert ledger.reservations.for_pod(pod("q", labels={"app": "a"})) is None
        ledger.forget("uid-p")
        assert ledger.reservations.state(self.key).held == {"node": 1}
        assert ledger.nodes.available("node") == 4

    def test_a_batch_waits_until_the_reservations_status_names_its_users(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=1))
        ledger.reservations.hold(self.key, {"node": 1})
        claim = assignment("p", reservation=self.key)
        ledger.assume(claim, NOW)
        ledger.open_record("cycle-1", [claim])
        ledger.set_pod(bound("p"), NOW)
        ledger.set_pod(bound("p", phase="Succeeded"), NOW)
        assert ledger.closable_records() == []
        ledger.reservations.set(standing(count=1, consumed={"uid-p": "node"}))
        assert ledger.closable_records() == ["cycle-1"]

    def test_or_until_the_reservation_is_gone(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=1))
        ledger.reservations.hold(self.key, {"node": 1})
        claim = assignment("p", reservation=self.key)
        ledger.assume(claim, NOW)
        ledger.open_record("cycle-1", [claim])
        ledger.reservations.remove(self.key)
        ledger.remove_pod("uid-p")
        assert ledger.closable_records() == ["cycle-1"]
        assert ledger.nodes.available("node") == 5

    def test_time_is_over_once(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=2, expires_at=NOW + 10, placements={"node": 2}))
        assert ledger.reservations.expire(NOW + 9) == []
        assert ledger.nodes.available("node") == 3
        assert ledger.reservations.expire(NOW + 10) == [self.key]
        assert ledger.nodes.available("node") == 5
        assert ledger.reservations.expire(NOW + 11) == []
        assert ledger.reservations.state(self.key).expired
        # Its own status, written before, does not bring the units back
        ledger.reservations.set(standing(count=2, expires_at=NOW + 10, placements={"node": 2}))
        assert ledger.nodes.available("node") == 5

    def test_a_longer_life_given_later_makes_it_live_again(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=2, expires_at=NOW))
        ledger.reservations.expire(NOW)
        ledger.reservations.set(standing(count=2, expires_at=NOW + 100))
        ledger.reservations.hold(self.key, {"node": 2})
        assert ledger.nodes.available("node") == 3

    def test_the_end_of_one_costs_the_same_however_many_there_are(self):
        def steps(count):
            ledger = ledger_with()
            for i in range(count):
                ledger.reservations.set(standing(f"r{i}", expires_at=NOW + i))
            return steps_of(lambda: ledger.reservations.expire(NOW))

        assert steps(2000) < 1.2 * steps(200)

    def test_an_end_that_is_moved_counts_and_those_before_do_not_pile_up(self):
        ledger = ledger_with()
        for i in range(1000):
            ledger.reservations.set(standing(count=2, expires_at=NOW + 10 + i % 7))
        assert len(ledger.reservations._ends) < 100
        ledger.reservations.set(standing(count=2, expires_at=NOW + 5))
        ledger.reservations.set(standing(count=2, expires_at=NOW + 50))
        assert ledger.reservations.expire(NOW + 49) == []
        ledger.reservations.remove(self.key)
        ledger.reservations.set(standing(count=2, expires_at=NOW + 50, uid="another"))
        assert ledger.reservations.expire(NOW + 50) == [self.key]
        assert not ledger.reservations._ends

    def test_a_smaller_count_holds_less(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=3, placements={"node": 3}))
        ledger.reservations.set(standing(count=1))
        assert ledger.reservations.state(self.key).held == {"node": 1}
        assert ledger.nodes.available("node") == 4

    def test_one_created_again_under_its_name_starts_afresh(self):
        ledger = ledger_with()
        ledger.reservations.set(standing(count=1, placements={"node": 1}))
        ledger.assume(assignment("p", reservation=self.key), NOW)
        ledger.reservations.set(standing(count=1, uid="another"))
        assert ledger.reservations.state(self.key).remaining == 1
        assert ledger.reservations.state(self.key).consumed == {}

    def test_the_older_reservation_is_used_first(self):
        ledger = ledger_with()
        ledger.reservations.set(standing("young", created=2.0, placements={"node": 1}))
        ledger.reservations.set(standing("old", created=1.0, placements={"node": 1}))
        assert ledger.reservations.for_pod(pod("p", labels={"app": "a"})) == ("default", "old")


@pytest.mark.parametrize(
    ("sentence", "basis", "how", "released"),
    [
        ("by requests, and its binding was accepted", "Requests", "confirm", True),
        ("by requests, and it was seen bound", "Requests", "seen", True),
        ("by requests, and not bound yet", "Requests", "", False),
        ("by capacity, bound, and not observed", "Capacity", "confirm", False),
        ("by capacity, seen bound, and not observed", "Capacity", "seen", False),
    ],
)
def test_a_pod_placed_by_requests_keeps_its_batch_only_until_it_is_bound(sentence, basis, how, released):
    ledger = Ledger()
    decided = Assignment("default", "p", "uid-p", "node", basis, "", 1.0)
    ledger.set_pod(pod("p"), NOW)
    ledger.assume(decided, NOW)
    ledger.open_record("cycle-1", [decided])
    if how == "confirm":
        ledger.confirm("uid-p")
    elif how == "seen":
        ledger.set_pod(pod("p", nodeName="node"), NOW)
    assert (ledger.closable_records() == ["cycle-1"]) is released, sentence
    assert ledger.nodes.in_flight("node") == 1, "it takes its unit all the same"


def test_a_batch_of_a_pod_placed_by_requests_and_bound_is_over_when_it_is_found_after_a_restart():
    decided = Assignment("default", "p", "uid-p", "node", "Requests", "", 1.0)
    ledger = restored_ledger([pod("p", nodeName="node")], [], {"cycle-1": [decided]}, now=NOW)
    assert ledger.closable_records() == ["cycle-1"]
