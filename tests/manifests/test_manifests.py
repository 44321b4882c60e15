from pathlib import Path

import pytest
import yaml

from concerto.api.node import NodeView
from concerto.api.quantities import parse_quantity
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.operator import CONTROLLERS
from concerto.controllers.wiring import OperatorSettings
from concerto.kube.lease import LeaseSettings
from concerto.scheduling.state.nodes import is_agentless
from support.crd_schemas import documents

MANIFESTS = Path(__file__).resolve().parents[2] / "manifests"
BASE = MANIFESTS / "base"
FILES = sorted(path for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml")
KUSTOMIZATIONS = sorted([*MANIFESTS.rglob("kustomization.yaml"), MANIFESTS.parent / "crds" / "kustomization.yaml"])


def objects():
    """The objects of the base and of the components by kind and name."""
    return {
        (o["kind"], o["metadata"]["name"]): o
        for path in [*BASE.glob("*.yaml"), *(MANIFESTS / "components").rglob("*.yaml")]
        for o in documents(path)
        if "metadata" in o
    }


def rights(*roles):
    """(group, resource, resource names or None, verb) for each right."""
    return {
        (group, resource, tuple(rule.get("resourceNames", ())), verb)
        for kind, name in roles
        for rule in objects()[kind, name]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def roles_of(account, *kinds):
    """The roles that are bound to a service account, by any component."""
    return tuple(
        (o["roleRef"]["kind"], o["roleRef"]["name"])
        for (kind, _), o in objects().items()
        if kind.endswith("RoleBinding")
        and any(subject["name"] == account for subject in o["subjects"])
        and o["roleRef"]["kind"] in (kinds or ("ClusterRole", "Role"))
    )


OPERATOR = roles_of("concerto-operator")
AUTOSCALER = roles_of("concerto-autoscaler")
AGENT = roles_of("concerto-agent")
READ = {"get", "list", "watch"}
DEPLOYMENTS = ("concerto-operator", "concerto-autoscaler")
WORKLOADS = [*(("Deployment", name) for name in DEPLOYMENTS), ("DaemonSet", "concerto-agent")]


def path_id(path):
    return str(path.relative_to(MANIFESTS.parent))


@pytest.mark.parametrize("path", FILES, ids=path_id)
def test_every_object_has_a_kind_a_name_and_a_place(path):
    cluster_scoped = {
        "Namespace", "ClusterRole", "ClusterRoleBinding", "SchedulingProfile", "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding", "FlowSchema",
    }  # fmt: skip
    for obj in documents(path):
        assert obj["apiVersion"] and obj["metadata"]["name"]
        assert ("namespace" in obj["metadata"]) == (obj["kind"] not in cluster_scoped), obj["metadata"]["name"]


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=path_id)
def test_a_kustomization_names_every_file_beside_it_and_only_what_exists(path):
    (kustomization,) = documents(path)
    used = [*kustomization.get("resources", []), *kustomization.get("components", [])]
    used += [patch["path"] for patch in kustomization.get("patches", []) if "path" in patch]
    for generator in kustomization.get("configMapGenerator", []):
        used += [file.rpartition("=")[2] for file in generator["files"]]
    assert used or kustomization.get("patches")
    assert all((path.parent / file).exists() for file in used)
    beside = {other.name for other in path.parent.glob("*.*")} - {"kustomization.yaml"}
    assert beside <= set(used)


@pytest.mark.parametrize("path", [p for p in KUSTOMIZATIONS if p.parent.parent.name == "components"], ids=path_id)
def test_the_objects_of_a_component_have_the_label_that_those_of_the_base_have(path):
    """`labels` of a component would also replace those of other objects in a user's overlay."""
    (base,), (component,) = documents(BASE / "kustomization.yaml"), documents(path)
    wanted = base["labels"][0]["pairs"].items()
    assert not {"labels", "commonLabels", "commonAnnotations", "namespace", "namePrefix"} & set(component)
    for obj in (obj for file in component["resources"] for obj in documents(path.parent / file)):
        assert wanted <= obj["metadata"].get("labels", {}).items(), (obj["kind"], obj["metadata"]["name"])
    for generator in component.get("configMapGenerator", []):
        assert wanted <= generator["options"]["labels"].items()


def test_images_of_the_workloads_are_pinned_in_one_place():
    (kustomization,) = documents(BASE / "kustomization.yaml")
    pinned = {image["name"] for image in kustomization["images"] if image["newTag"]}
    for key in WORKLOADS:
        for container in objects()[key]["spec"]["template"]["spec"]["containers"]:
            assert container["image"] in pinned


@pytest.mark.parametrize("roles", [OPERATOR, AUTOSCALER, AGENT], ids=["operator", "autoscaler", "agent"])
def test_rights_are_spelled_out_and_reach_nothing_secret(roles):
    everywhere = [role for role in roles if role[0] == "ClusterRole"]
    assert "secrets" not in {resource for _, resource, _, _ in rights(*everywhere)}
    for group, resource, names, verb in rights(*roles):
        # There a resource is the name of a metric, which only the person who asks for it knows; and what can be scaled
        # is for its kind to say, as for the HorizontalPodAutoscaler
        named_by_metrics = group in {"custom.metrics.k8s.io", "external.metrics.k8s.io"} and verb in READ
        assert verb != "*"
        assert group != "*" or resource == "*/scale"
        assert resource != "*" or named_by_metrics
        # One Secret at home, and only to be read by its name: what profiles' Prometheus asks for
        assert resource != "secrets" or (names, verb) == (("concerto-prometheus",), "get")
        # Its own tokens for agents, which a policy holds to the audience of one node
        assert resource != "serviceaccounts/token" or (names, verb) == (("concerto-autoscaler",), "create")
        assert resource not in {"configmaps", "pods/exec", "roles", "clusterroles"}
        assert verb not in {"deletecollection", "impersonate", "escalate", "bind"}


@pytest.mark.parametrize("roles", [OPERATOR, AUTOSCALER, AGENT], ids=["operator", "autoscaler", "agent"])
def test_nobody_may_change_a_spec_that_somebody_else_applies(roles):
    changes = {(resource, verb) for _, resource, _, verb in rights(*roles) if verb not in READ and "/" not in resource}
    changing = {(resource, verb) for resource, verb in changes if verb in {"update", "patch", "delete"}}
    # events grow a count; the lease, batches and the bindings of pods that it places are the operator's own; a
    # binding's finalizer can't be had alone; pods of lower priority are evicted
    # binding's finalizer can't be had alone. What binds claims, and nothing else, is let through by policy-volumes.yaml
    assert changing <= {
        *((("pods", "delete"),) if roles is OPERATOR else ()),
        ("events", "patch"),
        ("leases", "update"),
        ("podreservations", "delete"),
        ("podcpubindings", "patch"),
        ("podcpubindings", "delete"),
        ("persistentvolumes", "patch"),
        ("persistentvolumeclaims", "patch"),
    }


# To create one is to ask the API server a question; nothing is kept
ASKS = {("tokenreviews", "create"), ("subjectaccessreviews", "create")}


def test_an_agent_writes_nothing_but_its_measurements_and_what_it_pinned():
    assert {(resource, verb) for _, resource, _, verb in rights(*AGENT) if verb not in READ} - ASKS == {
        (resource + sub, verb)
        for resource in ("nodecapacities", "subspacesnapshots", "nodecputopologies")
        for sub, verb in (("", "create"), ("/status", "patch"))
    } | {("podcpubindings/status", "patch")}


def test_the_operator_makes_and_deletes_reservations_but_changes_none():
    # Its own placements only at home, which policy-in-flight.yaml holds
    everywhere = rights(*roles_of("concerto-operator", "ClusterRole"))
    assert {verb for _, resource, _, verb in everywhere if resource == "podreservations"} == READ
    at_home = rights(*roles_of("concerto-operator", "Role"))
    assert {verb for _, resource, _, verb in at_home if resource == "podreservations"} == {"create", "delete"}


def test_operator_and_autoscaler_change_nothing_of_each_others():
    def changed(roles):
        return {(resource, names) for _, resource, names, verb in rights(*roles) if verb not in READ}

    shared = (changed(OPERATOR) & changed(AUTOSCALER)) - {(resource, ()) for resource, _ in ASKS}
    # each its own events; RBAC can't tie the right to create a Lease to its name, nor a reservation to who makes it
    assert shared == {("events", ()), ("leases", ()), ("podreservations", ())}


def test_the_operator_writes_no_other_model_than_the_clusters():
    writable = {
        names
        for _, resource, names, verb in rights(*OPERATOR)
        if resource == "subspacesnapshots/status" and verb != "get"
    }
    assert writable == {("cluster",)}


@pytest.mark.parametrize(("kind", "name"), WORKLOADS)
def test_each_workload_runs_under_the_account_that_its_role_is_bound_to(kind, name):
    account = {"kind": "ServiceAccount", "name": name, "namespace": "concerto-system"}
    assert objects()["ServiceAccount", name]["metadata"]["namespace"] == "concerto-system"
    assert objects()["ClusterRoleBinding", name]["subjects"] == [account]
    assert objects()[kind, name]["spec"]["template"]["spec"]["serviceAccountName"] == name


@pytest.mark.parametrize(
    ("policy", "account"),
    [
        ("concerto-agent-own-node", "concerto-agent"),
        ("concerto-in-flight", "concerto-operator"),
        ("concerto-hold-volumes", "concerto-operator"),
        ("concerto-select-nodes", "concerto-operator"),
        ("concerto-agent-tokens", "concerto-autoscaler"),
        ("concerto-binding-status", "concerto-operator"),
        ("concerto-binding-status", "concerto-agent"),
    ],
)
def test_a_policy_denies_and_names_the_account_there_is(policy, account):
    spec = objects()["ValidatingAdmissionPolicy", policy]["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert f"'system:serviceaccount:concerto-system:{account}'" in yaml.safe_dump(spec, width=1000).replace("''", "'")
    binding = objects()["ValidatingAdmissionPolicyBinding", policy]["spec"]
    assert binding == {"policyName": policy, "validationActions": ["Deny"]}
    assert all(validation["message"].endswith(".") for validation in spec["validations"])


FENCED = {
    "concerto-fencing": {
        "CREATE": {"pods/binding", "podreservations", "podcpubindings"},
        "UPDATE": {"pods/status", "podgroups/status"},
    },
    "concerto-fencing-evictions": {"DELETE": {"pods"}},
}


@pytest.mark.parametrize("policy", FENCED)
def test_fencing_compares_the_operators_lease_and_covers_what_places_and_evicts_pods(policy):
    spec = objects()["ValidatingAdmissionPolicy", policy]["spec"]
    (lease,) = {names for _, resource, names, verb in rights(*OPERATOR) if (resource, verb) == ("leases", "update")}
    binding = objects()["ValidatingAdmissionPolicyBinding", policy]["spec"]
    assert binding["paramRef"] == {
        "namespace": "concerto-system", "name": lease[0], "parameterNotFoundAction": "Allow"
    }  # fmt: skip
    # An API server that can't read Leases goes on binding what others schedule
    assert spec["failurePolicy"] == "Ignore"
    conditions = [condition["expression"] for condition in spec["matchConditions"]]
    assert "request.userInfo.username == 'system:serviceaccount:concerto-system:concerto-operator'" in conditions
    covered: dict[str, set[str]] = {}
    for rule in spec["matchConstraints"]["resourceRules"]:
        for operation in rule["operations"]:
            covered.setdefault(operation, set()).update(rule["resources"])
    assert covered == FENCED[policy]


def test_the_policy_of_agents_covers_every_kind_that_an_agent_may_write():
    (rule,) = objects()["ValidatingAdmissionPolicy", "concerto-agent-own-node"]["spec"]["matchConstraints"][
        "resourceRules"
    ]
    changes = {(resource, verb) for group, resource, _, verb in rights(*AGENT) if verb not in READ} - ASKS
    written = {resource for resource, _ in changes}
    assert written <= set(rule["resources"])
    assert set(rule["operations"]) == {"CREATE", "UPDATE"}


@pytest.mark.parametrize("key", WORKLOADS)
def test_a_workload_runs_with_the_least_that_works(key):
    pod = objects()[key]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert parse_quantity(container["resources"]["limits"]["memory"]) > parse_quantity(
            container["resources"]["requests"]["memory"]
        )
        assert all(mount["readOnly"] for mount in container.get("volumeMounts", []))


@pytest.mark.parametrize("key", WORKLOADS)
def test_a_process_that_answers_slowly_for_want_of_cpu_is_not_killed_for_it(key):
    for container in objects()[key]["spec"]["template"]["spec"]["containers"]:
        alive, ready = container["livenessProbe"], container["readinessProbe"]
        assert min(alive["timeoutSeconds"], ready["timeoutSeconds"]) >= 5
        assert alive["periodSeconds"] * alive["failureThreshold"] >= 60


def test_the_agent_runs_on_every_node_whatever_its_taints():
    pod = objects()["DaemonSet", "concerto-agent"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert "schedulerName" not in pod


LABELS_OF_NODES = {
    "Linux": {"kubernetes.io/os": "linux"},
    "Linux with a type of its own": {"kubernetes.io/os": "linux", "type": "gpu"},
    "Windows": {"kubernetes.io/os": "windows"},
    "virtual-kubelet": {"kubernetes.io/os": "linux", "type": "virtual-kubelet"},
    "Fargate": {"kubernetes.io/os": "linux", "eks.amazonaws.com/compute-type": "fargate"},
}


@pytest.mark.parametrize("labels", LABELS_OF_NODES.values(), ids=LABELS_OF_NODES)
def test_an_agent_is_made_for_the_nodes_that_the_operator_waits_for_an_agent_of(labels):
    """One that can't run would be pending for ever, and keep a rollout and Argo CD's health from their ends."""
    pod = objects()["DaemonSet", "concerto-agent"]["spec"]["template"]["spec"]
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert {expression["operator"] for expression in term["matchExpressions"]} == {"NotIn"}
    selected = pod["nodeSelector"].items() <= labels.items() and all(
        labels.get(expression["key"]) not in expression["values"] for expression in term["matchExpressions"]
    )
    node = NodeView.from_raw({"metadata": {"name": "n", "labels": labels}, "spec": {}, "status": {}})
    assert selected != is_agentless(node)


@pytest.mark.parametrize("key", WORKLOADS)
def test_a_workload_of_ours_does_not_wait_for_itself_to_be_placed(key):
    profiles = {o["spec"]["schedulerName"] for (kind, _), o in objects().items() if kind == "SchedulingProfile"}
    assert profiles
    assert objects()[key]["spec"]["template"]["spec"].get("schedulerName", "default-scheduler") not in profiles


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_an_operator_leaves_no_gap_when_a_node_is_drained_or_a_version_rolled_out(name):
    deployment = objects()["Deployment", name]["spec"]
    budget = objects()["PodDisruptionBudget", name]["spec"]
    # by what may go, and not by what must stay: a drain ends where there is one replica only, or none is Ready
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert deployment["replicas"] > budget["maxUnavailable"]
    assert budget["selector"] == deployment["selector"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (spread,) = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"] == deployment["selector"]


def controllers(component):
    """What a component's patches have the operator run."""
    (kustomization,) = documents(component / "kustomization.yaml")
    patches = [yaml.safe_load(p["patch"]) for p in kustomization.get("patches", ())]
    steps = [step for patch in patches if isinstance(patch, list) for step in patch]
    return {v.removeprefix("--controllers=") for s in steps if (v := str(s.get("value"))).startswith("--controllers=")}


def flags(deployment):
    """The arguments of a Deployment's container."""
    return objects()["Deployment", deployment]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_each_component_that_brings_rights_for_the_operator_has_it_use_them_and_no_other_does():
    assert {a for a in flags("concerto-operator") if a.startswith("--controllers")} == {"--controllers=scheduling"}
    given = {path.name: controllers(path) for path in (MANIFESTS / "components").iterdir()}
    assert given["watcher"] == set()
    assert set().union(*given.values()) == set(CONTROLLERS) - {"scheduling", "autoscaling"}
    for name, wanted in given.items():
        brings_rights = any(role == f"concerto-operator-{name}" for _, role in OPERATOR)
        assert wanted == ({name} if brings_rights else set())


def test_autoscaling_has_a_deployment_a_lease_and_an_account_of_its_own():
    given = flags("concerto-autoscaler")
    assert {a for a in given if a.startswith("--controllers")} == {"--controllers=autoscaling"}
    settings = OperatorSettings(
        "concerto-system", frozenset({"autoscaling"}), None, LeaseSettings(), PredictiveHPASettings(), True
    )
    assert f"--service-account={settings.account}" in given
    leases = {names for _, resource, names, verb in rights(*AUTOSCALER) if (resource, verb) == ("leases", "update")}
    assert leases == {(settings.lease_name,)}


def test_pods_of_the_samples_ask_for_the_scheduler_that_the_default_profile_serves():
    served = objects()["SchedulingProfile", "concerto"]["spec"]["schedulerName"]
    jobs = [o for path in (MANIFESTS / "samples").glob("*.yaml") for o in documents(path) if o["kind"] == "Job"]
    assert {job["metadata"]["name"]: job["spec"].get("completions", 1) for job in jobs} == {"burn": 60, "report": 1}
    for job in jobs:
        pod = job["spec"]["template"]["spec"]
        assert pod["schedulerName"] == served
        assert all("resources" not in container for container in pod["containers"])


def test_the_watchers_service_reaches_the_operators_web_port():
    service = objects()["Service", "concerto-watcher"]["spec"]
    pod = objects()["Deployment", "concerto-operator"]["spec"]["template"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    ports = {p["name"] for c in pod["spec"]["containers"] for p in c["ports"]}
    assert {p["targetPort"] for p in service["ports"]} <= ports


AGGREGATION = "rbac.authorization.k8s.io/aggregate-to-"
AGGREGATED = [
    o
    for (kind, _), o in objects().items()
    if kind == "ClusterRole" and any(label.startswith(AGGREGATION) for label in o["metadata"].get("labels", ()))
]


def test_view_edit_and_admin_take_in_what_reaches_no_further_than_a_namespace_of_ones_own():
    labels = {(label, o["metadata"]["name"]) for o in AGGREGATED for label in o["metadata"]["labels"]}
    assert {(label, name) for label, name in labels if label.startswith(AGGREGATION)} == {
        (f"{AGGREGATION}view", "concerto-view"),
        (f"{AGGREGATION}edit", "concerto-edit-autoscaling"),
    }
    allowed = rights(*(("ClusterRole", o["metadata"]["name"]) for o in AGGREGATED))
    assert {group for group, _, _, _ in allowed} == {"concerto.dev"}
    # pins and reservations take from others what no quota counts; status and metrics are nobody's but ours
    assert {resource for _, resource, _, verb in allowed if verb not in READ} == {"predictivehpas"}
    assert not any("/" in resource or "*" in resource for _, resource, _, _ in allowed)


def test_metrics_are_served_to_authorized_callers_by_every_workload():
    for key in WORKLOADS:
        (container,) = objects()[key]["spec"]["template"]["spec"]["containers"]
        (port,) = [port["containerPort"] for port in container["ports"] if port["name"] == "metrics"]
        assert f"--secure-metrics-bind=:{port}" in container["args"]


def test_all_that_is_served_is_served_on_the_addresses_of_ipv6_too():
    """A pod of an IPv6 cluster has no other address: kubelet's probes fail where only 0.0.0.0 is bound."""
    binds = [
        arg.partition("=")[2]
        for key in WORKLOADS
        for container in objects()[key]["spec"]["template"]["spec"]["containers"]
        for arg in container["args"]
        if "-bind=" in arg or arg.startswith("--bind=")
    ]
    assert binds
    assert [bind for bind in binds if bind.rpartition(":")[0] not in ("", "$(POD_IP)")] == []


def test_who_reads_metrics_has_that_right_and_no_other():
    assert objects()["ClusterRole", "concerto-metrics-reader"]["rules"] == [
        {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
    ]
