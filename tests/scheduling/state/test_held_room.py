from itertools import pairwise

from concerto.scheduling.state.held_room import HeldRoom

ONE, TWO, OTHER = ("ns", "one"), ("ns", "two"), ("other", "gang")


def test_a_gang_holds_room_after_a_while_and_only_one_at_a_time():
    room = HeldRoom()
    assert not room.ask(ONE, 0.0)
    assert not room.ask(TWO, 1.0)
    assert not room.ask(ONE, 4.9)
    assert room.ask(ONE, 5.0)
    assert not room.ask(TWO, 6.0)
    assert room.ask(ONE, 6.0)
    assert (room.holder, room.until) == (ONE, 35.0)


def test_a_turn_ends_and_then_all_others_have_as_much_time():
    room = HeldRoom()
    room.ask(ONE, 0.0)
    room.ask(OTHER, 0.0)
    assert room.ask(ONE, 5.0)
    assert not room.end_overdue(34.9)
    assert room.end_overdue(35.0)
    assert not room.end_overdue(35.0)
    assert not room.ask(OTHER, 64.9)
    assert room.ask(OTHER, 65.0)


def test_a_namespace_that_holds_room_in_vain_waits_twice_as_long_each_time_whichever_gang_it_sends():
    room, now, starts = HeldRoom(), 0.0, []
    while now < 3000.0:
        for key in [("ns", f"g{i}") for i in range(50)]:
            if room.ask(key, now) and (not starts or starts[-1] != room.until - 30.0):
                starts.append(now)
        now += 1.0
        room.end_overdue(now)
    waits = [later - earlier - 30.0 for earlier, later in pairwise(starts)]
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0]
    assert not room.ask(OTHER, now)
    assert room.ask(OTHER, now + 5.0), "another namespace does not wait for that"


def test_a_gang_that_is_placed_or_gone_gives_its_turn_back():
    room = HeldRoom()
    room.ask(ONE, 0.0)
    room.ask(TWO, 0.0)
    assert room.ask(ONE, 5.0)
    room.placed(ONE)
    assert room.holder is None
    assert room.ask(TWO, 5.0)
    room.gone(TWO)
    assert room.end_overdue(5.0)
    assert room.holder is None


def test_a_gang_that_passes_its_turn_on_waits_anew_and_others_do_not():
    room = HeldRoom()
    room.ask(ONE, 0.0)
    room.ask(OTHER, 0.0)
    assert room.ask(ONE, 5.0)
    room.pass_on(ONE)
    assert not room.end_overdue(5.0)
    assert not room.ask(ONE, 5.0)
    assert room.ask(OTHER, 5.0)


def test_an_hour_after_its_wait_a_namespace_waits_as_after_the_first_time():
    room, now = HeldRoom(), 5.0
    room.ask(ONE, 0.0)
    assert room.ask(ONE, now)
    for wait, pause in ((60.0, 0.0), (120.0, 0.0), (240.0, 3600.0), (60.0, 0.0)):
        now += 30.0
        assert room.end_overdue(now)
        assert not room.ask(ONE, now + wait - 0.1)
        now += wait + pause
        assert room.ask(ONE, now)
