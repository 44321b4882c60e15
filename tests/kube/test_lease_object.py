from __future__ import annotations

import pytest

from concerto.kube import Object
from concerto.kube.lease import Candidate, LeaseSettings, build_lease

NOON = 1_700_000_000.5
MICRO = "2023-11-14T22:13:20.500000Z"


def build(lease: Object | None, identity: str) -> Object:
    return build_lease(lease, Candidate("ns", "it", identity), lease_duration_seconds=15, now=NOON)


def test_a_first_lease_is_taken_from_nobody() -> None:
    lease = build(None, "a")
    assert lease["metadata"] == {"namespace": "ns", "name": "it"}
    assert lease["spec"] == {
        "holderIdentity": "a", "leaseDurationSeconds": 15, "acquireTime": MICRO, "renewTime": MICRO,
        "leaseTransitions": 0,
    }  # fmt: skip


def test_a_lease_is_owned_by_the_owners_of_its_maker_and_by_nobody_elses() -> None:
    owners = [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u"}]
    candidate = Candidate("ns", "it", "a", owners)
    first = build_lease(None, candidate, lease_duration_seconds=15, now=NOON)
    assert first["metadata"]["ownerReferences"] == owners
    taken = build_lease(build(None, "b"), candidate, lease_duration_seconds=15, now=NOON)
    assert taken["metadata"] == {"namespace": "ns", "name": "it"}


def test_a_renewal_moves_only_the_time() -> None:
    before = {**build(None, "a"), "metadata": {"namespace": "ns", "name": "it", "resourceVersion": "5"}}
    before["spec"]["acquireTime"] = "2023-01-01T00:00:00.000000Z"
    renewed = build(before, "a")
    assert renewed["metadata"]["resourceVersion"] == "5"
    assert renewed["spec"] == {**before["spec"], "renewTime": MICRO}


def test_a_take_over_is_counted() -> None:
    taken = build(build(None, "a"), "b")
    assert (taken["spec"]["holderIdentity"], taken["spec"]["leaseTransitions"]) == ("b", 1)
    released = {**taken, "spec": {**taken["spec"], "holderIdentity": ""}}
    assert build(released, "b")["spec"]["leaseTransitions"] == 2


@pytest.mark.parametrize("durations", [(10, 10, 2), (15, 2, 2), (15, 10, 0)])
def test_durations_that_make_no_election_are_refused(durations: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="must hold"):
        LeaseSettings(*durations)
