from concerto.scheduling.state.slow_gangs import SlowGangs


def test_a_namespace_waits_twice_as_long_each_time():
    slow, now, waited = SlowGangs(), 0.0, []
    for _ in range(11):
        slow.took_too_long("ns", 300, now)
        assert slow.waits("ns", 300, now)
        began = now
        while slow.waits("ns", 300, now):
            now += 0.5
        waited.append(now - began)
    assert waited == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]


def test_smaller_gangs_and_other_namespaces_do_not_wait():
    slow = SlowGangs()
    slow.took_too_long("ns", 300, 0.0)
    assert not slow.waits("ns", 299, 0.0)
    assert slow.waits("ns", 500, 0.0)
    assert not slow.waits("other", 300, 0.0)
    slow.took_too_long("ns", 200, 1.0)
    assert slow.waits("ns", 200, 1.0)


def test_it_is_forgotten_where_none_took_too_long_for_a_while():
    slow = SlowGangs()
    slow.took_too_long("ns", 300, 0.0)
    slow.took_too_long("ns", 300, 2.0)
    slow.took_too_long("other", 300, 304.0)
    slow.took_too_long("ns", 300, 305.0)
    assert not slow.waits("ns", 300, 306.0)
