"""Random clusters and gangs, by number: always the same objects for the same number."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field, replace

from e2e.testbed.placement.random_objects import Object, RandomPod, host_ports, make_object, random_node
from e2e.testbed.placement.scenario import Scenario

_SHARES = {"ports": 0.06, "company": 0.06, "distance": 0.12, "spread": 0.2, "nodes": 0.2, "taints": 0.4}
"""How often the pods of a gang have each kind of constraint."""
_CPUS = ("250m", "500m", "800m", "1", "1500m", "2")


@dataclass
class RandomGang:
    """A PodGroup and its pods.

    Attributes:
        name: of the PodGroup.
        namespace: of all its objects.
        min_count: pods that have to be placed at once.
        pods: its pods.
        early: how many of them are made a while before the others. The gang is not complete then.
        gone: names of running pods that are deleted first.
    """

    name: str
    namespace: str
    min_count: int
    pods: list[Object] = field(default_factory=list)
    early: int = 0
    gone: list[str] = field(default_factory=list)

    @property
    def group(self) -> Object:
        """The PodGroup."""
        spec = {"schedulingPolicy": {"gang": {"minCount": self.min_count}}}
        metadata = {"namespace": self.namespace}
        return make_object("scheduling.k8s.io/v1beta1", "PodGroup", self.name, metadata=metadata, spec=spec)

    def renamed(self, name: str) -> RandomGang:
        """The same gang under another name: the API server keeps a PodGroup for a while after its deletion."""
        pods = [_member(pod, f"{name}-{i}", name) for i, pod in enumerate(self.pods)]
        return replace(self, name=name, pods=pods)


@dataclass
class GangScenario:
    """A cluster, and gangs that are to be placed on it one after another.

    Attributes:
        cluster: its nodes and running pods; it has no pods to place but those of the gangs.
        gangs: the gangs.
    """

    cluster: Scenario
    gangs: list[RandomGang] = field(default_factory=list)


def gang_scenario(number: int) -> GangScenario:
    """The scenario of that number: uneven nodes, some of them in use, and two to four gangs.

    A gang that found too little room may be asked for again once pods have gone.
    """
    rng = random.Random(f"gangs-{number}")
    found = Scenario(f"g{number}")
    names = [f"{found.name}-n{i}" for i in range(rng.randint(2, 6))]
    found.nodes = [_node(rng, name) for name in names]
    for name in names:
        _fill(rng, found, name, names)
    scenario = GangScenario(found)
    for i in range(rng.randint(2, 3)):
        scenario.gangs.append(_gang(rng, f"{found.name}-p{i}", names))
    if found.running and rng.random() < 0.5:
        gone = rng.sample([pod["metadata"]["name"] for pod in found.running], rng.randint(1, len(found.running)))
        gang = rng.choice(scenario.gangs)
        scenario.gangs.append(replace(gang.renamed(f"{gang.name}-again"), early=0, gone=gone))
    return scenario


def _node(rng: random.Random, name: str) -> Object:
    node = random_node(rng, name)
    if rng.random() < 0.7:
        node["spec"] = {}
    amounts = node["status"]["allocatable"]
    amounts |= {"cpu": rng.choice(["1", "2", "3500m", "4", "6"]), "memory": rng.choice(["2Gi", "4Gi", "8Gi"])}
    amounts["pods"] = rng.choice(["110", "110", "110", "3"])
    return node


def _fill(rng: random.Random, found: Scenario, node: str, names: list[str]) -> None:
    for i in range(rng.choice([0, 0, 1, 1, 2])):
        pod = RandomPod(rng, f"{node}-r{i}", names)
        if rng.random() < 0.15:
            pod.ask_for("distance")
        pod.spec["nodeName"] = node
        pod.spec["containers"][0]["resources"] = {"requests": _requests(rng)}
        found.running.append(pod.body)


def _gang(rng: random.Random, name: str, nodes: list[str]) -> RandomGang:
    template = RandomPod(rng, name, nodes)
    template.spec["containers"][0]["resources"] = {"requests": _requests(rng)}
    for what, share in _SHARES.items():
        if rng.random() < share:
            template.ask_for(what)
    if rng.random() < 0.2:
        template.spec["affinity"] = template.spec.get("affinity", {}) | _one_for_each_node(template.body)
    if len(host_ports(template.body)) > 1:
        template.drop_ports()
    count = rng.randint(2, 6)
    gang = RandomGang(name, template.body["metadata"]["namespace"], count)
    gang.pods = [_member(template.body, f"{name}-{i}", name) for i in range(count)]
    if rng.random() < 0.3:
        gang.min_count = rng.randint(1, count)
    elif rng.random() < 0.3:
        gang.early = rng.randint(1, count - 1)
    if not gang.early:
        # Some gangs have pods of different sizes, or one that leads the others and has its own
        for pod in rng.choice([[], [], [rng.choice(gang.pods)], gang.pods]):
            pod["spec"]["containers"][0]["resources"] = {"requests": _requests(rng)}
    return gang


def _member(template: Object, name: str, group: str) -> Object:
    pod = copy.deepcopy(template)
    pod["metadata"]["name"] = name
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}
    return pod


def _one_for_each_node(template: Object) -> Object:
    selector = {"matchLabels": {"tier": template["metadata"]["labels"]["tier"]}}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _requests(rng: random.Random) -> Object:
    requests = {"cpu": rng.choice(_CPUS)}
    if rng.random() < 0.4:
        requests["memory"] = rng.choice(["200Mi", "600Mi", "1500Mi"])
    return requests
