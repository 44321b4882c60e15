import gc
import json
import weakref

import pytest

from concerto.api import pod_shape
from concerto.api.node import Taint
from concerto.api.pod import PodView
from concerto.api.pod_constraints import HostPort, Tolerations
from concerto.api.pod_trimming import trim_pod
from concerto.api.pod_volumes import NO_VOLUMES
from support.daemon_sets import daemon_affinity, owner

MI = 2**20


def container(requests=None, limits=None, **more):
    resources = {}
    if requests is not None:
        resources["requests"] = requests
    if limits is not None:
        resources["limits"] = limits
    return {"name": "c", "image": "busybox", "resources": resources, **more}


def raw(spec, *, metadata=None, status=None):
    return {
        "metadata": {"namespace": "default", "name": "pod", "uid": "uid-1", **(metadata or {})},
        "spec": {"containers": [container()], **spec},
        "status": status or {},
    }


def view(spec, **more):
    return PodView.from_raw(raw(spec, **more))


SIDECAR = {"restartPolicy": "Always"}

REQUESTS = {
    "a pod that requests nothing counts for nothing": ({}, {}),
    "containers run together, so they add up": (
        {"containers": [container({"cpu": "100m", "memory": "1Mi"}), container({"cpu": "1"})]},
        {"cpu": 1100, "memory": MI},
    ),
    "parts of a millicore add up before they are rounded": (
        {"containers": [container({"cpu": "0.5m"}), container({"cpu": "0.5m"})]},
        {"cpu": 1},
    ),
    "init containers run one by one, so the largest counts": (
        {
            "containers": [container({"cpu": "100m", "memory": "5Mi"})],
            "initContainers": [container({"cpu": "300m"}), container({"cpu": "200m", "memory": "1Mi"})],
        },
        {"cpu": 300, "memory": 5 * MI},
    ),
    "a sidecar runs on beside the containers": (
        {"containers": [container({"cpu": "100m"})], "initContainers": [container({"cpu": "50m"}, **SIDECAR)]},
        {"cpu": 150},
    ),
    "an init container after a sidecar runs beside it, one before it does not": (
        {
            "containers": [container({"cpu": "100m"})],
            "initContainers": [
                container({"cpu": "380m"}),
                container({"cpu": "50m"}, **SIDECAR),
                container({"cpu": "350m"}),
            ],
        },
        {"cpu": 400},
    ),
    "sidecars alone may be the largest moment": (
        {
            "containers": [container({"cpu": "10m"})],
            "initContainers": [container({"memory": "2Mi"}), container({"memory": "1Mi"}, **SIDECAR)],
        },
        {"cpu": 10, "memory": 2 * MI},
    ),
    "pod-level resources replace the containers' sum, for what they name": (
        {
            "resources": {"requests": {"cpu": "2"}},
            "containers": [container({"cpu": "100m", "memory": "1Mi", "example.com/gpu": "1"})],
        },
        {"cpu": 2000, "memory": MI, "example.com/gpu": 1},
    ),
    "pod-level resources know only cpu, memory and huge pages": (
        {"resources": {"requests": {"example.com/gpu": "4", "hugepages-2Mi": "4Mi"}}},
        {"hugepages-2Mi": 4 * MI},
    ),
    "overhead comes on top": (
        {"overhead": {"cpu": "10m", "memory": "1Mi"}, "containers": [container({"cpu": "100m"})]},
        {"cpu": 110, "memory": MI},
    ),
    "a request of zero does not count": ({"containers": [container({"cpu": "0", "example.com/gpu": "0"})]}, {}),
}


@pytest.mark.parametrize(("spec", "requests"), REQUESTS.values(), ids=REQUESTS)
def test_requests_are_what_kube_scheduler_counts(spec, requests):
    assert view(spec).requests == requests


NONZERO = {
    "a container that requests nothing counts as 100m and 200Mi": ({}, (100, 200 * MI)),
    "each of them": ({"containers": [container(), container({"cpu": "1m"})]}, (101, 400 * MI)),
    "a request of zero is meant": ({"containers": [container({"cpu": "0", "memory": "0"})]}, (0, 0)),
    "an init container is filled up, too": (
        {"containers": [container({"cpu": "10m", "memory": "1Mi"})], "initContainers": [container()]},
        (100, 200 * MI),
    ),
    "with pod-level requests, only what nobody requests is filled up": (
        {"resources": {"requests": {"memory": "1Mi"}}, "containers": [container({"cpu": "10m"}), container()]},
        (10, MI),
    ),
    "overhead comes on top": ({"overhead": {"cpu": "10m"}}, (110, 200 * MI)),
    "with pod-level requests, overhead counts as requested": (
        {"resources": {"requests": {"cpu": "1m"}}, "overhead": {"memory": "1Mi"}},
        (1, MI),
    ),
}


@pytest.mark.parametrize(("spec", "nonzero"), NONZERO.values(), ids=NONZERO)
def test_for_spreading_a_container_without_requests_counts_as_a_small_one(spec, nonzero):
    shape = view(spec).shape
    assert (shape.nonzero_cpu_millicores, shape.nonzero_memory_bytes) == nonzero


def test_limits_add_up_like_requests_and_overhead_raises_only_what_is_limited():
    spec = {
        "overhead": {"cpu": "10m", "memory": "1Mi"},
        "containers": [container(limits={"cpu": "1"}), container(limits={"cpu": "500m"})],
    }
    assert view(spec).shape.limits == {"cpu": 1510}


QOS = {
    "nothing requested, nothing limited": ({}, "BestEffort"),
    "a request of zero is nothing": ({"containers": [container({"cpu": "0"})]}, "BestEffort"),
    "extended resources do not matter": ({"containers": [container({"example.com/gpu": "1"})]}, "BestEffort"),
    "requests without limits": ({"containers": [container({"cpu": "1"})]}, "Burstable"),
    "one of two containers without limits": (
        {"containers": [container({"cpu": "1", "memory": "1Mi"}, {"cpu": "1", "memory": "1Mi"}), container()]},
        "Burstable",
    ),
    "limits equal to requests, written otherwise": (
        {"containers": [container({"cpu": "1000m", "memory": "1Mi"}, {"cpu": "1", "memory": "1024Ki"})]},
        "Guaranteed",
    ),
    "pod-level resources decide alone": (
        {"resources": {"requests": {"cpu": "1", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Mi"}}},
        "Guaranteed",
    ),
}


@pytest.mark.parametrize(("spec", "qos"), QOS.values(), ids=QOS)
def test_qos_class(spec, qos):
    assert view(spec).shape.qos == qos


def term(**more):
    return {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}, **more}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

UNSUPPORTED = {
    "a plain pod has none": ({}, ()),
    "preferred affinity is no hard constraint": (
        {"affinity": {"podAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term()}]}}},
        (),
    ),
    "required pod affinity": ({"affinity": {"podAffinity": {REQUIRED: [term()]}}}, ()),
    "required pod anti-affinity": (
        {"affinity": {"podAntiAffinity": {REQUIRED: [term()]}}},
        (),
    ),
    "spread that must hold": (
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "topologyKey": "zone", "maxSkew": 1}]},
        (),
    ),
    "spread that may be violated is supported": (
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway", "topologyKey": "zone", "maxSkew": 1}]},
        (),
    ),
    "a volume claim": ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}, ()),
    "devices": ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}, ("resource claims",)),
    "all of a gang at once": ({"workloadRef": {"name": "w", "podGroup": "g"}}, ("workload reference",)),
    "a group that is not a PodGroup": ({"schedulingGroup": {"other": "g"}}, ("scheduling group",)),
}


@pytest.mark.parametrize(("spec", "names"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_hard_constraints_that_are_not_evaluated_are_named(spec, names):
    assert view(spec).shape.unsupported == names
    assert PodView.from_raw(trim_pod(raw(spec))).shape.unsupported == names


TAINT = Taint("gpu", "yes", "NoSchedule")
TOLERATIONS = {
    "the very taint": ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
    "no operator means Equal": ({"key": "gpu", "value": "yes", "effect": "NoSchedule"}, True),
    "another value": ({"key": "gpu", "operator": "Equal", "value": "no", "effect": "NoSchedule"}, False),
    "any value": ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
    "another effect": ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    "any effect": ({"key": "gpu", "operator": "Exists"}, True),
    "any key": ({"operator": "Exists"}, True),
    "a number above one, of a taint that has none": ({"key": "gpu", "operator": "Gt", "value": "1"}, False),
    "an operator that is not known": ({"key": "gpu", "operator": "Like", "value": "yes"}, False),
}


@pytest.mark.parametrize(("toleration", "tolerates"), TOLERATIONS.values(), ids=TOLERATIONS)
def test_tolerations(toleration, tolerates):
    assert Tolerations.from_raw([toleration]).tolerate(TAINT) is tolerates


def by_number(operator, value, effect=""):
    return {"key": "load", "operator": operator, "value": value, "effect": effect}


NUMBERS = {
    "above": ("5", [by_number("Gt", "4")], True),
    "not above": ("5", [by_number("Gt", "5")], False),
    "below": ("5", [by_number("Lt", "6")], True),
    "not below": ("5", [by_number("Lt", "5")], False),
    "above a number below 0": ("0", [by_number("Gt", "-1")], True),
    "one of several": ("5", [by_number("Gt", "9"), by_number("Gt", "4"), by_number("Gt", "7")], True),
    "another one of several": ("5", [by_number("Lt", "1"), by_number("Lt", "9"), by_number("Lt", "3")], True),
    "none of several": ("5", [by_number("Lt", "5"), by_number("Gt", "5")], False),
    "its effect": ("5", [by_number("Gt", "4", "NoSchedule")], True),
    "another effect": ("5", [by_number("Gt", "4", "NoExecute")], False),
    "a leading zero": ("05", [by_number("Gt", "4")], False),
    "no value": ("", [by_number("Gt", "-1")], False),
    "the largest number there is": (str(2**63 - 1), [by_number("Gt", str(2**63 - 2))], True),
    "beyond it": (str(2**63), [by_number("Gt", "1")], False),
    "far beyond it": ("9" * 5000, [by_number("Gt", "1")], False),
    "a toleration beyond it": ("5", [by_number("Lt", str(2**63))], False),
    "digits of another script": ("\u0665", [by_number("Gt", "1")], False),
}


@pytest.mark.parametrize(("value", "tolerations", "tolerates"), NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_are_tolerated(value, tolerations, tolerates):
    assert Tolerations.from_raw(tolerations).tolerate(Taint("load", value, "NoSchedule")) is tolerates


def test_host_ports_are_those_of_containers_and_sidecars():
    spec = {
        "containers": [container(ports=[{"containerPort": 1}, {"containerPort": 2, "hostPort": 80}])],
        "initContainers": [
            container(ports=[{"hostPort": 81}]),
            container(ports=[{"hostPort": 82, "hostIP": "127.0.0.1", "protocol": "UDP"}], **SIDECAR),
        ],
    }
    assert view(spec).shape.host_ports == (HostPort("0.0.0.0", "TCP", 80), HostPort("127.0.0.1", "UDP", 82))


ANTI = {
    "one of its own namespace with the label": (term(), "default", {"app": "a"}, True),
    "another label": (term(), "default", {"app": "b"}, False),
    "another namespace": (term(), "other", {"app": "a"}, False),
    "a namespace it names": (term(namespaces=["other"]), "other", {"app": "a"}, True),
    "its own, when it names others": (term(namespaces=["other"]), "default", {"app": "a"}, False),
    "a namespace with a label": (term(namespaceSelector={"matchLabels": {"team": "x"}}), "team-x", {"app": "a"}, True),
    "a namespace without it, its own": (
        term(namespaceSelector={"matchLabels": {"team": "x"}}), "default", {"app": "a"}, False,
    ),
    "every namespace": (term(namespaceSelector={}), "other", {"app": "a"}, True),
    "a namespace with a label, or one it names": (
        term(namespaceSelector={"matchLabels": {"team": "x"}}, namespaces=["default"]), "default", {"app": "a"}, True,
    ),
    "nobody without a selector": ({"topologyKey": "zone"}, "default", {"app": "a"}, False),
    "everybody with an empty one": ({"topologyKey": "zone", "labelSelector": {}}, "default", {}, True),
}  # fmt: skip


@pytest.mark.parametrize(("raw_term", "namespace", "labels", "refused"), ANTI.values(), ids=ANTI)
def test_a_running_pod_refuses(raw_term, namespace, labels, refused):
    (anti,) = view({"affinity": {"podAntiAffinity": {REQUIRED: [raw_term]}}}).shape.anti_affinity
    assert anti.selects("default", namespace, labels, {"team": "x"} if namespace == "team-x" else {}) is refused


def test_identity_and_state():
    pod = view(
        {"nodeName": "n1", "schedulerName": "concerto", "priority": 7, "schedulingGates": [{"name": "wait"}]},
        metadata={
            "creationTimestamp": "1970-01-01T00:01:00Z",
            "deletionTimestamp": "1970-01-01T00:02:00Z",
            "labels": {"app": "a"},
            "ownerReferences": [{"kind": "Foo", "name": "x"}, {"kind": "Job", "name": "j", "controller": True}],
        },
        status={"phase": "Succeeded"},
    )
    assert (pod.key, pod.node_name, pod.scheduler_name, pod.priority) == ("default/pod", "n1", "concerto", 7)
    assert (pod.created, pod.deleting, pod.terminal, pod.gates) == (60.0, True, True, ("wait",))
    assert (pod.labels, pod.counted) == ({"app": "a"}, True)


MIRROR = {"annotations": {"kubernetes.io/config.mirror": "abc"}}
ITS_NODE = daemon_affinity("n1")
TWO_NODES = daemon_affinity("n1")
TWO_NODES["nodeAffinity"][REQUIRED]["nodeSelectorTerms"][0]["matchFields"][0]["values"].append("n2")
OWNED = {
    "nobody's": ({}, {}, True),
    "a static pod's mirror": (MIRROR, {}, False),
    "a DaemonSet's": ({"ownerReferences": [owner("DaemonSet")]}, {"affinity": ITS_NODE}, False),
    "a DaemonSet's of an older version": (
        {"ownerReferences": [owner("DaemonSet", "apps/v1beta2")]}, {"affinity": ITS_NODE}, False,
    ),
    "of a kind of that name in another group": (
        {"ownerReferences": [owner("DaemonSet", "evil.io/v1")]}, {"affinity": ITS_NODE}, True,
    ),
    "of a group that begins alike": (
        {"ownerReferences": [owner("DaemonSet", "apps.evil.io/v1")]}, {"affinity": ITS_NODE}, True,
    ),
    "without the controller's mark": ({"ownerReferences": [owner("DaemonSet")]}, {}, True),
    "with room to choose": ({"ownerReferences": [owner("DaemonSet")]}, {"affinity": TWO_NODES}, True),
    "owned beside a controller": (
        {"ownerReferences": [owner("DaemonSet") | {"controller": False}]}, {"affinity": ITS_NODE}, True,
    ),
    "another owner's on one node": ({"ownerReferences": [owner("Job", "batch/v1")]}, {"affinity": ITS_NODE}, True),
}  # fmt: skip


@pytest.mark.parametrize(("metadata", "spec", "counted"), OWNED.values(), ids=OWNED)
def test_what_belongs_to_the_node_is_no_unit_and_nothing_else_is_free(metadata, spec, counted):
    assert view(spec, metadata=metadata).counted is counted
    assert PodView.from_raw(trim_pod(raw(spec, metadata=metadata))).counted is counted


def test_siblings_share_one_shape():
    one = view({"containers": [container({"cpu": "1"})]}, metadata={"name": "a", "uid": "a"})
    two = view({"containers": [container({"cpu": "1"})]}, metadata={"name": "b", "uid": "b", "labels": {"index": "1"}})
    other = view({"containers": [container({"cpu": "2"})]})
    assert one.shape is two.shape
    assert one.shape != other.shape


def resized(actual, allocated=None, conditions=()):
    status = {"name": "c", "resources": {"requests": actual}}
    if allocated is not None:
        status["allocatedResources"] = allocated
    return {"containerStatuses": [status], "conditions": list(conditions)}


RESIZE = {
    "as wanted": (resized({"cpu": "1"}, {"cpu": "1"}), {"cpu": 1000}),
    "shrinking, not done yet": (resized({"cpu": "3"}, {"cpu": "3"}), {"cpu": 3000}),
    "growing, allocated first": (resized({"cpu": "500m"}, {"cpu": "2"}), {"cpu": 2000}),
    "to nothing, which the node has not agreed to": (
        resized({}, None, [{"type": "PodResizePending", "reason": "Infeasible"}]),
        {},
    ),
    "growing beyond the node": (
        resized({"cpu": "500m"}, {"cpu": "500m"}, [{"type": "PodResizePending", "reason": "Infeasible"}]),
        {"cpu": 500},
    ),
}


@pytest.mark.parametrize(("status", "requests"), RESIZE.values(), ids=RESIZE)
def test_a_pod_that_is_resized_counts_for_the_larger(status, requests):
    obj = raw({"containers": [container({"cpu": "1"})]}, status=status)
    assert PodView.from_raw(obj).requests == requests
    assert PodView.from_raw(trim_pod(obj)).requests == requests


def whole(actual, allocated, **more):
    return {"resources": {"requests": actual}, "allocatedResources": allocated, **more}


INFEASIBLE = {"conditions": [{"type": "PodResizePending", "reason": "Infeasible"}]}
BOTH = [container({"cpu": "1"}), container({"cpu": "1"}) | {"name": "d"}]
RESIZED_AS_A_WHOLE = {
    "the sums over containers are compared, not each container": (
        {"containers": BOTH},
        {
            "containerStatuses": [
                {"name": "c", "resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "2"}},
                {"name": "d", "resources": {"requests": {"cpu": "500m"}}, "allocatedResources": {"cpu": "500m"}},
            ]
        },
        {"cpu": 2500},
    ),
    "a container that has only been allocated to": (
        {"containers": BOTH},
        {"containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "3"}}]},
        {"cpu": 4000},
    ),
    "an init container counts by its status, too": (
        {"containers": [], "initContainers": [container({"cpu": "1"})]},
        {"initContainerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]},
        {"cpu": 2000},
    ),
    "a container of which a node that will not give it more reports nothing": (
        {"containers": BOTH},
        {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **INFEASIBLE},
        {"cpu": 1000},
    ),
    "a pod of which a node that will not give it more reports nothing": (
        {"containers": BOTH},
        {"containerStatuses": [{"name": "c"}, {"name": "d"}], **INFEASIBLE},
        {},
    ),
    "what the pod has as a whole stands for the sum over its containers": (
        {"containers": BOTH},
        whole({"cpu": "3"}, {"cpu": "2500m"}, **resized({"cpu": "9"}, {"cpu": "9"})),
        {"cpu": 3000},
    ),
    "pod-level resources that shrink": (
        {"resources": {"requests": {"cpu": "2"}}, "containers": BOTH},
        whole({"cpu": "3"}, {"cpu": "2"}),
        {"cpu": 3000},
    ),
    "pod-level resources that grow": (
        {"resources": {"requests": {"cpu": "4"}}, "overhead": {"cpu": "100m"}, "containers": BOTH},
        whole({"cpu": "3"}, {"cpu": "3"}),
        {"cpu": 4100},
    ),
    "pod-level resources that the node will not give": (
        {"resources": {"requests": {"cpu": "9"}}, "containers": BOTH},
        whole({"cpu": "3"}, {"cpu": "3"}, **INFEASIBLE),
        {"cpu": 3000},
    ),
}


@pytest.mark.parametrize(("spec", "status", "requests"), RESIZED_AS_A_WHOLE.values(), ids=RESIZED_AS_A_WHOLE)
def test_a_resize_of_several_containers_counts_for_the_pod(spec, status, requests):
    obj = raw(spec, status=status)
    assert PodView.from_raw(obj).requests == requests
    assert PodView.from_raw(trim_pod(obj)).requests == requests


NONZERO_RESIZED = {
    "a container without a request of memory counts as a small one, whatever it has": (
        {"containers": [container({"cpu": "1"})]},
        resized({"cpu": "3"}, {"cpu": "2"}),
        (3000, 200 * 2**20),
    ),
    "of a resize that the node will not do, a container counts that reports nothing": (
        {"containers": BOTH},
        {"containerStatuses": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}], **INFEASIBLE},
        (1100, 400 * 2**20),
    ),
    "what the pod has as a whole is not filled up, but the containers are": (
        {"containers": BOTH},
        whole({"cpu": "3"}, {"cpu": "3"}),
        (3000, 400 * 2**20),
    ),
    "no defaults for what is requested for the pod as a whole": (
        {"resources": {"requests": {"cpu": "2", "memory": "1Ki"}}, "containers": BOTH},
        whole({"cpu": "3", "memory": "1Ki"}, {"cpu": "2", "memory": "1Ki"}),
        (3000, 1024),
    ),
    "overhead is added": (
        {"containers": [container({"cpu": "1"})], "overhead": {"cpu": "250m", "memory": "1Ki"}},
        resized({"cpu": "2"}),
        (2250, 200 * 2**20 + 1024),
    ),
}


@pytest.mark.parametrize(("spec", "status", "nonzero"), NONZERO_RESIZED.values(), ids=NONZERO_RESIZED)
def test_for_spreading_a_pod_that_is_resized_counts_for_the_larger_with_defaults(spec, status, nonzero):
    assert PodView.from_raw(trim_pod(raw(spec, status=status))).nonzero == nonzero


@pytest.mark.parametrize(
    "status",
    [{}, whole({"cpu": "1"}, {"cpu": "1"}), whole({"cpu": "1000m"}, {"cpu": "1"})],
    ids=["", "pod", "other words"],
)
def test_a_status_that_agrees_with_the_spec_costs_no_memory(status):
    of_container = resized({"cpu": "1"}, {"cpu": "1"})
    found = PodView.from_raw(raw({"containers": [container({"cpu": "1"})]}, status=of_container | status))
    assert (found.requests is found.shape.requests, found.nonzero) == (True, None)


def test_trimming_keeps_all_that_is_read_and_little_else():
    obj = raw(
        {
            "nodeName": "n1",
            "schedulerName": "concerto",
            "priority": 1,
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists"}],
            "overhead": {"cpu": "1m"},
            "containers": [container({"cpu": "1"}, ports=[{"hostPort": 80}], env=[{"name": "A", "value": "x" * 5000}])],
            "initContainers": [container({"cpu": "2"}, **SIDECAR)],
            "volumes": [{"name": "v", "configMap": {"name": "m"}}, {"name": "i", "image": {"reference": "r"}}],
            "schedulingGates": [{"name": "g"}],
        },
        metadata={"managedFields": ["x" * 5000], "labels": {"a": "b"}, "creationTimestamp": "2026-03-01T12:00:00Z"},
        status={"phase": "Running", "hostIP": "10.0.0.1", "containerStatuses": [{"name": "c", "imageID": "x" * 900}]},
    )
    assert PodView.from_raw(trim_pod(obj)) == PodView.from_raw(obj)
    assert len(json.dumps(trim_pod(obj))) < 900


def test_shapes_of_pods_that_are_gone_take_no_more_memory_than_the_cache_is_allowed():
    def large(i):
        terms = [
            {"matchExpressions": [{"key": f"k{i}-{j}", "operator": "In", "values": ["x" * 50]}]} for j in range(300)
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        return view({"affinity": {"nodeAffinity": required}})

    seen = [weakref.ref(large(i).shape) for i in range(400)]
    gc.collect()
    assert 300 * 50 * sum(ref() is not None for ref in seen) <= pod_shape.MAX_CACHED_BYTES
    kept = large(0)
    assert large(0).shape is kept.shape, "of a pod that is there, the shape is shared"


def test_constraints_that_are_too_large_are_not_evaluated_and_requests_are_still_counted():
    tolerations = [{"key": f"k{i}", "operator": "Exists"} for i in range(3000)]
    pod = view({"tolerations": tolerations, "containers": [container({"cpu": "2"})]})
    assert pod.shape.unsupported == ("scheduling constraints of more than 64 KiB",)
    assert pod.requests == {"cpu": 2000}
    assert len(pod.shape.key) < 100
    again = view({"tolerations": tolerations, "containers": [container({"cpu": "2"})]})
    other = view({"tolerations": tolerations[1:], "containers": [container({"cpu": "2"})]})
    assert again.shape == pod.shape != other.shape


MANY_VOLUMES = {
    "many": [{"name": f"v{i}", "iscsi": {"iqn": f"q{i}", "lun": 0}} for i in range(2000)],
    "a large one": [{"name": "v", "rbd": {"image": "i", "monitors": [f"m{i}" for i in range(20_000)]}}],
}


@pytest.mark.parametrize("volumes", MANY_VOLUMES.values(), ids=MANY_VOLUMES)
def test_a_pod_with_too_many_volumes_is_held_without_them_and_refused(volumes):
    trimmed = trim_pod(raw({"volumes": volumes}))
    assert len(json.dumps(trimmed)) < 1500
    pod = PodView.from_raw(trimmed)
    assert (pod.volumes, pod.images) == (NO_VOLUMES, view({}).images)
    assert pod.shape.unsupported == ("claims and disks of more than 64 KiB",)
    some = trim_pod(raw({"volumes": MANY_VOLUMES["many"][:500]}))
    assert len(PodView.from_raw(some).volumes.disks) == 500
    assert PodView.from_raw(some).shape.unsupported == ()


PREEMPTION = {"status": "True", "reason": "PreemptionByScheduler"}
DISRUPTED = {
    "evicted by a scheduler": ({"deletionTimestamp": "2026-03-01T12:00:00Z"}, PREEMPTION, True),
    "about to be": ({}, PREEMPTION, False),
    "deleted by somebody else": ({"deletionTimestamp": "2026-03-01T12:00:00Z"}, None, False),
    "evicted for another reason": (
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"status": "True", "reason": "EvictionByEvictionAPI"},
        False,
    ),
    "not evicted after all": (
        {"deletionTimestamp": "2026-03-01T12:00:00Z"},
        {"status": "False", "reason": "PreemptionByScheduler"},
        False,
    ),
}


@pytest.mark.parametrize(("metadata", "condition", "preempted"), DISRUPTED.values(), ids=DISRUPTED)
def test_a_pod_that_makes_room_is_distinguished_from_one_that_ends(metadata, condition, preempted):
    conditions = [
        {"type": "Ready", "status": "True"},
        *([{"type": "DisruptionTarget", **condition}] if condition else []),
    ]
    obj = raw({}, metadata=metadata, status={"conditions": conditions})
    assert PodView.from_raw(trim_pod(obj)).preempted is preempted


@pytest.mark.parametrize(("policy", "preempts"), [(None, True), ("PreemptLowerPriority", True), ("Never", False)])
def test_a_pod_preempts_unless_its_policy_is_never(policy, preempts):
    obj = raw({"preemptionPolicy": policy} if policy else {}, status={"nominatedNodeName": "n"})
    seen = PodView.from_raw(trim_pod(obj))
    assert (seen.preempts, seen.nominated_node) == (preempts, "n")
