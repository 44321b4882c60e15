from concerto.scheduling.state.refused_deletions import RefusedDeletions


def test_a_pod_whose_deletion_is_refused_is_left_alone_for_longer_each_time():
    refused, now, waits = RefusedDeletions(), 0.0, []
    assert not refused.waits("a", now)
    for _ in range(12):
        refused.refused("a", now)
        began = now
        while refused.waits("a", now):
            now += 2.5
        waits.append(now - began)
    assert waits == [5.0 * 2**i for i in range(10)] + [3600.0, 3600.0]
    assert not refused.waits("b", now)


def test_refusals_are_forgotten_in_the_end():
    refused = RefusedDeletions()
    refused.refused("a", 0.0)
    later = 5.0 + 3600.0
    refused.refused("b", later)
    refused.refused("a", later)
    assert refused.waits("a", later)
    assert not refused.waits("a", later + 5.0)


def test_refusals_are_counted_until_they_are_forgotten():
    refused = RefusedDeletions()
    assert refused.times("a") == 0
    refused.refused("a", 0.0)
    refused.refused("a", 10.0)
    assert refused.times("a") == 2
    refused.refused("b", 10_000.0)
    assert refused.times("a") == 0
