from concerto.api.podreservation import IN_FLIGHT_LABEL, Assignment, StandingReservation, build_batch

ASSIGNMENT = Assignment("default", "burn-1", "u1", "n1", "Capacity", "4711", 3.25)


def standing(**spec):
    return {
        "metadata": {"namespace": "a", "name": "r", "uid": "u", "creationTimestamp": "2026-03-01T12:00:00Z"},
        "spec": {"podSelector": {"matchLabels": {"app": "x"}}, "count": 2, **spec},
    }


def test_a_batch_carries_the_label_and_the_number_of_its_assignments():
    batch = build_batch("concerto-system", "cycle-x-1", [ASSIGNMENT, ASSIGNMENT])
    assert batch["metadata"] == {
        "namespace": "concerto-system",
        "name": "cycle-x-1",
        "labels": {IN_FLIGHT_LABEL: "true"},
    }
    assert batch["spec"]["count"] == len(batch["spec"]["assignments"]) == 2


def test_an_assignment_records_what_it_was_decided_on():
    assert ASSIGNMENT.to_raw() == {
        "namespace": "default",
        "name": "burn-1",
        "uid": "u1",
        "node": "n1",
        "units": 1,
        "basis": "Capacity",
        "nodeCapacityResourceVersion": "4711",
        "available": "3.25",
    }


def test_an_assignment_names_the_standing_reservation_that_it_uses():
    raw = Assignment("d", "p", "u", "n", "Requests", "", 0.0, reservation=("a", "r")).to_raw()
    assert raw["reservation"] == {"namespace": "a", "name": "r"}
    assert "nodeCapacityResourceVersion" not in raw


def test_a_standing_reservation_expires_its_time_after_creation():
    reservation = StandingReservation.from_raw(standing(ttlSeconds=60))
    assert reservation.expires_at == reservation.created + 60
    assert StandingReservation.from_raw(standing()).expires_at is None


def test_a_standing_reservation_is_for_the_pods_and_nodes_it_selects():
    reservation = StandingReservation.from_raw(standing(nodeSelector={"zone": "eu"}))
    assert reservation.key == ("a", "r")
    assert reservation.selector.matches({"app": "x", "tier": "y"})
    assert not reservation.selector.matches({"app": "z"})
    (requirement,) = reservation.node_selector
    assert requirement.accepts("eu") and not requirement.accepts("us")
    assert StandingReservation.from_raw(standing(nodeName="n1")).node_name == "n1"


def test_what_the_status_says_is_held_and_used_is_read():
    obj = standing()
    obj["status"] = {
        "placements": [{"node": "n1", "units": 1}],
        "consumedBy": [{"namespace": "a", "name": "p", "uid": "u9", "node": "n2"}],
    }
    reservation = StandingReservation.from_raw(obj)
    assert reservation.placements == {"n1": 1}
    assert reservation.consumed == {"u9": "n2"}
