"""What people may do with our kinds by the roles view, edit and admin, and by those of ours that are in no other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.testbed.clusters import Cluster
from e2e.testbed.processes import concerto_command
from e2e.testbed.rights import ROLES, file, people
from e2e.testbed.waiting import eventually

OURS, OTHERS = "people-ours", "people-others"
NAMESPACED = {"podcpubindings", "podreservations", "predictivehpas"}
OF_THE_CLUSTER = {"nodecapacities", "nodecputopologies", "schedulingprofiles", "subspacesnapshots"}
READ, WRITE = {"get", "list", "watch"}, {"create", "update", "patch", "delete", "deletecollection"}
BOUND = ("RoleBinding", "ClusterRoleBinding")

# What a role lets write, of all that there is; reading is view's
WRITABLE = {
    "view": set(),
    "edit": {"predictivehpas"},
    "admin": {"predictivehpas"},
    "concerto-reserve": {"podreservations"},
    "concerto-pin": {"podcpubindings"},
}


@pytest.fixture(scope="module")
def persons(concerto_cluster: Cluster) -> Iterator[Cluster]:
    """For each role somebody who has it in one namespace, and somebody who has it everywhere."""
    cluster = concerto_cluster
    for namespace in (OURS, OTHERS):
        cluster.kubectl("create", "namespace", namespace)
    cluster.apply(*(binding(kind, role) for kind in BOUND for role in ROLES))
    eventually("admin takes in edit, and edit our kinds", lambda: people(cluster) == file("people").read_text())
    yield cluster
    cluster.kubectl("delete", "clusterrolebinding", *(f"people-{role}" for role in ROLES))
    cluster.kubectl("delete", "namespace", OURS, OTHERS, "--wait=false")


def binding(kind: str, role: str) -> dict[str, Any]:
    metadata = {"name": f"people-{role}"} | ({"namespace": OURS} if kind == "RoleBinding" else {})
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": f"{kind}-{role}"}],
    }


def allowed(cluster: Cluster, user: str, namespace: str) -> set[tuple[str, str]]:
    """The API server's answers: which verbs on which resources (subresources among them) a user has in a namespace."""
    asked = [
        (resource + sub, verb)
        for resource in sorted(NAMESPACED | OF_THE_CLUSTER)
        for sub in ("", "/status", "/metrics")
        for verb in sorted(READ | WRITE)
    ]
    reviews = []
    for resource, verb in asked:
        plural, _, subresource = resource.partition("/")
        attributes = {"group": "concerto.dev", "resource": plural, "subresource": subresource, "verb": verb}
        if plural in NAMESPACED:
            attributes["namespace"] = namespace
        spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": attributes}
        reviews.append({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    documents = "\n---\n".join(map(json.dumps, reviews))
    said = cluster.kubectl("create", "-f", "-", "-o", "jsonpath={.status.allowed},", stdin=documents)
    answers = said.removesuffix(",").split(",")
    assert len(answers) == len(asked)
    return {what for what, answer in zip(asked, answers) if answer == "true"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_in_a_namespace_allows_what_is_said_there_and_nothing_elsewhere(persons, role):
    user = f"RoleBinding-{role}"
    readable = set() if role.startswith("concerto-") else NAMESPACED
    wanted = {(kind, verb) for kind in readable for verb in READ} | {(k, v) for k in WRITABLE[role] for v in WRITE}
    assert allowed(persons, user, OURS) == wanted
    assert allowed(persons, user, OTHERS) == set()


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_a_role_everywhere_shows_nodes_and_profiles_and_changes_neither(persons, role):
    may = allowed(persons, f"ClusterRoleBinding-{role}", OTHERS)
    assert {(kind, verb) for kind in NAMESPACED | OF_THE_CLUSTER for verb in READ} <= may
    assert {kind for kind, verb in may if verb in WRITE} == WRITABLE[role]


def test_who_may_pin_does_not_give_that_away(persons):
    pin = json.dumps(binding("RoleBinding", "concerto-pin"))
    for mine, said in (("admin", "is attempting to grant RBAC permissions not currently held"), ("edit", "orbidden")):
        user = ("--as", f"RoleBinding-{mine}", "--as-group", "system:authenticated")
        reported = persons.kubectl("replace", "-f", "-", *user, stdin=pin, check=False)
        assert said in reported, mine


def test_what_roles_of_people_allow_is_what_is_written_down(persons):
    assert people(persons) == file("people").read_text(), "make rights writes it afresh"


def test_who_has_view_and_lists_nodes_gets_the_answers_of_top_and_explain(concerto_cluster: Cluster, namespace: str):
    cluster, group = concerto_cluster, "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}
    lists_nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}
    bindings = [
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{namespace}-{role}"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [subject],
        }
        for role in ("view", f"{namespace}-nodes")
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "asked-about", "namespace": namespace},
        "spec": {"schedulerName": "concerto", "containers": [{"name": "app", "image": "app"}]},
    }
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": namespace}},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"{namespace}-nodes"},
            "rules": [lists_nodes],
        },
        *bindings,
        pod,
    )
    kubeconfig = str(cluster.token_kubeconfig(namespace, "viewer"))
    try:
        for arguments in (["top"], ["explain", "pod", f"{namespace}/asked-about"]):
            command = concerto_command(*arguments, "--kubeconfig", kubeconfig)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), arguments
    finally:
        cluster.kubectl("delete", "clusterrolebinding", *(b["metadata"]["name"] for b in bindings))
        cluster.kubectl("delete", "clusterrole", f"{namespace}-nodes")
