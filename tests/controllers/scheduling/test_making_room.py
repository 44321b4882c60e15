"""How long a pod waits for the room that was made for it, before others are evicted."""

import math

from concerto.controllers.scheduling.making_room import MakingRoom


def made():
    return MakingRoom(settle_seconds=3.0, max_settle_seconds=10.0)


def left(room, now, *there):
    return room.seconds_left("p", now, lambda uid: uid in there)


def test_a_pod_that_no_room_was_made_for_does_not_wait():
    assert left(made(), 0.0) == 0.0


def test_it_waits_for_the_end_of_its_victims_and_then_for_the_room_that_they_leave():
    room = made()
    room.begin("p", ["v", "w"])
    assert left(room, 0.0, "v", "w") == left(room, 50.0, "w") == math.inf
    assert left(room, 60.0) == 3.0
    assert left(room, 62.0) == 1.0
    assert left(room, 63.0) == left(room, 63.0) == 0.0


def test_each_time_that_it_did_not_get_the_room_it_waits_twice_as_long():
    room, waits, now = made(), [], 0.0
    for _ in range(4):
        room.begin("p", ["v"])
        waits.append(left(room, now))
        now += waits[-1]
        assert left(room, now) == 0.0
    assert waits == [3.0, 6.0, 10.0, 10.0]
    room.forget("p")
    room.begin("p", ["v"])
    assert left(room, now) == 3.0


def test_after_a_refusal_it_waits_for_nobody_but_as_long():
    room = made()
    room.begin("p", ["v"])
    room.stop("p", 5.0)
    assert left(room, 6.0, "v") == 2.0


def test_it_does_not_wait_for_a_node_that_will_not_take_it():
    room = made()
    room.begin("p", ["v"])
    room.end("p")
    assert left(room, 0.0, "v") == 0.0


def test_only_pods_that_need_room_are_remembered():
    room = made()
    for uid in ("p", "q"):
        room.begin(uid, ["v"])
    room.keep(lambda uid: uid == "q")
    assert "p" not in room
    assert "q" in room
