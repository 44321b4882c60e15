import pytest

from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.pod_volumes import PodClaim
from concerto.api.selectors import NodeSelectorTerm, Requirement
from concerto.api.volume_migration import driver_of_provisioner, migrated_volume
from concerto.api.volume_trimming import trim_bare, trim_claim, trim_csi_node, trim_storage_class, trim_volume
from concerto.api.volumes import (
    ClaimKey,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from support.scheduling_builders import raw_pod
from support.volume_builders import node_affinity, raw_claim, raw_volume, volume

GI = 2**30
ZONE, EBS_ZONE = "topology.kubernetes.io/zone", "topology.ebs.csi.aws.com/zone"
BETA_ZONE, BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"


def test_a_claim_is_read_with_the_class_of_the_old_annotation_first():
    raw = raw_claim(size="1500Mi", volume="disk", node="n1", selector={"matchLabels": {"a": "b"}}, owner="pod-uid")
    raw["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = "old"
    raw["metadata"]["annotations"]["somebody/notes"] = "x" * 1000
    read = PersistentVolumeClaim.from_raw(raw)
    assert (read.storage_class, read.bytes, read.selected_node) == ("old", 1500 * 2**20, "n1")
    assert (read.bound, read.owner_uid, read.mode) == (True, "pod-uid", "Filesystem")
    assert read.selector.matches({"a": "b"})
    assert PersistentVolumeClaim.from_raw(trim_claim(raw)) == read
    assert "somebody/notes" not in str(trim_claim(raw))


def test_a_claim_that_names_its_volume_is_bound_only_when_its_controller_says_so():
    assert not PersistentVolumeClaim.from_raw(raw_claim(volumeName="disk")).bound


def test_a_volume_is_read_with_what_holds_it():
    raw = raw_volume(on="n1", claim="data", csi={"driver": "d", "volumeHandle": "h", "volumeAttributes": {"a": "b"}})
    read = PersistentVolume.from_raw(raw)
    assert read.claim.key == ClaimKey("default", "data")
    assert (read.bytes, read.volume, read.is_csi) == (GI, ("d", "h"), True)
    assert read.affinity == (NodeSelectorTerm((Requirement("kubernetes.io/hostname", "In", ("n1",)),)),)
    assert PersistentVolume.from_raw(trim_volume(raw)) == read
    assert "volumeAttributes" not in str(trim_volume(raw))


def test_trimmed_objects_are_read_alike():
    cases = {
        StorageClass: (
            trim_storage_class,
            {
                "metadata": {"name": "fast", "labels": {"a": "b"}},
                "provisioner": "csi.example.com",
                "parameters": {"type": "ssd"},
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
            },
        ),
        CSINode: (
            trim_csi_node,
            {
                "metadata": {
                    "name": "n1",
                    "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,x"},
                },
                "spec": {"drivers": [{"name": "d", "nodeID": "i", "allocatable": {"count": 3}}, {"name": "e"}]},
            },
        ),
        CSIDriver: (trim_bare, {"metadata": {"name": "d"}, "spec": {"storageCapacity": True}}),
        CSIStorageCapacity: (
            trim_bare,
            {
                "metadata": {"namespace": "csi", "name": "c", "labels": {"a": "b"}},
                "storageClassName": "fast",
                "capacity": "3Gi",
                "maximumVolumeSize": "1Gi",
                "nodeTopology": {"matchLabels": {"zone": "a"}},
            },
        ),
        VolumeAttachment: (
            trim_bare,
            {
                "metadata": {"name": "a"},
                "spec": {"nodeName": "n1", "attacher": "d", "source": {"persistentVolumeName": "disk"}},
                "status": {"attached": True},
            },
        ),
    }
    read = {kind: kind.from_raw(raw) for kind, (_, raw) in cases.items()}
    assert {kind: kind.from_raw(trim(raw)) for kind, (trim, raw) in cases.items()} == read
    assert read[StorageClass].waits and read[StorageClass].provisions
    assert read[CSINode].limits == {"d": 3, "e": None}
    assert read[CSINode].migrated == {"kubernetes.io/aws-ebs", "x"}
    assert read[CSIStorageCapacity].max_bytes == GI, "the size that one volume may have comes before the whole"


MIGRATED = {
    "an EBS volume by its ID": ({"awsElasticBlockStore": {"volumeID": "vol-1"}}, {}, ("ebs.csi.aws.com", "vol-1")),
    "an EBS volume by URL": (
        {"awsElasticBlockStore": {"volumeID": "aws://eu-1a/vol-1"}}, {}, ("ebs.csi.aws.com", "vol-1"),
    ),
    "an EBS volume by a text that is not its URL": ({"awsElasticBlockStore": {"volumeID": "aws://eu/disk"}}, {}, None),
    "a GCE disk of one zone": (
        {"gcePersistentDisk": {"pdName": "d"}}, {ZONE: "eu-west1-b"},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/eu-west1-b/disks/d"),
    ),
    "a GCE disk of two zones": (
        {"gcePersistentDisk": {"pdName": "d"}}, {ZONE: "eu-west1-b__eu-west1-c"},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/eu-west1/disks/d"),
    ),
    "a GCE disk of a pod": (
        {"gcePersistentDisk": {"pdName": "d"}}, {},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
    ),
    "a managed Azure disk": (
        {"azureDisk": {"diskURI": "/sub/d", "kind": "Managed"}}, {}, ("disk.csi.azure.com", "/sub/d"),
    ),
    "an Azure disk that is not managed": ({"azureDisk": {"diskURI": "/sub/d", "kind": "Shared"}}, {}, None),
    "a Cinder volume": ({"cinder": {"volumeID": "v"}}, {}, ("cinder.csi.openstack.org", "v")),
    "a Portworx volume": ({"portworxVolume": {"volumeID": "v"}}, {}, ("pxd.portworx.com", "v")),
    "a host path": ({"hostPath": {"path": "/x"}}, {}, None),
}  # fmt: skip


@pytest.mark.parametrize(("source", "labels", "expected"), MIGRATED.values(), ids=MIGRATED)
def test_csi_volume_of_an_in_tree_source(source, labels, expected):
    assert migrated_volume(source, labels) == expected


def test_driver_of_a_provisioner():
    assert driver_of_provisioner("kubernetes.io/aws-ebs") == "ebs.csi.aws.com"
    assert driver_of_provisioner("csi.example.com") == "csi.example.com"
    assert driver_of_provisioner("kubernetes.io/azure-file") == ""


AFFINITIES = {
    "the zone of its affinity": (node_affinity(ZONE, "a"), {}, ((EBS_ZONE, ("a",)),)),
    "the old zone of its affinity": (node_affinity(BETA_ZONE, "a"), {}, ((EBS_ZONE, ("a",)),)),
    "the zones of its label": (None, {ZONE: "b__a"}, ((EBS_ZONE, ("a", "b")),)),
    "the label beside another affinity": (
        node_affinity("rack", "r"), {ZONE: "a"}, (("rack", ("r",)), (EBS_ZONE, ("a",))),
    ),
    "the old region becomes the new one": (
        node_affinity(BETA_REGION, "eu"), {BETA_ZONE: "a"},
        (("topology.kubernetes.io/region", ("eu",)), (EBS_ZONE, ("a",))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("affinity", "labels", "expected"), AFFINITIES.values(), ids=AFFINITIES)
def test_affinity_where_a_driver_has_replaced_the_plugin(affinity, labels, expected):
    read = volume(nodeAffinity=affinity, labels=labels, awsElasticBlockStore={"volumeID": "vol-1"})
    (term,) = read.migrated_affinity
    assert tuple((r.key, r.values) for r in term.labels) == expected


def test_other_volumes_have_one_affinity():
    read = volume(on="n1", labels={ZONE: "a"})
    assert (read.plugin, read.migrated_affinity) == ("", read.affinity)


def test_an_affinity_to_a_node_s_name_never_sees_one():
    by_name = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    required = {"nodeSelectorTerms": [{"matchFields": [by_name]}]}
    assert volume(nodeAffinity={"required": required}).affinity == ()


def test_volumes_of_a_pod():
    raw = raw_pod(
        "web-0",
        volumes=[
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0", "readOnly": True}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {}}}}},
            {"name": "config", "configMap": {"name": "c"}},
            {"name": "inline", "csi": {"driver": "d"}},
            {"name": "disk", "awsElasticBlockStore": {"volumeID": "vol-1"}},
        ],
    )
    read = PodView.from_raw(raw).volumes
    assert read.claims == (PodClaim("data-web-0"), PodClaim("web-0-scratch", ephemeral=True))
    assert read.attached == (("ebs.csi.aws.com", "vol-1"),)
    assert [disk.kind for disk in read.disks] == ["awsElasticBlockStore"]
    assert PodView.from_raw(trim_pod(raw)).volumes == read
    assert "volumeClaimTemplate" not in str(trim_pod(raw))
    assert not PodView.from_raw(raw_pod()).volumes


def disk_of(source):
    (disk,) = PodView.from_raw(raw_pod(volumes=[{"name": "v", **source}])).volumes.disks
    return disk


def gce(name="d", read_only=False):
    return {"gcePersistentDisk": {"pdName": name, "readOnly": read_only}}


def rbd(*monitors, read_only=False, image="i"):
    return {"rbd": {"monitors": list(monitors), "image": image, "readOnly": read_only}}


DISKS = {
    "one GCE disk": (gce(), gce(), True),
    "one GCE disk, all read-only": (gce(read_only=True), gce(read_only=True), False),
    "one GCE disk, one read-only": (gce(read_only=True), gce(), True),
    "two GCE disks": (gce(), gce("e"), False),
    "one EBS volume": (
        {"awsElasticBlockStore": {"volumeID": "v", "readOnly": True}},
        {"awsElasticBlockStore": {"volumeID": "v", "readOnly": True}},
        True,
    ),
    "one iSCSI name": ({"iscsi": {"iqn": "q", "lun": 1}}, {"iscsi": {"iqn": "q", "lun": 2}}, True),
    "one Ceph image by a shared monitor": (rbd("a", "b"), rbd("b", "c"), True),
    "the same names without a shared monitor": (rbd("a"), rbd("b"), False),
    "two Ceph images": (rbd("a"), rbd("a", image="j"), False),
}


@pytest.mark.parametrize(("one", "other", "conflict"), DISKS.values(), ids=DISKS)
def test_disks_conflict(one, other, conflict):
    a, b = disk_of(one), disk_of(other)
    assert (bool({*a.places} & {*b.places}) and (a.exclusive or b.exclusive)) is conflict
