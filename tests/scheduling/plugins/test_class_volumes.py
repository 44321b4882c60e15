"""Each claim of a pod gets, on each row, the smallest volume that suits it and that no claim before it got there."""

import random

import pytest

from concerto.scheduling.plugins.volume_binding.claims import sort_claims
from concerto.scheduling.plugins.volume_binding.matching import ClaimMatch
from support.scheduling_builders import cluster_state, node, pod
from support.step_counts import steps_of
from support.volume_builders import claim, mounts, storage_class, store, volume

NODES = [f"n{number}" for number in range(18)]
"""Six in each zone: volumes that few nodes reach are held in another way."""
ZONES = {name: f"z{number % 3}" for number, name in enumerate(NODES)}


def in_zone(zone, more=()):
    """A node affinity that accepts the nodes of a zone; others accept the same, and are written in another way."""
    expressions = [{"key": "zone", "operator": "In", "values": [zone, *more]}]
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


def random_volume(number, rng):
    where = rng.choice(["node", "zone", "zone", "two zones", "everywhere"])
    labels = {"disk": rng.choice(["ssd", "hdd"])}
    fields = {"size": f"{rng.randint(1, 6)}Gi", "labels": labels}
    if rng.random() < 0.15:
        fields |= {"claim": f"c{rng.randrange(6)}", "claim_uid": ""}
    if rng.random() < 0.1:
        fields |= {"volumeMode": "Block"}
    if rng.random() < 0.1:
        fields |= {"phase": "Released"}
    if rng.random() < 0.3:
        fields |= {"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}
    if where == "node":
        return volume(f"v{number:02}", on=rng.choice(NODES), **fields)
    if where == "zone":
        affinity = in_zone(rng.choice(["z0", "z1", "z2"]), rng.choice([(), ("none",)]))
        return volume(f"v{number:02}", nodeAffinity=affinity, **fields)
    if where == "two zones":
        zones = rng.sample(["z0", "z1", "z2"], 2)
        return volume(f"v{number:02}", nodeAffinity=in_zone(zones[0], zones[1:]), **fields)
    return volume(f"v{number:02}", **fields)


def random_claim(number, rng):
    fields = {"size": f"{rng.randint(1, 4)}Gi"}
    if rng.random() < 0.2:
        fields |= {"selector": {"matchLabels": {"disk": "ssd"}}}
    if rng.random() < 0.2:
        fields |= {"accessModes": ["ReadWriteMany"]}
    return claim(f"c{number}", **fields)


def reaches(cluster, found, row):
    rows = cluster.volumes.reach(found.affinity)
    return isinstance(rows, slice) or row in rows


def expected(cluster, claims, row):
    """By claim the volume that it gets on a row, found one by one."""
    got = {}
    for asked in sorted(claims, key=lambda each: each.bytes or 0):
        left = [v for v in cluster.volumes.of_class("local") if v.name not in got.values() and reaches(cluster, v, row)]
        fit = [
            v
            for v in cluster.volumes.of_class("local")
            if v.bytes >= asked.bytes and v.mode == asked.mode and not v.deleting
        ]
        held = [v for v in fit if v.is_for(asked)]
        free = [
            v
            for v in fit
            if v.claim is None
            and v.phase == "Available"
            and asked.access_modes <= v.access_modes
            and (asked.selector is None or asked.selector.matches(v.labels))
        ]
        if chosen := [v for v in (held[:1] or free) if v in left]:
            got[asked.key.name] = chosen[0].name
    return got


@pytest.mark.parametrize("seed", range(40))
def test_volumes_are_chosen_as_if_each_row_claim_and_volume_was_looked_at(seed):
    rng = random.Random(seed)
    cluster = cluster_state([node(name, labels={"zone": zone}) for name, zone in ZONES.items()])
    claims = [random_claim(number, rng) for number in range(6)]
    store(cluster, storage_class(), *(random_volume(number, rng) for number in range(25)), *claims)
    found = sort_claims(cluster.volumes, pod("web", **mounts(*(each.key.name for each in claims))))
    match = ClaimMatch(cluster.volumes, cluster.rows, found)
    for row in cluster.row_of.values():
        bound = {key.name: name for key, name in match.bindings(row).static}
        assert bound == expected(cluster, claims, row), cluster.rows.names[row]


def steps_with(claims, volumes):
    cluster = cluster_state([node(f"n{number}") for number in range(100)])
    store(cluster, storage_class(), *(volume(f"v{n}", on=f"n{n % 100}", size=f"{1 + n % 7}Gi") for n in range(volumes)))
    store(cluster, *(claim(f"c{number}", size=f"{1 + number % 3}Gi") for number in range(claims)))
    found = sort_claims(cluster.volumes, pod("web", **mounts(*(f"c{number}" for number in range(claims)))))
    assert not found.refusal
    return steps_of(lambda: ClaimMatch(cluster.volumes, cluster.rows, found))


def test_the_work_grows_with_claims_and_volumes_and_not_with_their_product():
    assert steps_with(40, 400) < 2 * (steps_with(40, 10) + steps_with(1, 400))


def steps_beside_others(claims):
    """On half of the nodes each claim gets a volume of their zone, on the others one that all nodes reach."""
    cluster = cluster_state([node(f"n{number}", labels={"zone": f"z{number % 2}"}) for number in range(20)])
    store(cluster, storage_class(), *(volume(f"z{number}", nodeAffinity=in_zone("z0")) for number in range(claims)))
    store(cluster, *(volume(f"a{number}", size="2Gi") for number in range(claims)))
    store(cluster, *(claim(f"c{number}") for number in range(claims)))
    found = sort_claims(cluster.volumes, pod("web", **mounts(*(f"c{number}" for number in range(claims)))))
    return steps_of(lambda: ClaimMatch(cluster.volumes, cluster.rows, found))


def test_a_volume_that_is_left_on_some_nodes_is_no_reason_for_another_look_at_each_later_claim():
    assert steps_beside_others(80) < 2.5 * steps_beside_others(40)
