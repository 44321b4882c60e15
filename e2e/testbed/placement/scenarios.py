"""Random clusters and pods, by number: always the same objects for the same number.

Values come from short lists, so that what pods ask for often meets what nodes and other pods have.
"""

from __future__ import annotations

import random

from e2e.testbed.placement import profiles
from e2e.testbed.placement.changes import random_change
from e2e.testbed.placement.random_objects import Object, RandomPod, host_ports, random_node, resize_status
from e2e.testbed.placement.random_storage import RandomStorage
from e2e.testbed.placement.random_workloads import make_owned, random_service, random_workload
from e2e.testbed.placement.rare_parts import add_rare_parts
from e2e.testbed.placement.scenario import Scenario

_SHARES = {"claims": 0.25, "services": 0.15, "workloads": 0.2, "nominated": 0.15, "changes": 0.4, "profiles": 0.3}
"""Parts of the scenarios in which these are."""
_RARE_SHARE = 0.6
"""Part of the scenarios with parts that few objects have."""


def scenario(number: int) -> Scenario:
    """The scenario of that number."""
    return _RandomScenario(number).made


class _RandomScenario:
    """Makes the scenario of that number."""

    def __init__(self, number: int) -> None:
        self._rng = rng = random.Random(f"placement-{number}")
        self._more = random.Random(f"placement-{number}-more")
        """Of what came later, so that all else in a scenario of a number stays as it was."""
        self.made = made = Scenario(f"s{number}")
        self._names = [f"{made.name}-n{i}" for i in range(rng.randint(2, 6))]
        made.nodes = [random_node(rng, name) for name in self._names]
        self._storage = RandomStorage(rng, made.name, self._names) if self._has("claims") else None
        if self._has("services"):
            made.services = [random_service(rng, f"{made.name}-{i}") for i in range(rng.randint(1, 2))]
        if self._has("workloads"):
            made.workloads = [random_workload(rng, f"{made.name}-{i}") for i in range(rng.randint(1, 2))]
        for i in range(rng.randint(0, 2 * len(self._names))):
            self._add_running(f"{made.name}-r{i}")
        if self._has("nominated"):
            for i in range(rng.randint(1, 2)):
                self._add_nominated(f"{made.name}-w{i}")
        for i in range(rng.randint(2, 4)):
            made.pods.append(self._pod(f"{made.name}-p{i}").body)
        if self._has("changes"):
            self._add_changes()
        # The binding of a pod with a claim may take as long as it likes, so it is the last
        if self._storage is not None and rng.random() < 0.9:
            made.pods.append(self._pod_with_claims(self._storage))
        if self._storage is not None:
            made.storage = self._storage.objects
        rare = random.Random(f"placement-{number}-rare")
        if rare.random() < _RARE_SHARE:
            add_rare_parts(rare, made)

    def _has(self, part: str) -> bool:
        return self._rng.random() < _SHARES[part]

    def _pod(self, name: str, features: int | None = None) -> RandomPod:
        """A pod to place."""
        pod = RandomPod(self._rng, name, self._names)
        pod.ask(features)
        self._own(pod)
        if self._has("profiles"):
            pod.spec["schedulerName"] = self._rng.choice([profiles.PACKING, profiles.SHAPED])
        return pod

    def _pod_with_claims(self, storage: RandomStorage) -> Object:
        rng = self._rng
        pod = self._pod(f"{self.made.name}-p9", rng.choice([0, 0, 1]))
        # Two claims that wait could take each other's volume, which the rules do not follow
        bound = storage.bound_claims
        first = [] if rng.random() < 0.4 else [rng.choice(storage.claims)]
        mounted = {claim["metadata"]["name"]: claim for claim in [*first, *rng.sample(bound, min(1, len(bound)))]}
        if mounted:
            pod.mount([*mounted.values()], missing=rng.random() < 0.05)
        taken = False
        if not first:
            has_volume = rng.random() < 0.2
            storage.mount_new(pod, bound=has_volume)
            if not has_volume and rng.random() < 0.1:
                storage.take_name(pod)
                taken = True
        # A volume is made for it, so no other claim can take that. At a name that is taken, the controller makes no
        # further claims of the pod.
        if self._more.random() < 0.25 and not taken:
            storage.mount_second(pod, self._more)
        return pod.body

    def _own(self, pod: RandomPod) -> None:
        if self.made.workloads and self._rng.random() < 0.7:
            make_owned(self._rng, pod, self.made.workloads)

    def _add_running(self, name: str) -> None:
        rng, found, storage = self._rng, self.made, self._storage
        pod = RandomPod(rng, name, self._names)
        pod.ask(rng.choice([0, 1, 1, 2]), running=True)
        self._own(pod)
        pod.spec["nodeName"] = node = rng.choice(self._names)
        taken = {number for other in found.running if other["spec"]["nodeName"] == node for number in host_ports(other)}
        if taken & set(host_ports(pod.body)):
            # kube-scheduler frees a port that two pods of a node hold as soon as one of them has ended
            pod.drop_ports()
        if storage is not None and storage.bound_claims and rng.random() < 0.3:
            pod.mount([rng.choice(storage.bound_claims)])
        elif storage is not None and rng.random() < 0.15:
            storage.mount_new(pod, bound=rng.random() < 0.7)
        found.running.append(pod.body)
        match rng.random():
            case share if share < 0.12:
                found.deleted.add(name)
            case share if share < 0.2:
                found.statuses[name] = {"phase": rng.choice(["Succeeded", "Failed"])}
            case share if share < 0.45:
                found.statuses[name] = {"phase": "Running"} | resize_status(rng, pod.spec)

    def _add_nominated(self, name: str) -> None:
        """A pod of lower, the same or higher priority than those to place, for which a node is kept."""
        rng = self._rng
        pod = RandomPod(rng, name, self._names)
        pod.ask(rng.choice([1, 2]), running=True)
        pod.spec["schedulingGates"] = [{"name": "example.com/wait"}]
        # kube-scheduler does not always look at it (docs/scheduling.md, known exceptions)
        anti_affinity = pod.spec.get("affinity", {}).get("podAntiAffinity", {})
        anti_affinity.pop("requiredDuringSchedulingIgnoredDuringExecution", None)
        if priority := rng.choice(["", "", "placeholder", "low"]):
            pod.spec["priorityClassName"] = priority
        self.made.nominated.append({**pod.body, "status": {"nominatedNodeName": rng.choice(self._names)}})

    def _add_changes(self) -> None:
        rng, found = self._rng, self.made
        for pod in found.pods:
            if rng.random() < 0.6:
                changes = [random_change(rng, self._names, found.running) for _ in range(rng.randint(1, 2))]
                found.changes[pod["metadata"]["name"]] = changes
