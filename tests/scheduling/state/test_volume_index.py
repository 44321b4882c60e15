"""What the cluster state keeps of volumes in use, and of limits, however events come."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.podreservation import Assignment
from concerto.api.selectors import LabelSelector, NodeSelectorTerm, Requirement
from concerto.api.volumes import NO_BINDINGS, ClaimKey, VolumeBindings
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.labels import LabelColumn
from support.scheduling_builders import NOW, cluster_state, node, pod
from support.step_counts import steps_of
from support.volume_builders import (
    HOSTNAME,
    attachment,
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

CSI = {"driver": "csi.example.com", "volumeHandle": "h1"}
DRIVER, OTHER = "csi.example.com", "other.example.com"
DATA = ClaimKey("default", "data")


def used(cluster, driver=DRIVER):
    column = cluster.volumes.use.attached.used(driver)
    return {name: int(column[row]) for name, row in cluster.row_of.items() if column[row]}


def limits(cluster, driver=DRIVER):
    column = cluster.volumes.use.attached.limits(driver)
    return {name: int(column[row]) for name, row in cluster.row_of.items() if column[row] < 2**31}


def cluster_with(*storage, pods=(), nodes=("n1", "n2")):
    return store(cluster_state([node(n) for n in nodes], pods), *storage)


BOUND = (claim(volume="disk"), volume(claim="data", csi=CSI))


def test_a_volume_counts_once_on_a_node():
    cluster = cluster_with(*BOUND, pods=[pod(p, nodeName="n1", **mounts("data")) for p in ("a", "b")])
    assert used(cluster) == {"n1": 1}
    cluster.remove_pod("uid-a")
    assert used(cluster) == {"n1": 1}
    cluster.remove_pod("uid-b")
    assert used(cluster) == {}


def test_a_volume_that_is_attached_and_used_counts_once():
    cluster = cluster_with(*BOUND, attachment("a", "n1", "disk"), pods=[pod("p", nodeName="n1", **mounts("data"))])
    assert used(cluster) == {"n1": 1}
    cluster.remove_pod("uid-p")
    assert used(cluster) == {"n1": 1}, "it is still attached"
    assert cluster.volumes.use.remove_attachment("a") == Change.VOLUMES
    assert used(cluster) == {}


def test_a_claim_counts_by_its_class_until_it_has_its_volume():
    cluster = cluster_with(claim(), storage_class(provisioner=OTHER), pods=[pod("p", nodeName="n1", **mounts("data"))])
    assert used(cluster, OTHER) == {"n1": 1}
    store(cluster, *BOUND)
    assert (used(cluster, OTHER), used(cluster)) == ({}, {"n1": 1})
    cluster.volumes.remove_volume("disk")
    assert (used(cluster, OTHER), used(cluster)) == ({"n1": 1}, {})
    cluster.volumes.remove_claim(DATA)
    assert (used(cluster, OTHER), used(cluster)) == ({}, {})


def test_limits_follow_the_csi_node_whichever_comes_first():
    cluster = cluster_with(csi_node("n1", {DRIVER: 3, OTHER: None}), csi_node("n9", {DRIVER: 7}))
    assert limits(cluster) == {"n1": 3}
    cluster.set_node(node("n9"))
    assert limits(cluster) == {"n1": 3, "n9": 7}
    store(cluster, csi_node("n1", {}))
    assert limits(cluster) == {"n9": 7}
    cluster.volumes.use.remove_csi_node("n9")
    assert limits(cluster) == {}


def test_a_row_that_is_used_again_has_nothing_of_the_node_before():
    cluster = cluster_with(*BOUND, csi_node("n1", {DRIVER: 3}), attachment("a", "n1", "disk"), nodes=["n1"])
    cluster.remove_node("n1")
    cluster.set_node(node("n2"))
    assert cluster.row_of == {"n2": 0}
    assert (limits(cluster), used(cluster)) == ({}, {})
    cluster.remove_node("n2")
    cluster.set_node(node("n1"))
    assert (limits(cluster), used(cluster)) == ({"n1": 3}, {"n1": 1}), "what names the node is still there"


def test_what_is_counted_does_not_depend_on_the_order_of_events():
    events = [
        lambda c: store(c, claim(volume="disk")),
        lambda c: store(c, volume(claim="data", csi=CSI)),
        lambda c: store(c, claim("logs", storageClassName="fast")),
        lambda c: store(c, storage_class("fast", provisioner=DRIVER)),
        lambda c: store(c, csi_node("n1", {DRIVER: 2})),
        lambda c: store(c, attachment("a", "n1", "disk")),
        lambda c: store(c, attachment("b", "n2", "disk")),
        lambda c: c.set_node(node("n1")),
        lambda c: c.set_node(node("n2")),
        lambda c: c.set_pod(pod("p", nodeName="n1", **mounts("data", "logs", "absent")), NOW),
        lambda c: c.set_pod(pod("q", nodeName="n2", **mounts("logs")), NOW),
    ]
    for seed in range(30):
        cluster = cluster_state([])
        for event in random.Random(seed).sample(events, len(events)):
            event(cluster)
        assert (used(cluster), limits(cluster)) == ({"n1": 2, "n2": 2}, {"n1": 2}), seed
        for uid in ("uid-p", "uid-q"):
            cluster.remove_pod(uid)
        assert used(cluster) == {"n1": 1, "n2": 1}, "attached"
        for name in ("a", "b"):
            cluster.volumes.use.remove_attachment(name)
        assert used(cluster) == {}


def test_reservations_hold_volumes_for_claims_until_they_are_given_back():
    cluster = cluster_with(claim(), claim("logs"), volume("disk"))
    reservations, volumes = cluster.volumes.reservations, cluster.volumes
    bindings = VolumeBindings("n1", ((DATA, "disk"),), (ClaimKey("default", "logs"),))
    for uid in ("one", "two"):  # pods that share the claims
        reservations.reserve(uid, bindings)
    for uid in ("one", "two"):
        assert volumes.claim_of(volumes.volumes["disk"]).key == DATA
        assert volumes.selected_node(volumes.claims["default", "logs"]) == "n1"
        assert reservations.of(uid) == bindings
        reservations.unreserve(uid)
    assert volumes.claim_of(volumes.volumes["disk"]) is None
    assert volumes.selected_node(volumes.claims["default", "logs"]) is None


def test_what_the_api_server_shows_comes_before_a_reservation():
    cluster = cluster_with(claim(node="n2"), claim("other"), volume("disk", claim="other"))
    cluster.volumes.reservations.reserve("one", VolumeBindings("n1", ((DATA, "disk"),), (DATA,)))
    assert cluster.volumes.claim_of(cluster.volumes.volumes["disk"]).key.name == "other"
    assert cluster.volumes.selected_node(cluster.volumes.claims[DATA]) == "n2"


def test_a_pod_that_is_gone_holds_nothing():
    cluster = cluster_with(claim(), volume("disk"))
    cluster.set_pod(pod("p", nodeName="n1", **mounts("data")), NOW)
    cluster.volumes.reservations.reserve("uid-p", VolumeBindings("n1", ((DATA, "disk"),)))
    cluster.remove_pod("uid-p")
    assert cluster.volumes.claim_of(cluster.volumes.volumes["disk"]) is None


@pytest.mark.parametrize("shared", [True, False])
def test_claims_in_use(shared):
    claims = mounts("data") if shared else mounts(ephemeral=["data"])
    cluster = cluster_with(pods=[pod("p", nodeName="n1", **claims)])
    users, exists = cluster.volumes.use.users, cluster.nodes.exists
    assert users.number_of_pods(DATA, exists) == shared, "a claim that belongs to one pod is no other pod's"
    assert users.number_of_pods(DATA, ~exists) == 0
    cluster.remove_pod("uid-p")
    assert users.number_of_pods(DATA, exists) == 0


def test_room_for_new_volumes_follows_capacities_and_labels_of_nodes():
    cluster = cluster_state([node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"})])
    fast = storage_class("fast", provisioner=DRIVER)
    store(cluster, fast, csi_driver(storageCapacity=True), csi_capacity("room", "2Gi", {"zone": "a"}))

    def room(size):
        found = cluster.volumes.has_room(fast, size)
        return {name for name, row in cluster.row_of.items() if found[row]}

    assert room(2**30) == {"n1"}
    assert room(0) == {"n1"}
    cluster.volumes.set_capacity(csi_capacity("more", "1Gi", {"zone": "b"}))
    assert room(2**30) == {"n1", "n2"}
    cluster.set_node(node("n1", labels={"zone": "b"}))
    assert room(2**30) == {"n1", "n2"}
    assert room(2**31) == set()
    cluster.volumes.set_capacity(csi_capacity("more", "8Ei", {"zone": "b"}))
    assert room(2**62) == {"n1", "n2"}, "amounts end at 2^63 - 1, as in Kubernetes"
    cluster.volumes.set_capacity(csi_capacity("more", "1Gi", {"zone": "b"}, storageClassName="slow"))
    assert room(1) == set()
    cluster.volumes.set_capacity(csi_capacity("more", "1Gi", {"zone": "b"}))
    assert room(1) == {"n1", "n2"}
    cluster.volumes.remove_capacity(("csi", "more"))
    assert room(1) == set()


def test_volumes_of_a_class_stay_in_order_as_they_come_and_go():
    cluster = cluster_with(volume("b"), volume("c", size="3Gi"))
    index = cluster.volumes

    def names(of="local"):
        return [v.name for v in index.of_class(of)]

    assert names() == ["b", "c"]
    index.set_volume(volume("a", size="2Gi"))
    assert names() == ["b", "a", "c"]
    index.set_volume(volume("c", storageClassName="other"))
    assert (names(), names("other")) == (["b", "a"], ["c"])
    index.remove_volume("a")
    index.remove_volume("b")
    assert names() == []


def test_a_reservation_that_is_given_back_is_a_change_of_volumes():
    cluster = cluster_with(storage_class(), claim(), volume(on="n1"))
    for name, bindings in (("p", VolumeBindings("n1", ((DATA, "disk"),))), ("q", NO_BINDINGS)):
        asked = pod(name)
        where = Assignment("default", name, asked.uid, "n1", "Requests", "", 1.0, volumes=bindings)
        assert cluster.assume(asked, where, NOW)
        assert (Change.VOLUMES in cluster.forget(f"uid-{name}")) is bool(bindings)


def events_of_work(attachments: int) -> list[int]:
    """Steps while a volume and a node come, in a cluster with so many attachments of others."""
    others = [attachment(f"a{i}", f"m{i}", f"v{i}") for i in range(attachments)]
    cluster = cluster_with(*others)
    return [
        steps_of(lambda: cluster.volumes.set_volume(volume(csi=CSI))),
        steps_of(lambda: cluster.set_node(node("n3"))),
    ]


def test_a_volume_or_a_node_that_comes_is_no_more_work_with_more_attachments():
    assert events_of_work(10) == events_of_work(100)


def test_a_volume_stays_reserved_when_the_first_claim_that_it_was_reserved_for_is_gone():
    cluster = cluster_with(claim(), claim("logs"), volume("disk"))
    volumes = cluster.volumes
    volumes.reservations.reserve("one", VolumeBindings("n1", ((DATA, "disk"),)))
    volumes.remove_claim(DATA)
    assert volumes.claim_of(volumes.volumes["disk"]) is None
    volumes.reservations.reserve("two", VolumeBindings("n1", ((ClaimKey("default", "logs"), "disk"),)))
    assert volumes.claim_of(volumes.volumes["disk"]).key.name == "logs"


def test_what_is_kept_of_node_affinities_is_bounded_in_bytes(monkeypatch):
    cluster = cluster_state([node(f"n{i}", labels={"zone": "a"}) for i in range(10)])
    monkeypatch.setattr("concerto.scheduling.state.volumes.MAX_REACHABLE_BYTES", 400)
    for i in range(20):
        affinity = node_affinity("zone", "a", f"zone-{i}")
        assert len(cluster.volumes.reach(volume(nodeAffinity=affinity).affinity)) == 10
        assert sum(rows.nbytes for rows in cluster.volumes._reachable.values()) <= 400


def test_what_was_found_by_labels_of_nodes_holds_while_they_stay():
    cluster = cluster_state([node("n1", labels={"zone": "a"}), node("n2", labels={"zone": "b"})])
    fast, affinity = storage_class("fast", provisioner=DRIVER), volume(nodeAffinity=node_affinity("zone", "a")).affinity
    store(cluster, fast, csi_driver(storageCapacity=True), csi_capacity("room", "2Gi", {"zone": "a"}))

    def found():
        return cluster.volumes.reach(affinity), cluster.volumes._room_of("fast")

    reached, room = found()
    cluster.set_node(node("n2", labels={"zone": "b"}, allocatable={"cpu": 2000}))
    assert found()[0] is reached and found()[1] is room, "a kubelet's news changes neither"
    cluster.set_node(node("n2", labels={"zone": "a"}))
    assert len(found()[0]) == 2 and found()[1].min() == 2**31


def test_room_and_volumes_of_single_nodes_are_found_without_a_look_at_all_nodes(monkeypatch):
    looked_at, matching = [], LabelColumn.matching
    monkeypatch.setattr(
        LabelColumn, "matching", lambda *of: (looked_at.append(len(of[0].codes[of[2]])), matching(*of))[1]
    )
    names = [f"n{i}" for i in range(30)]
    storage = [csi_capacity(name, "1Gi", {HOSTNAME: name, "arch": "x"}) for name in names]
    nodes = [node(name, labels={HOSTNAME: name, "arch": "x"}) for name in names]
    volumes = store(cluster_state(nodes), csi_driver("d", storageCapacity=True), *storage).volumes
    assert volumes.has_room(storage_class("fast", provisioner="d"), 1).all()
    assert [volumes.reach(volume(on=name).affinity).tolist() for name in names] == [[row] for row in range(30)]
    assert sum(looked_at) <= 2 * len(names)


@given(st.data())
def test_rows_are_those_whose_labels_match(data):
    values, numbers = st.sampled_from(["a", "b", "1", "2"]), st.sampled_from(["1", "2"])
    keys = st.sampled_from(["x", "y", "z"])
    labels = data.draw(st.lists(st.dictionaries(keys, values), min_size=1, max_size=5))
    one_of = st.lists(values, min_size=1, max_size=2).map(tuple)
    requirements = data.draw(
        st.lists(
            st.builds(Requirement, keys, st.sampled_from(["In", "NotIn"]), one_of)
            | st.builds(Requirement, keys, st.sampled_from(["Exists", "DoesNotExist"]))
            | st.builds(Requirement, keys, st.sampled_from(["Gt", "Lt"]), numbers.map(lambda n: (n,))),
            max_size=3,
        )
    )
    index = cluster_state([node(f"n{i}", labels=each) for i, each in enumerate(labels)]).nodes.labels
    expected = [row for row, each in enumerate(labels) if LabelSelector(tuple(requirements)).matches(each)]
    assert index.rows_matching(requirements).tolist() == expected
    term = NodeSelectorTerm(tuple(requirements))
    assert index.rows_in_term(term).tolist() == [row for row, each in enumerate(labels) if term.matches("n", each)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from(["a", "b", None])), max_size=6))
def test_of_several_capacities_the_largest_counts(capacities):
    nodes = [node("n1", labels={"zone": "a", "all": ""}), node("n2", labels={"zone": "b", "all": ""})]
    storage = [
        csi_capacity(f"c{i}", f"{free}Gi", {"zone": zone} if zone else {"all": ""}, maximumVolumeSize=f"{size}Gi")
        for i, (size, free, zone) in enumerate(capacities)
    ]
    volumes = store(cluster_state(nodes), csi_driver("d", storageCapacity=True), *storage).volumes
    fast = storage_class("fast", provisioner="d")
    for row, zone in enumerate(["a", "b"]):
        largest, free = max(
            ((size, free) for size, free, where in capacities if where in (zone, None)), default=(-1, -1)
        )
        assert volumes.free_bytes(fast)[row] == (free << 30 if free >= 0 else -1)
        for size in range(1, 4):
            assert volumes.has_room(fast, size << 30)[row] == (size <= largest)


def test_where_drivers_serve_the_volumes_of_a_plugin_is_known_by_csi_nodes_and_nodes_in_any_order():
    plugin, cluster = (
        "kubernetes.io/aws-ebs",
        cluster_with(csi_node("n2", migrated="kubernetes.io/aws-ebs"), nodes=["n1"]),
    )
    use = cluster.volumes.use

    def served():
        return sorted(cluster.names[row] for row in use.rows_served(plugin))

    assert served() == []
    cluster.set_node(node("n2"))
    assert served() == ["n2"]
    use.set_csi_node(csi_node("n1", migrated=plugin))
    assert served() == ["n1", "n2"]
    use.remove_csi_node("n2")
    assert served() == ["n1"]
    use.set_csi_node(csi_node("n1"))
    assert served() == []


def test_volumes_of_a_plugin_are_no_more_work_with_more_csi_nodes():
    def steps(nodes):
        ebs = volume(
            awsElasticBlockStore={"volumeID": "v"}, nodeAffinity=node_affinity("topology.kubernetes.io/zone", "z")
        )
        storage = [csi_node(f"n{i}", migrated="kubernetes.io/aws-ebs") for i in range(nodes)]
        volumes = cluster_with(*storage, nodes=[f"n{i}" for i in range(nodes)]).volumes
        volumes.reaches(ebs)
        return steps_of(lambda: volumes.reaches(ebs))

    assert steps(40) == steps(10)
