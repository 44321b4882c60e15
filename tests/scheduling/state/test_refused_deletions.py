from concerto.scheduling.state.refused_deletions import RefusedDeletions


def test_a_pod_whose_deletion_is_refused_is_left_alone_for_longer_each_time():
    refused, now, waits = RefusedDeletions(), 0.0, []
    assert not refused.waits("a", now)
    for _ in range(9):
        refused.refused("a", now)
        began = now
        while refused.waits("a", now):
            now += 30.0
        waits.append(now - began)
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    assert not refused.waits("b", now)


def test_refusals_are_forgotten_in_the_end():
    refused = RefusedDeletions()
    refused.refused("a", 0.0)
    refused.refused("b", 60.0 + 3600.0)
    refused.refused("a", 60.0 + 3600.0)
    assert not refused.waits("a", 60.0 + 3600.0 + 60.0)
