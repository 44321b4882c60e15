"""Argo CD's view of our kinds: the health script over what the controllers really say, run by Debian's Lua."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from concerto.api.conditions import Condition, merge_conditions
from concerto.api.nodecputopology import CPUPools, NodeCPUTopology
from concerto.api.podcpubinding import PodCPUBinding
from concerto.api.podreservation import Reservation
from concerto.autoscaling.decision import failed
from concerto.capacity.node_status import Health, build_conditions
from concerto.controllers.autoscaling.status import all_conditions
from concerto.controllers.pinning.status import build_binding_status
from concerto.controllers.scheduling.load_providers.source import SourceError
from concerto.controllers.scheduling.load_providers.state import ProviderState, failed_state
from concerto.controllers.scheduling.profiles import ProfileState, build_profile_status, ready_condition
from concerto.controllers.scheduling.reservation_status import build_reservation_status
from concerto.pinning.validation import BoundPod, Verdict, judge_node, judge_unplaced
from concerto.scheduling.state.reservation_ledger import ReservationState
from concerto_agent.topology_publisher import _conditions as topology_conditions
from support.crd_schemas import CRDS, REPOSITORY, documents, fields, stored_spec, structural_schema
from support.programs import program
from support.topologies import machine

MANIFESTS = REPOSITORY / "manifests"
ARGOCD = MANIFESTS / "argocd"
HEALTH = ARGOCD / "health" / "health.lua"
NOW = "2026-03-01T12:00:00Z"

# Argo CD's interpreter has no string library, not even as methods of strings, and of os only time and date
_DRIVER = """
getmetatable("").__index = nil
for _, sample in ipairs(dofile(arg[2])) do
  local sandbox = { obj = sample, ipairs = ipairs, pairs = pairs, table = table }
  local health = assert(loadfile(arg[1], "t", sandbox))()
  print(health.status .. "\\t" .. health.message)
end
"""


def lua(value: Any) -> str:
    """A value as a Lua expression, as Argo CD hands an object over."""
    if isinstance(value, dict):
        return "{" + ",".join(f"[{lua(k)}]={lua(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "{" + ",".join(map(lua, value)) + "}"
    return json.dumps(value, ensure_ascii=False)


def thing(kind: str, status: dict[str, Any] | None, generation: int = 1) -> dict[str, Any]:
    metadata = {"name": "x", "namespace": "default", "generation": generation, "creationTimestamp": NOW, "uid": "u"}
    return {"apiVersion": "concerto.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": {}, "status": status}


def said(kind: str, *conditions: Condition, generation: int = 1, observed: int = 1) -> dict[str, Any]:
    merged = merge_conditions((), conditions, now=NOW, observed_generation=observed)
    return thing(kind, {"observedGeneration": observed, "conditions": merged}, generation)


def node_capacity(**changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "batches": 9, "fresh": True, "silent_seconds": 0.0, "problems": (), "pods_known": True, "another": None,
        "refused_spec": None,
    }  # fmt: skip
    return said("NodeCapacity", *build_conditions(Health(**usual | changed)))


def profile(ready: Condition, provider: ProviderState | None = None) -> dict[str, Any]:
    obj = thing("SchedulingProfile", None)
    return obj | {"status": build_profile_status(obj, ready, ProfileState(provider=provider or ProviderState()), NOW)}


def missing_secret() -> ProviderState:
    error = SourceError("SecretMissing", "there is no Secret concerto-system/concerto-prometheus")
    return failed_state(error, ProviderState())


def binding(verdict: Verdict, *, patient: bool = True) -> dict[str, Any]:
    obj = thing("PodCPUBinding", None)
    return obj | {"status": build_binding_status(obj, verdict, NOW, patient=patient)}


def verdicts() -> dict[str, Verdict]:
    """The verdicts on bindings of a node with CPUs 0 to 3: the oldest, its rival, and one that asks for CPU 9."""
    pods = {name: BoundPod(name, "n") for name in "abc"}
    bindings = [
        PodCPUBinding("default", name, name, f"2026-03-01T12:00:0{i}Z", name, frozenset({cpu}), "CPU")
        for i, (name, cpu) in enumerate({"a": 0, "b": 0, "c": 9}.items())
    ]
    node = NodeCPUTopology("n", machine(1, 4, 1), CPUPools(shared=frozenset(range(4))))
    judged = judge_node("n", node, [(b, pods[b.name]) for b in bindings])
    return {name: judged["default", name] for name in "abc"} | {
        "no topology": judge_node("n", None, [(bindings[0], pods["a"])])["default", "a"],
        "no pod": judge_unplaced(bindings[0], None),
        "no node": judge_unplaced(bindings[0], BoundPod("a", "")),
    }


def reservation(state: ReservationState, *, limited: bool = False, node: str | None = None) -> dict[str, Any]:
    obj = thing("PodReservation", None)
    obj["spec"] = {"podSelector": {"matchLabels": {"a": "b"}}, "count": 3, "ttlSeconds": 60}
    if node is not None:
        obj["spec"]["nodeName"] = node
    view = Reservation.from_raw(obj)
    status = build_reservation_status(
        obj, view, state, consumers=[], limited=limited, nowhere=node is not None, now=NOW
    )
    return obj | {"status": status}


def phpa(*decided: Condition) -> dict[str, Any]:
    conditions = all_conditions(decided, None, off=False, generation=1, old=(), now=NOW)
    return thing("PredictiveHPA", {"observedGeneration": 1, "conditions": conditions})


AMBIGUOUS = "pods by selector app=web are controlled by multiple PredictiveHPAs: default/a, default/b"
V = verdicts()

# sentence: object, health, part of the message
STATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nobody has looked at it": (thing("SchedulingProfile", None), "Progressing", "has not looked at it yet"),
    "no agent has looked at it": (thing("NodeCapacity", None), "Progressing", "is there a node of that name?"),
    "a reservation's node is to join": (
        reservation(ReservationState({}, {}, 3, False), node="n9"), "Progressing", "there is no node n9",
    ),
    "its latest edit is unseen": (
        said("NodeCapacity", Condition("Ready", "True", "Measured", "x"), generation=2), "Progressing", "latest edit",
    ),
    "a node is measured": (node_capacity(), "Healthy", "Capacity is measured."),
    "a node warms up": (node_capacity(batches=1), "Healthy", "first guess"),
    "a node is not measured": (node_capacity(fresh=False, silent_seconds=9.0), "Degraded", "measured for 9 s"),
    "a node's pods are unknown": (node_capacity(pods_known=False), "Degraded", "has not listed this node's pods"),
    "two agents write one object": (node_capacity(another="a-2"), "Degraded", "Agent instance a-2"),
    "a spec can't be used": (node_capacity(refused_spec="no resource"), "Degraded", "no resource"),
    "a topology is read": (
        said("NodeCPUTopology", *topology_conditions((), (), (), ())), "Healthy", "All CPUs",
    ),
    "a topology has gaps": (
        said("NodeCPUTopology", *topology_conditions(("CPU 3 has no core.",), (), (), ())), "Degraded",
        "CPU 3 has no core.",
    ),
    "the cluster's model is there": (
        said("SubspaceSnapshot", Condition("Ready", "True", "Merged", "Merged from the models of 3 nodes.")),
        "Healthy", "3 nodes",
    ),
    "a node's model warms up": (
        said("SubspaceSnapshot", Condition("Ready", "False", "Warmup", "There are too few batches for a model yet.")),
        "Healthy", "too few",
    ),
    "a binding's pod is not there": (binding(V["no pod"]), "Progressing", "There is no pod default/a"),
    "a binding's pod is on no node": (binding(V["no node"]), "Progressing", "has no node yet"),
    "a binding's node publishes no CPUs": (binding(V["no topology"]), "Degraded", "is the agent of the node running?"),
    "a binding asks for CPUs that don't exist": (
        binding(V["c"]), "Degraded", "CPUs [9] are not in NodeCPUTopology n: bind the pod to CPUs that are.",
    ),
    "a binding loses to an older one": (binding(V["b"]), "Degraded", "held by the older PodCPUBinding default/a"),
    "a binding waits for its agent": (binding(V["a"]), "Progressing", "Waiting for the agent of node n."),
    "a binding's agent does not pin": (binding(V["a"], patient=False), "Degraded", "does not pin"),
    "a reservation is held": (reservation(ReservationState({"n": 3}, {}, 3, False)), "Healthy", "3 units are held"),
    "a reservation looks for room": (reservation(ReservationState({}, {}, 3, False)), "Progressing", "0 of 3 units"),
    "a namespace reserves too much": (
        reservation(ReservationState({}, {}, 3, False), limited=True), "Degraded", "maxUnitsPerNamespace",
    ),
    "a reservation was used": (reservation(ReservationState({}, {"p": "n"}, 0, False)), "Healthy", "Every unit"),
    "a reservation has ended": (reservation(ReservationState({}, {}, 0, True)), "Healthy", "ttlSeconds have passed"),
    "a target is scaled": (
        phpa(Condition("AbleToScale", "True", "ReadyForNewScale", "."),
             Condition("ScalingActive", "True", "ValidMetricFound", ".")), "Healthy", "The target is scaled.",
    ),
    "a target is scaled to zero by hand": (
        phpa(Condition("ScalingActive", "False", "ScalingDisabled", "scaling is disabled")), "Healthy", "disabled",
    ),
    "two autoscalers claim the same pods": (
        phpa(Condition("ScalingActive", "False", "AmbiguousSelector", AMBIGUOUS)), "Degraded", AMBIGUOUS,
    ),
    "a target does not exist": (
        phpa(failed("FailedGetScale", "get the target's current scale", "not found")), "Degraded", "not found",
    ),
    "a profile is in use": (profile(ready_condition("", "a", "a")), "Healthy", "are placed by this profile"),
    "a profile's provider has no Secret": (
        profile(ready_condition("", "a", "a"), missing_secret()),
        "Degraded",
        "there is no Secret concerto-system/concerto-prometheus",
    ),
    "a profile can't be used": (profile(ready_condition("no score", "a", "")), "Degraded", "no score"),
    "a profile's name is taken": (profile(ready_condition("", "b", "a")), "Degraded", "SchedulingProfile a is older"),
}  # fmt: skip


@pytest.fixture(scope="module")
def healths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Status and message that the script gives each state, all in one run of the interpreter."""
    folder = tmp_path_factory.mktemp("lua")
    driver, samples = folder / "driver.lua", folder / "samples.lua"
    driver.write_text(_DRIVER)
    samples.write_text("return " + lua([obj for obj, _, _ in STATES.values()]))
    done = subprocess.run([program("lua5.4", "lua5.4"), driver, HEALTH, samples], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(zip(STATES, (line.split("\t") for line in done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("state", STATES)
def test_argo_cd_shows_each_state_with_the_sentence_of_its_condition(healths, state):
    _, status, message = STATES[state]
    assert healths[state][0] == status
    assert message in healths[state][1]


def test_every_kind_has_a_health_check_and_a_state_that_tries_it():
    (kustomization,) = documents(HEALTH.parent / "kustomization.yaml")
    (config,) = kustomization["configMapGenerator"]
    assert config["name"] == "argocd-cm"
    keys = {f"resource.customizations.health.concerto.dev_{kind}={HEALTH.name}" for kind in CRDS}
    assert set(config["files"]) == keys
    assert {obj["kind"] for obj, _, _ in STATES.values()} == set(CRDS)


def objects(folder: str) -> list[dict[str, Any]]:
    return [o for path in sorted((MANIFESTS / folder).glob("*.yaml")) for o in documents(path)]


COMPONENTS = tuple(f"components/{path.name}" for path in sorted((MANIFESTS / "components").iterdir()))
# these come last, in the wave of users' objects: nothing of Concerto waits for them
WITHOUT_A_WAVE = {"PodMonitor", "PrometheusRule", "Secret"}


def test_every_object_has_a_wave_and_may_be_applied_by_the_project():
    (waves,) = documents(ARGOCD / "waves" / "kustomization.yaml")
    patched = {kind for patch in waves["patches"] for kind in patch["target"]["kind"].split("|")}
    folders = ("base", "../crds", *COMPONENTS)
    applied = [o for folder in folders for o in objects(folder) if o["kind"] not in ("Kustomization", "Component")]
    assert {o["kind"] for o in applied} - WITHOUT_A_WAVE == patched
    project, application = objects("argocd")
    allowed = {(rule["group"], rule["kind"]) for rule in project["spec"]["clusterResourceWhitelist"]}
    of_the_cluster = {
        (o["apiVersion"].rpartition("/")[0], o["kind"]) for o in applied if "namespace" not in o["metadata"]
    }
    # what Concerto consists of, and nothing else
    assert of_the_cluster == allowed
    namespaces = {o["metadata"]["namespace"] for o in applied if "namespace" in o["metadata"]}
    assert namespaces == {application["spec"]["destination"]["namespace"]}
    assert application["spec"]["source"]["repoURL"] in project["spec"]["sourceRepos"]
    assert (REPOSITORY / application["spec"]["source"]["path"] / "kustomization.yaml").exists()


PROFILES = {
    obj["metadata"]["name"]: obj["spec"]
    for path in sorted((REPOSITORY / "e2e" / "argocd" / "apps").rglob("*.yaml"))
    for obj in documents(path)
    if obj["kind"] == "SchedulingProfile"
}


def lists(value: Any, path: str = "") -> dict[str, list[Any]]:
    """Every list in an object, by its path."""
    found: dict[str, list[Any]] = {}
    if isinstance(value, dict):
        for name, member in value.items():
            found |= lists(member, f"{path}.{name}" if path else name)
    if isinstance(value, list):
        found[path] = value
        for item in value:
            found |= lists(item, f"{path}[]")
    return found


def test_the_applications_of_the_end_to_end_test_fill_every_list_of_a_profile():
    schema = structural_schema("SchedulingProfile")["properties"]["spec"]
    named = {path for path, member in fields(schema) if member.get("type") == "array"}
    filled = {path for spec in PROFILES.values() for path in lists(spec)}
    assert named - filled == set()


def test_of_the_filled_profile_the_api_server_sets_nothing_in_a_list():
    """Argo CD compares lists as a whole: a field that is set in an item would be a difference."""
    given, stored = lists(PROFILES["filled"]), lists(stored_spec("SchedulingProfile", PROFILES["filled"]))
    assert {path: stored[path] for path in given} == given
