"""Random full clusters and pods of higher priority, by number: always the same objects for the same number."""

from __future__ import annotations

import random

from e2e.testbed.placement.random_objects import (
    NAMESPACES,
    Object,
    RandomPod,
    host_ports,
    make_object,
    random_node,
    resize_status,
)
from e2e.testbed.placement.random_storage import RandomStorage
from e2e.testbed.placement.rare_parts import add_rare_pods
from e2e.testbed.placement.scenario import Scenario

PRIORITIES: dict[str, int] = {"placeholder": -1000, "low": 10, "middle": 20, "high": 1000, "top": 2000}
"""PriorityClasses of all scenarios; pods without one have priority 0."""
NEVER = "never-preempts"
"""A PriorityClass of high priority, whose pods evict nobody."""
_OF_RUNNING = ("", "placeholder", "low", "low", "middle", "high")
_OF_ASKING = ("low", "middle", "high", "high", "top")
_START_TIMES = 12
_RARE_SHARE = 0.5
"""Part of the scenarios with parts that few pods have."""


def preemption_scenario(number: int) -> Scenario:
    """The scenario of that number: nodes with pods of all priorities, and one to three pods that need room."""
    rng = random.Random(f"preemption-{number}")
    found = Scenario(f"q{number}")
    names = [f"{found.name}-n{i}" for i in range(rng.randint(1, 5))]
    found.nodes = [_node(rng, name) for name in names]
    if rng.random() < 0.15:
        found.storage = RandomStorage(rng, found.name, names).objects
    # kube-scheduler takes a pod that is being deleted off the counts of a spread constraint twice
    spreads = rng.random() < 0.35
    for name in names:
        _fill(rng, found, name, may_end=not spreads)
    found.budgets = _budgets(rng, found)
    _add_asking(rng, found, names, spreads)
    rare = random.Random(f"preemption-{number}-rare")
    if rare.random() < _RARE_SHARE:
        add_rare_pods(rare, found)
    return found


def _bound_claims(found: Scenario) -> list[Object]:
    claims = (o for o in found.storage if o["kind"] == "PersistentVolumeClaim")
    return [claim for claim in claims if claim["spec"].get("volumeName")]


def _mounted(found: Scenario) -> set[str]:
    volumes = (volume for pod in found.running for volume in pod["spec"].get("volumes", ()))
    return {volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume}


def _node(rng: random.Random, name: str) -> Object:
    node = random_node(rng, name)
    if rng.random() < 0.7:
        node["spec"] = {}
    amounts = node["status"]["allocatable"]
    amounts |= {"cpu": rng.choice(["2", "2500m", "4"]), "memory": rng.choice(["2Gi", "4Gi"])}
    amounts["pods"] = rng.choice(["110", "110", "110", "110", "5", "3"])
    return node


def _fill(rng: random.Random, found: Scenario, node: str, *, may_end: bool) -> None:
    """Put pods on a node, all started at different times; one may not have started."""
    times = rng.sample(range(_START_TIMES), rng.randint(1, 6))
    unstarted = rng.random() < 0.3
    for i, seconds in enumerate(times):
        name = f"{node}-r{i}"
        pod = RandomPod(rng, name, [node["metadata"]["name"] for node in found.nodes])
        pod.ask(rng.choice([0, 0, 0, 1]), running=True)
        pod.spec["nodeName"] = node
        if rng.random() < 0.9 and "resources" not in pod.spec:
            amounts = {"cpu": rng.choice(["250m", "500m", "1", "2"]), "memory": rng.choice(["64Mi", "500Mi"])}
            pod.spec["containers"][0]["resources"] = {"requests": amounts}
        if priority := rng.choice(_OF_RUNNING):
            pod.spec["priorityClassName"] = priority
        taken = {port for o in found.running if o["spec"]["nodeName"] == node for port in host_ports(o)}
        if taken & set(host_ports(pod.body)):
            pod.drop_ports()
        # kube-scheduler counts a claim for one pod once, however many pods use it
        claims = [claim for claim in _bound_claims(found) if claim["metadata"]["name"] not in _mounted(found)]
        if claims and rng.random() < 0.4:
            pod.mount([rng.choice(claims)])
        found.running.append(pod.body)
        if not (unstarted and i == 0):
            found.statuses[name] = _status(rng, pod.spec, seconds)
        if may_end and rng.random() < 0.12:
            _end(rng, found, name)


def _status(rng: random.Random, spec: Object, seconds: int) -> Object:
    status = {"phase": "Running", "startTime": f"2026-01-01T00:00:{seconds:02d}Z"}
    return status | (resize_status(rng, spec) if rng.random() < 0.1 else {})


def _end(rng: random.Random, found: Scenario, name: str) -> None:
    """Have the pod end: done already, being deleted, or being evicted for another."""
    status = found.statuses.setdefault(name, {})
    match rng.choice(["done", "deleted", "deleted", "evicted", "evicted"]):
        case "done":
            found.statuses[name] = {"phase": rng.choice(["Succeeded", "Failed"])}
        case "deleted":
            found.deleted.add(name)
        case "evicted":
            found.deleted.add(name)
            target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            status["conditions"] = [*status.get("conditions", ()), target]


def _budgets(rng: random.Random, found: Scenario) -> list[Object]:
    """Budgets of which no two are for the same pod: kube-scheduler looks at them in any order."""
    made = []
    for namespace in NAMESPACES:
        for app in "ab":
            if rng.random() < 0.5:
                continue
            name = f"{found.name}-{app}"
            expression = {"key": "app", "operator": "In", "values": [app]}
            selector: Object = rng.choice([{"matchLabels": {"app": app}}, {"matchExpressions": [expression]}])
            status: Object = dict.fromkeys(("currentHealthy", "desiredHealthy", "expectedPods"), 1)
            status["disruptionsAllowed"] = rng.choice([0, 0, 1, 2])
            own = [o["metadata"]["name"] for o in found.running if o["metadata"]["namespace"] == namespace]
            if own and rng.random() < 0.2:
                status["disruptedPods"] = {rng.choice(own): "2026-01-01T00:00:00Z"}
            made.append(
                make_object(
                    "policy/v1", "PodDisruptionBudget", name, metadata={"namespace": namespace},
                    spec={"minAvailable": 1, "selector": selector}, status=status,
                )
            )  # fmt: skip
    return made


def _add_asking(rng: random.Random, found: Scenario, names: list[str], spreads: bool) -> None:
    """Add the pods that need room, so that none but the last takes away the nomination of one before it."""
    priorities = [rng.choice(_OF_ASKING) for _ in range(rng.randint(1, 3))]
    priorities[:-1] = sorted(priorities[:-1], key=PRIORITIES.__getitem__, reverse=True)
    if len(priorities) > 1 and rng.random() < 0.7:
        priorities[-1] = rng.choice([p for p in PRIORITIES if PRIORITIES[p] <= PRIORITIES[priorities[-2]]])
    for i, priority in enumerate(priorities):
        pod = RandomPod(rng, f"{found.name}-p{i}", names)
        pod.spec["priorityClassName"] = NEVER if rng.random() < 0.04 else priority
        amounts = {"cpu": rng.choice(["500m", "1", "1500m", "2", "3"])}
        if rng.random() < 0.3:
            amounts["memory"] = rng.choice(["500Mi", "1Gi"])
        pod.spec["containers"][0]["resources"] = {"requests": amounts}
        shares = {"ports": 0.25, "distance": 0.3, "company": 0.08, "nodes": 0.15, "taints": 0.4}
        for what, share in shares.items():
            if rng.random() < share:
                pod.ask_for(what)
        if spreads and i == 0:
            pod.ask_for("spread")
        claims = _bound_claims(found)
        if claims and rng.random() < 0.5:
            pod.mount([rng.choice(claims)])
        found.pods.append(pod.body)
