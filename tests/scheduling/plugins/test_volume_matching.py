"""Which nodes the claims of a pod allow, and what is bound there."""

import numpy as np
import pytest

from concerto.api.volumes import ClaimKey, VolumeBindings
from concerto.scheduling.plugins.volume_binding.claims import TOO_MANY_COMPARISONS, sort_claims
from concerto.scheduling.plugins.volume_binding.matching import (
    NO_SPACE,
    NO_VOLUME,
    NODE_CONFLICT,
    NOTHING_TO_BIND,
    REFUSALS,
    ClaimMatch,
)
from support.scheduling_builders import cluster_state, node, pod
from support.step_counts import steps_of
from support.volume_builders import (
    claim,
    csi_capacity,
    csi_driver,
    csi_node,
    mounts,
    node_affinity,
    storage_class,
    store,
    volume,
)

NODES = [node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "a"}), node("n3", labels={"zone": "b"})]
FAST = storage_class("fast", provisioner="csi.example.com")
ZONE = "topology.kubernetes.io/zone"
DATA = ClaimKey("default", "data")


def cluster_with(*storage):
    return store(cluster_state(NODES), *storage)


def match(cluster, *claims):
    asked = pod("web", **mounts(*(claims or ("data",))))
    found = sort_claims(cluster.volumes, asked)
    assert not found.refusal
    return ClaimMatch(cluster.volumes, cluster.rows, found)


def outcome(cluster, *claims):
    """By node: the refusals, or what is to be bound."""
    found = match(cluster, *claims)
    result = {}
    for name, row in cluster.row_of.items():
        refusals = tuple(REFUSALS[i] for i in np.flatnonzero(found.refused[:, row]))
        bound = found.bindings(row)
        result[name] = refusals or {k.name: v for k, v in bound.static} | {k.name: "new" for k in bound.provisioned}
    return result


NO_MATCH, CONFLICT = (NOTHING_TO_BIND,), (NODE_CONFLICT,)
NOWHERE = {"n1": NO_MATCH, "n2": NO_MATCH, "n3": NO_MATCH}
CASES = {
    "a bound claim: where its volume is": (
        [claim(volume="disk"), volume(claim="data", on="n2")], {"n1": CONFLICT, "n2": {}, "n3": CONFLICT},
    ),
    "a bound claim whose volume is everywhere": (
        [claim(volume="disk"), volume(claim="data")], {"n1": {}, "n2": {}, "n3": {}},
    ),
    "a bound claim whose volume is gone": (
        [claim(volume="disk")], {"n1": (NO_VOLUME,), "n2": (NO_VOLUME,), "n3": (NO_VOLUME,)},
    ),
    "the smallest volume that is large enough": (
        [
            claim(size="2Gi"), volume("small", size="1Gi"), volume("large", size="9Gi"), volume("right", size="3Gi"),
            volume("there", size="4Gi", on="n1"),
        ],
        {"n1": {"data": "right"}, "n2": {"data": "right"}, "n3": {"data": "right"}},
    ),
    "a volume for each node": (
        [claim(), volume("d1", on="n1"), volume("d2", on="n2", size="5Gi")],
        {"n1": {"data": "d1"}, "n2": {"data": "d2"}, "n3": NO_MATCH},
    ),
    "volumes of another class": ([claim(), volume(storageClassName="other")], NOWHERE),
    "volumes of another mode": ([claim(), volume(volumeMode="Block")], NOWHERE),
    "volumes of another VolumeAttributesClass": (
        [claim(), volume(volumeAttributesClassName="gold")], NOWHERE,
    ),
    "volumes without the access mode": (
        [claim(accessModes=["ReadWriteMany"]), volume()], NOWHERE,
    ),
    "volumes that the selector does not select": (
        [claim(selector={"matchLabels": {"disk": "ssd"}}), volume("a", labels={"disk": "hdd"}, on="n1"),
         volume("b", labels={"disk": "ssd"}, on="n2")],
        {"n1": NO_MATCH, "n2": {"data": "b"}, "n3": NO_MATCH},
    ),
    "volumes that are deleted, released, or another claim's": (
        [claim(), volume("a", deleting=True), volume("b", phase="Released"), volume("c", claim="other"),
         volume("d", claim="data", claim_uid="an earlier one")],
        NOWHERE,
    ),
    "a volume that a person holds for the claim comes before smaller ones": (
        [claim(), volume("small"), volume("held", size="9Gi", claim="data", claim_uid="", on="n2", phase="Available")],
        {"n1": NO_MATCH, "n2": {"data": "held"}, "n3": NO_MATCH},
    ),
    "a volume is made where no volume is": (
        [claim(storageClassName="fast"), FAST, volume("d1", on="n1", storageClassName="fast")],
        {"n1": {"data": "d1"}, "n2": {"data": "new"}, "n3": {"data": "new"}},
    ),
    "on the node that was selected for it, even beside an existing volume": (
        [claim(storageClassName="fast", node="n2"), FAST, volume("d1", on="n2", storageClassName="fast")],
        {"n1": NO_MATCH, "n2": {"data": "new"}, "n3": NO_MATCH},
    ),
    "on no node if the selected one is gone": (
        [claim(storageClassName="fast", node="gone"), FAST], NOWHERE,
    ),
    "in the topologies of its class": (
        [claim(storageClassName="fast"), storage_class(
            "fast", provisioner="p",
            allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["b", "c"]}]}],
        )],
        {"n1": NO_MATCH, "n2": NO_MATCH, "n3": {"data": "new"}},
    ),
    "an empty topology allows no node": (
        [claim(storageClassName="fast"), storage_class("fast", provisioner="p", allowedTopologies=[{}])],
        NOWHERE,
    ),
    "where its driver has room": (
        [claim(storageClassName="fast", size="2Gi"), FAST, csi_driver(storageCapacity=True),
         csi_capacity("a", "1Gi", {"zone": "a"}), csi_capacity("b", "5Gi", {"zone": "b"}),
         csi_capacity("c", "9Gi", {"zone": "a"}, storageClassName="other"), csi_capacity("d", "9Gi", None),
         csi_capacity("e", "9Gi", {"zone": "a"}, maximumVolumeSize="1Gi")],
        {"n1": (NO_SPACE,), "n2": (NO_SPACE,), "n3": {"data": "new"}},
    ),
    "anywhere if its driver publishes no room": (
        [claim(storageClassName="fast"), FAST, csi_driver()],
        {"n1": {"data": "new"}, "n2": {"data": "new"}, "n3": {"data": "new"}},
    ),
    "an EBS volume by its zone, and by the driver's label on nodes where the driver serves it": (
        [claim(volume="disk"), volume(
            claim="data", awsElasticBlockStore={"volumeID": "v"}, nodeAffinity=node_affinity(ZONE, "z")),
         csi_node("n2", migrated="kubernetes.io/aws-ebs"), csi_node("n1", migrated="kubernetes.io/gce-pd")],
        dict.fromkeys(("n1", "n2", "n3"), CONFLICT),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("storage", "expected"), CASES.values(), ids=CASES)
def test_one_claim(storage, expected):
    assert outcome(cluster_with(storage_class(), *storage)) == expected


def test_zones_where_a_csi_driver_has_replaced_the_plugin():
    cluster = cluster_with(
        claim(volume="disk"),
        volume(claim="data", awsElasticBlockStore={"volumeID": "v"}, nodeAffinity=node_affinity(ZONE, "z")),
        csi_node("m1", migrated="kubernetes.io/aws-ebs"),
    )
    cluster.set_node(node("m1", labels={"topology.ebs.csi.aws.com/zone": "z"}))
    cluster.set_node(node("m2", labels={ZONE: "z"}))
    assert outcome(cluster) == {"n1": CONFLICT, "n2": CONFLICT, "n3": CONFLICT, "m1": {}, "m2": {}}


def test_two_claims_get_two_volumes_the_smaller_claim_first():
    cluster = cluster_with(
        storage_class(),
        claim("big", size="3Gi"),
        claim("small", size="1Gi"),
        volume("v1", size="1Gi", on="n1"),
        volume("v2", size="3Gi", on="n1"),
        volume("w1", size="4Gi", on="n2"),
        volume("w2", size="5Gi"),
    )
    assert outcome(cluster, "big", "small") == {
        "n1": {"small": "v1", "big": "v2"},
        "n2": {"small": "w1", "big": "w2"},
        "n3": NO_MATCH,
    }


def test_a_claim_that_shares_its_only_volume_has_none_left():
    cluster = cluster_with(storage_class(), claim("one"), claim("two"), volume("v", on="n1"), volume("w"))
    assert outcome(cluster, "one", "two") == {"n1": {"one": "v", "two": "w"}, "n2": NO_MATCH, "n3": NO_MATCH}


def test_a_node_can_be_refused_for_two_reasons():
    cluster = cluster_with(storage_class(), claim(volume="disk"), claim("logs"), volume(claim="data", on="n1"))
    assert outcome(cluster, "data", "logs")["n2"] == (NODE_CONFLICT, NOTHING_TO_BIND)


def test_a_reserved_volume_is_its_claims_alone():
    cluster = cluster_with(storage_class(), claim(), claim("other"), volume("v", on="n1"), volume("w", on="n2"))
    cluster.volumes.reservations.reserve("uid", VolumeBindings("n1", ((DATA, "v"),)))
    assert outcome(cluster, "other") == {"n1": NO_MATCH, "n2": {"other": "w"}, "n3": NO_MATCH}
    assert outcome(cluster) == {"n1": {"data": "v"}, "n2": NO_MATCH, "n3": NO_MATCH}, "as a pod that shares the claim"


def test_a_claim_with_a_reserved_node_goes_there_alone():
    cluster = cluster_with(FAST, claim(storageClassName="fast"))
    cluster.volumes.reservations.reserve("uid", VolumeBindings("n2", (), (DATA,)))
    assert outcome(cluster) == {"n1": NO_MATCH, "n2": {"data": "new"}, "n3": NO_MATCH}


PROBLEMS = {
    "a claim that does not exist": ([], mounts("data"), 'persistentvolumeclaim "data" not found'),
    "an ephemeral claim that does not exist yet": (
        [], mounts(ephemeral=["v"]),
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-v"',
    ),
    "a claim that has lost its volume": (
        [claim(volume="disk", phase="Lost")], mounts("data"),
        'persistentvolumeclaim "data" bound to non-existent persistentvolume "disk"',
    ),
    "a claim that is being deleted": (
        [claim(deleting=True)], mounts("data"), 'persistentvolumeclaim "data" is being deleted',
    ),
    "an ephemeral claim of another owner": (
        [claim("web-v", owner="uid-other")], mounts(ephemeral=["v"]),
        "PVC default/web-v was not created for pod default/web (pod is not owner)",
    ),
    "an immediate claim that is not bound": (
        [claim(storageClassName="now"), storage_class("now", volumeBindingMode="Immediate")], mounts("data"),
        "pod has unbound immediate PersistentVolumeClaims",
    ),
    "a claim of a class that does not exist": (
        [claim()], mounts("data"), "pod has unbound immediate PersistentVolumeClaims",
    ),
    "a claim that names a volume and is not bound to it": (
        [claim(volumeName="disk"), storage_class()], mounts("data"), "pod has unbound immediate PersistentVolumeClaims",
    ),
    "the first of several": ([claim(deleting=True)], mounts("gone", "data"), 'persistentvolumeclaim "gone" not found'),
    "an ephemeral claim of its own": ([claim("web-v", owner="uid-web"), storage_class()], mounts(ephemeral=["v"]), ""),
}  # fmt: skip


@pytest.mark.parametrize(("storage", "spec", "refusal"), PROBLEMS.values(), ids=PROBLEMS)
def test_claims_with_which_a_pod_goes_nowhere_in_kube_schedulers_words(storage, spec, refusal):
    assert sort_claims(cluster_with(*storage).volumes, pod("web", **spec)).refusal == refusal


def steps_with(claims: int, capacities: int, volumes: int) -> int:
    names = [f"c{i}" for i in range(claims)]
    cluster = cluster_with(
        FAST,
        csi_driver(storageCapacity=True),
        *(claim(name, storageClassName="fast") for name in names),
        *(csi_capacity(f"room-{i}", "1Ti", {"zone": "a"}) for i in range(capacities)),
        *(volume(f"v{i}", storageClassName="fast", on="n1", size="2Gi") for i in range(volumes)),
    )
    found = sort_claims(cluster.volumes, pod("web", **mounts(*names)))
    return steps_of(lambda: ClaimMatch(cluster.volumes, cluster.rows, found))


@pytest.mark.parametrize(("capacities", "volumes"), [(0, 0), (50, 0), (0, 10)])
def test_the_work_grows_with_the_number_of_claims_and_not_with_its_square(capacities, volumes):
    few, many = (steps_with(claims, capacities, volumes) for claims in (20, 80))
    assert many < 5 * few


def test_the_work_grows_with_claims_and_capacities_and_not_with_their_product():
    assert steps_with(40, 60, 0) < 2 * steps_with(40, 5, 0)


def test_bindings_name_the_very_objects_that_were_decided_on():
    found = match(
        cluster_with(FAST, storage_class(), claim(), claim("new", storageClassName="fast"), volume("v")), "data", "new"
    )
    assert dict(found.bindings(0).uids) == {DATA: "claim-data", ("default", "new"): "claim-new", "v": "volume-v"}


def test_a_pod_that_mounts_a_claim_twice_gets_one_volume_for_it():
    cluster = cluster_with(storage_class(), claim(), volume("v"))
    assert outcome(cluster, "data", "data") == {name: {"data": "v"} for name in ("n1", "n2", "n3")}


def test_a_claim_that_is_made_for_a_pod_and_named_by_it_gets_one_volume():
    cluster = cluster_with(storage_class(), claim("web-own", owner="uid-web"), volume("v1"), volume("v2"))
    found = sort_claims(cluster.volumes, pod("web", **mounts("web-own", ephemeral=["own"])))
    assert [each.key.name for each in found.waiting] == ["web-own"]


def test_claims_that_take_too_long_to_compare_with_the_volumes_are_refused():
    volumes = [volume(f"d{i}") for i in range(60)]
    expressions = [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(9000)]
    cluster = cluster_with(
        storage_class(), FAST, *volumes, claim("hostile", selector={"matchExpressions": expressions}),
        claim("made", storageClassName="fast", selector={"matchExpressions": expressions}), claim("data"),
    )  # fmt: skip
    for name, refusal in (("hostile", TOO_MANY_COMPARISONS), ("made", ""), ("data", "")):
        assert sort_claims(cluster.volumes, pod("web", **mounts(name))).refusal == refusal


def test_very_many_claims_of_a_class_with_very_many_volumes_are_refused():
    cluster = cluster_with(storage_class(), *(volume(f"d{i}") for i in range(4000)))
    store(cluster, *(claim(f"c{i}") for i in range(1100)))
    for count, refusal in ((1100, TOO_MANY_COMPARISONS), (900, "")):
        asked = pod("web", **mounts(*(f"c{i}" for i in range(count))))
        assert sort_claims(cluster.volumes, asked).refusal == refusal
