"""Parts of nodes, pods and volumes that few have: what users seldom write, and what a scheduler easily gets wrong.

They are put into a scenario that is made already, by numbers of their own, so that all else in it stays as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from e2e.testbed.placement.changes import Change, random_change
from e2e.testbed.placement.random_objects import GPU, HOSTNAME, ZONE, Object
from e2e.testbed.placement.scenario import Scenario

REGION = "topology.kubernetes.io/region"
BETA_ZONE = "failure-domain.beta.kubernetes.io/zone"
MISSING_CLASS, MISSING_VOLUME = "missing", "missing"
"""Names of a StorageClass and of a volume that do not exist."""
ATTRIBUTES_CLASS = "gold"
EBS_DRIVER, EBS_PLUGIN, EBS_ZONE = "ebs.csi.aws.com", "kubernetes.io/aws-ebs", "topology.ebs.csi.aws.com/zone"
"""The CSI driver that has replaced an in-tree plugin, that plugin, and the driver's label of a node's zone."""
_MIGRATED_PLUGINS = "storage.alpha.kubernetes.io/migrated-plugins"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_DIGEST = "sha256:" + "0" * 64

Way = Callable[[random.Random, Object], None]


def add_rare_parts(rng: random.Random, found: Scenario) -> None:
    """Put some into a scenario of placements."""
    for node in found.nodes:
        _add(rng, node, _OF_NODES, 0.4)
    for pod in found.running:
        _add(rng, pod, _OF_PODS, 0.3)
    for pod in found.pods:
        _add(rng, pod, (*_OF_PODS, *_OF_PODS_TO_PLACE), 0.6)
    _add_to_storage(rng, found)
    for pod in found.pods:
        if rng.random() < 0.12 and not any("persistentVolumeClaim" in v or "ephemeral" in v for v in _volumes(pod)):
            found.nominations[pod["metadata"]["name"]] = rng.choice(found.nodes)["metadata"]["name"]
    if found.storage and rng.random() < 0.5:
        names = [node["metadata"]["name"] for node in found.nodes]
        changes: list[Change | None] = []
        if rng.random() < 0.5:
            changes.append(random_change(rng, names, found.running))
        changes += [_change_of_storage(rng, obj) for obj in found.storage if rng.random() < 0.3]
        found.changes[found.pods[-1]["metadata"]["name"]] = [each for each in changes if each is not None]


def add_rare_pods(rng: random.Random, found: Scenario) -> None:
    """Put some into the pods of a scenario of preemption."""
    for pod in (*found.running, *found.pods):
        _add(rng, pod, (_unlabel, _listen_elsewhere, _name_disk, _start_with_more), 0.3)


def _add(rng: random.Random, obj: Object, ways: Sequence[Way], share: float) -> None:
    if rng.random() < share:
        for way in rng.sample(ways, rng.choice([1, 1, 2])):
            way(rng, obj)


# --- nodes


def _take_hostname(rng: random.Random, node: Object) -> None:
    del node["metadata"]["labels"][HOSTNAME]


def _share_hostname(rng: random.Random, node: Object) -> None:
    node["metadata"]["labels"][HOSTNAME] = "shared"


def _empty_zone(rng: random.Random, node: Object) -> None:
    node["metadata"]["labels"][ZONE] = ""


def _name_region(rng: random.Random, node: Object) -> None:
    labels = node["metadata"]["labels"]
    labels[REGION] = rng.choice(["r1", "r2"])
    for key in (BETA_ZONE, EBS_ZONE):
        if rng.random() < 0.4:
            labels[key] = rng.choice("ab")


def _name_images_by_digest(rng: random.Random, node: Object) -> None:
    for image in node["status"]["images"]:
        image["names"] = [_by_digest(image["names"][0]), *image["names"]]


def _lack_resource(rng: random.Random, node: Object) -> None:
    del node["status"]["allocatable"][rng.choice(["cpu", "memory"])]


def _taint_more(rng: random.Random, node: Object) -> None:
    more = [
        {"key": "dedicated", "value": "", "effect": "PreferNoSchedule"},
        {"key": "dedicated", "value": "a", "effect": "NoExecute"},
        {"key": "spot", "value": "x", "effect": "PreferNoSchedule"},
        {"key": "late", "effect": "PreferNoSchedule"},
        {"key": "load", "value": rng.choice(["0", "5", "05", "x"]), "effect": rng.choice(["NoSchedule", "NoExecute"])},
        {"key": "load", "value": rng.choice(["3", "7"]), "effect": "PreferNoSchedule"},
    ]
    taints = {(t["key"], t["effect"]): t for t in [*node["spec"].get("taints", ()), *rng.sample(more, 2)]}
    node["spec"]["taints"] = [*taints.values()]


_OF_NODES: Sequence[Way] = (
    _take_hostname, _share_hostname, _empty_zone, _name_region, _name_images_by_digest, _lack_resource, _taint_more,
)  # fmt: skip


# --- pods


def _unlabel(rng: random.Random, pod: Object) -> None:
    pod["metadata"]["labels"] = {}


def _request_nothing(rng: random.Random, pod: Object) -> None:
    """Request amounts of 0, which a node has that lacks the resource or has given out more than there is."""
    resources = pod["spec"]["containers"][0].setdefault("resources", {})
    requests, limits = resources.setdefault("requests", {}), resources.setdefault("limits", {})
    requests["cpu"] = "0"
    requests[GPU] = limits[GPU] = "0"


def _listen_elsewhere(rng: random.Random, pod: Object) -> None:
    for container in _containers(pod):
        for port in container.get("ports", ()):
            port["hostIP"] = rng.choice(["0.0.0.0", "::", "127.0.0.1", "10.0.0.1"])
            if rng.random() < 0.3:
                port["protocol"] = "SCTP"


def _name_disk(rng: random.Random, pod: Object) -> None:
    """Use a disk that the pod itself names, which two pods of a node may not both have."""
    number, read_only = rng.choice("12"), rng.random() < 0.6
    disks: list[Object] = [
        {"awsElasticBlockStore": {"volumeID": f"vol-{number}", "readOnly": read_only}},
        {"gcePersistentDisk": {"pdName": f"disk-{number}", "readOnly": read_only}},
        {"iscsi": {"targetPortal": "10.0.0.1", "iqn": f"iqn.2001-04.com.example:{number}", "lun": 0}},
        {"rbd": {"monitors": rng.sample(["m1", "m2", "m3"], 2), "image": f"image-{number}"}},
    ]
    disk = rng.choice(disks)
    for details in disk.values():
        details["readOnly"] = read_only
    pod["spec"].setdefault("volumes", []).append({"name": "disk"} | disk)


def _start_with_more(rng: random.Random, pod: Object) -> None:
    """Need more while it starts than while it runs, before or after its sidecars."""
    amounts = {"memory": rng.choice(["300Mi", "900Mi"]), "ephemeral-storage": rng.choice(["500Mi", "2Gi"])}
    resources: Object = {"requests": amounts}
    if rng.random() < 0.3:
        resources["limits"] = {GPU: "1"}
    container = {"name": "rare", "image": "none.invalid/none", "resources": resources}
    if rng.random() < 0.4:
        container["restartPolicy"] = "Always"
    containers = pod["spec"].setdefault("initContainers", [])
    containers.insert(rng.randint(0, len(containers)), container)


def _request_pages_as_a_whole(rng: random.Random, pod: Object) -> None:
    if "resources" not in pod["spec"]:
        pages = {"hugepages-2Mi": rng.choice(["8Mi", "32Mi"])}
        pod["spec"]["resources"] = {"requests": {"cpu": "3", "memory": "1Gi"} | pages, "limits": pages}


def _name_image_by_digest(rng: random.Random, pod: Object) -> None:
    container = pod["spec"]["containers"][0]
    container["image"] = _by_digest(container["image"])


def _select_namespaces(rng: random.Random, pod: Object) -> None:
    for term in _pod_terms(pod):
        term["namespaces"] = rng.choice([["nowhere"], ["nowhere", "red"]])


_OF_PODS: Sequence[Way] = (
    _unlabel, _request_nothing, _listen_elsewhere, _name_disk, _start_with_more, _request_pages_as_a_whole,
    _name_image_by_digest, _select_namespaces,
)  # fmt: skip


# --- pods that are to be placed


def _use_host_network(rng: random.Random, pod: Object) -> None:
    """The API server makes each port of its containers a port of the node."""
    pod["spec"]["hostNetwork"] = True
    for container in _containers(pod):
        for port in container.get("ports", ()):
            port["containerPort"] = port["hostPort"]
    if rng.random() < 0.6:
        ports = pod["spec"]["containers"][0].setdefault("ports", [])
        if not ports:
            ports.append({"containerPort": rng.choice([8080, 8081])})


def _tolerate_seldom(rng: random.Random, pod: Object) -> None:
    some: list[Object] = [
        {"operator": "Exists", "effect": "NoSchedule"},
        {"operator": "Exists", "effect": "PreferNoSchedule"},
        {"key": "spot"},
        {"key": "spot", "value": "x", "effect": "PreferNoSchedule"},
        {"key": "dedicated", "value": "a", "effect": "NoExecute"},
        {"key": "late", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "load", "operator": "Gt", "value": rng.choice(["-1", "3", "5"])},
        {"key": "load", "operator": "Lt", "value": rng.choice(["1", "5", "6"]), "effect": "NoSchedule"},
    ]
    pod["spec"]["tolerations"] = rng.sample(some, rng.choice([1, 2, 3]))


def _add_empty_term(rng: random.Random, pod: Object) -> None:
    """An empty term selects no node."""
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    if rng.random() < 0.5:
        required = affinity.setdefault(_REQUIRED, {"nodeSelectorTerms": []})
        required["nodeSelectorTerms"].insert(0, {})
    else:
        affinity.setdefault(_PREFERRED, []).append({"weight": 50, "preference": {}})


def _prefer_numbers(rng: random.Random, pod: Object) -> None:
    expressions = [{"key": "size", "operator": rng.choice(["Gt", "Lt"]), "values": [rng.choice(["1", "5"])]}]
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity.setdefault(_PREFERRED, []).append({"weight": 100, "preference": {"matchExpressions": expressions}})


def _spread_in_many_ways(rng: random.Random, pod: Object) -> None:
    """Several constraints, of which two have the same topology key, and labels that the pod may lack."""
    selector: Object = {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}
    keys = rng.choice([["absent"], ["pod-template-hash", "absent"], ["app"]])
    kinds = ["DoNotSchedule", "ScheduleAnyway"]
    made: list[Object] = [
        {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": kinds[0], "labelSelector": selector},
        {"topologyKey": ZONE, "maxSkew": 2, "whenUnsatisfiable": kinds[1], "labelSelector": selector},
        {
            "topologyKey": HOSTNAME, "maxSkew": rng.choice([1, 3, 5]), "whenUnsatisfiable": rng.choice(kinds),
            "labelSelector": selector, "matchLabelKeys": keys, "nodeTaintsPolicy": "Honor",
        },
        {"topologyKey": REGION, "maxSkew": 1, "whenUnsatisfiable": kinds[1], "labelSelector": selector},
    ]  # fmt: skip
    pod["spec"]["topologySpreadConstraints"] = rng.sample(made, rng.choice([2, 3]))


_OF_PODS_TO_PLACE: Sequence[Way] = (
    _use_host_network, _tolerate_seldom, _add_empty_term, _prefer_numbers, _spread_in_many_ways,
)  # fmt: skip


# --- storage


def _add_to_storage(rng: random.Random, found: Scenario) -> None:
    attached = {o["spec"]["source"]["persistentVolumeName"] for o in found.storage if o["kind"] == "VolumeAttachment"}
    for obj in found.storage:
        if rng.random() > 0.4:
            continue
        match obj["kind"]:
            case "PersistentVolume":
                _change_volume(rng, obj, is_attached=obj["metadata"]["name"] in attached)
            case "PersistentVolumeClaim" if "volumeName" not in obj["spec"]:
                _change_claim(rng, obj)
            case "CSINode":
                obj["metadata"]["annotations"] = {_MIGRATED_PLUGINS: EBS_PLUGIN}
                obj["spec"]["drivers"].append({"name": EBS_DRIVER, "nodeID": "n", "allocatable": {"count": 1}})


def _change_volume(rng: random.Random, volume: Object, *, is_attached: bool) -> None:
    spec, labels = volume["spec"], volume["metadata"]["labels"]
    match rng.choice(["modes", "terms", "labels", "labels", "plugin", "attributes"]):
        case "modes" if spec["accessModes"] == ["ReadWriteOnce"]:
            spec["accessModes"] = ["ReadWriteOnce", "ReadOnlyMany"]
        case "terms":
            one = [{"key": ZONE, "operator": "In", "values": ["a", "b"]}]
            other = [{"key": "disk", "operator": "Exists"}, {"key": "rack", "operator": "NotIn", "values": ["2"]}]
            terms = [{"matchExpressions": each} for each in (one, other)]
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": rng.sample(terms, rng.choice([1, 2]))}}
        case "labels":
            labels[rng.choice([REGION, BETA_ZONE])] = rng.choice(["r1", "a", "a__b"])
        case "plugin" if "csi" in spec and not is_attached:
            del spec["csi"]
            spec["awsElasticBlockStore"] = {"volumeID": rng.choice(["vol-1", f"vol-{volume['metadata']['name']}"])}
        case "attributes" if "csi" in spec and "claimRef" not in spec:
            spec["volumeAttributesClassName"] = ATTRIBUTES_CLASS


def _change_claim(rng: random.Random, claim: Object) -> None:
    spec = claim["spec"]
    match rng.choice(["modes", "class", "no class", "volume", "attributes"]):
        case "modes" if spec["accessModes"] == ["ReadWriteOnce"]:
            spec["accessModes"] = ["ReadWriteOnce", "ReadOnlyMany"]
        case "class":
            spec["storageClassName"] = MISSING_CLASS
        case "no class":
            spec["storageClassName"] = ""
        case "volume":
            spec["volumeName"] = MISSING_VOLUME
        case "attributes":
            spec["volumeAttributesClassName"] = ATTRIBUTES_CLASS


def _change_of_storage(rng: random.Random, obj: Object) -> Change | None:
    """A change of the object before the last pod is placed; None for an object that stays."""
    kind, name = obj["kind"], obj["metadata"]["name"]
    match kind:
        case "PersistentVolume":
            return Change(kind, name, {"metadata": {"labels": {ZONE: rng.choice([None, "a", "b"]), REGION: None}}})
        case "CSINode":
            drivers = [dict(each) for each in obj["spec"]["drivers"]]
            for each in drivers:
                if "allocatable" in each:
                    each["allocatable"] = {"count": rng.randint(1, 3)}
            return Change(kind, name, {"spec": {"drivers": drivers}})
        case "CSIStorageCapacity":
            return Change(kind, name, None if rng.random() < 0.3 else {"capacity": rng.choice(["1Gi", "20Gi"])})
        case "VolumeAttachment":
            return Change(kind, name)
    return None


# --- what they share


def _containers(pod: Object) -> Iterator[Object]:
    yield from pod["spec"]["containers"]
    yield from pod["spec"].get("initContainers", ())


def _volumes(pod: Object) -> Sequence[Object]:
    found: Sequence[Object] = pod["spec"].get("volumes", ())
    return found


def _pod_terms(pod: Object) -> Iterator[Object]:
    for kind in ("podAffinity", "podAntiAffinity"):
        affinity = pod["spec"].get("affinity", {}).get(kind, {})
        yield from affinity.get(_REQUIRED, ())
        yield from (each["podAffinityTerm"] for each in affinity.get(_PREFERRED, ()))


def _by_digest(image: str) -> str:
    repository = image[: image.rfind(":")] if image.rfind(":") > image.rfind("/") else image
    return f"{repository}@{_DIGEST}"
