"""Whatever is bound, edited and deleted, and whenever agent or operator dies: cpusets end as the objects say.

On trees of large machines, in a directory that behaves as the kernel's does. At every single write, no CPU belongs to
two exclusive owners, and nobody is pinned to CPUs that others have not left.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from concerto.api.cpulist import parse_cpu_list
from concerto.api.nodecputopology import Core, CPUPools, CPUTopology, NodeCPUTopology
from concerto.api.podcpubinding import BindingKey, PodCPUBinding
from concerto.pinning.validation import BoundPod, Verdict, judge_node
from concerto_agent.cpuset_files import CpusetFiles
from concerto_agent.cpusets import Claim, Grant, KubeletRule
from concerto_agent.grants import resolve
from concerto_agent.node_cpusets import NodeCpusets
from concerto_agent.pinning_settings import PinningSettings
from support.cgroupfs_model import CgroupfsModel, NodeModel

LEVELS = ("None", "CPU", "Core", "Socket", "NUMA")


def machine(sockets: int, cores: int, threads: int) -> CPUTopology:
    """CPUs numbered as Linux does on x86: first threads first."""
    total = sockets * cores
    made = tuple(
        Core(s, c, frozenset(t * total + s * cores + c for t in range(threads)))
        for s in range(sockets)
        for c in range(cores)
    )
    numa = {s: frozenset(cpu for core in made if core.socket == s for cpu in core.cpus) for s in range(sockets)}
    return CPUTopology(made, numa)


class Killed(BaseException):
    """The agent dies here."""


class World:
    """A node with its pods, the bindings in the API, the operator's rule, and an agent that can be killed."""

    def __init__(
        self, root: Path, version: int, driver: str, topology: CPUTopology, rule: KubeletRule, seed: int
    ) -> None:
        self.chance = random.Random(seed)
        self.topology = topology
        self.rule = rule
        self.cgroups = CgroupfsModel(root, version, topology.cpus, frozenset(topology.numa_nodes))
        self.node = NodeModel(self.cgroups, driver)
        self.bindings: dict[BindingKey, PodCPUBinding] = {}
        self.claims: dict[BindingKey, Claim] = {}  # what the agent has been given
        self.sequence = 0
        self.clock = 0.0
        self.dies_in = -1
        self.before: dict[str, Grant] = {}
        self.crowded: set[str] = set()
        self.cgroups.after_write = self.check
        self.agent = self.new_agent()

    def new_agent(self) -> NodeCpusets:
        return NodeCpusets(
            CpusetFiles(self.cgroups.root, self.cgroups.version, self.cgroups.write),
            lambda: dict(self.node.pods),
            lambda: self.topology,
            lambda: self.rule,
            PinningSettings(),
            lambda: self.clock,
        )

    # What is true at every write

    def effective(self, uid: str) -> frozenset[int]:
        paths = self.node.below(uid)[1:] if self.rule.containers_only else self.node.below(uid)
        return frozenset[int]().union(*(self.cgroups.effective(path) for path in paths))

    def check(self) -> None:
        now = self.agent.grants
        there = {uid: self.effective(uid) for uid in self.node.pods}
        owners = {
            uid: cpus
            for uid, cpus in there.items()
            if any(g.kept and cpus <= g.claim.cpus for g in (self.before.get(uid), now.get(uid)) if g is not None)
        }
        for a, b in combinations(owners, 2):
            assert not owners[a] & owners[b], f"{a} and {b} own {owners[a] & owners[b]}"
        assert self.crowded_now(now, there) <= self.crowded, "somebody is pinned to CPUs that others have not left"
        if self.dies_in > 0:
            self.dies_in -= 1
            if self.dies_in == 0:
                raise Killed

    def crowded_now(self, grants: dict[str, Grant], there: dict[str, frozenset[int]]) -> set[str]:
        return {
            uid
            for uid, grant in grants.items()
            if grant.kept
            and there.get(uid, frozenset()) == grant.claim.cpus
            and any(cpus & grant.kept for other, cpus in there.items() if other != uid)
        }

    def enforce(self) -> None:
        """The agent acts; it may die at any write, and another one starts from what it finds."""
        while True:
            self.before = dict(self.agent.grants)
            try:
                # As enforce does first, so that the check knows who may be where
                grants, _ = resolve(self.claims.values(), self.topology, self.rule)
                self.crowded = self.crowded_now(grants, {uid: self.effective(uid) for uid in self.node.pods})
                self.agent.enforce(self.claims.values())
                return
            except Killed:
                self.restart()

    def restart(self) -> None:
        """Another agent, which reads everything; the grants of the one before are kept for `before` only."""
        old = self.agent.grants
        self.agent = self.new_agent()
        self.agent.grants = old
        self.claims = dict(self.all_claims())

    # What happens

    def verdicts(self) -> dict[BindingKey, Verdict]:
        node = NodeCPUTopology("n", self.topology, CPUPools(kubelet_exclusive=self.rule.all_exclusive))
        there = [(b, BoundPod(b.pod_name, "n")) for b in self.bindings.values() if b.pod_name in self.node.pods]
        return judge_node("n", node, there)

    def all_claims(self) -> Iterator[tuple[BindingKey, Claim]]:
        for key, verdict in self.verdicts().items():
            if verdict.status == "Validated":
                binding = self.bindings[key]
                yield key, Claim(
                    key, binding.created, 1, verdict.pod_uid, parse_cpu_list(verdict.cpus),
                    parse_cpu_list(verdict.mems), binding.level,
                )  # fmt: skip

    def deliver(self) -> None:
        """The operator writes its verdicts, and the agent receives them one after the other, acting now and then."""
        wanted = dict(self.all_claims())
        keys = sorted(wanted.keys() | self.claims.keys())
        self.chance.shuffle(keys)
        for key in keys:
            if self.claims.get(key) != wanted.get(key):
                if key in wanted:
                    self.claims[key] = wanted[key]
                else:
                    self.claims.pop(key, None)
                if self.chance.random() < 0.5:
                    self.enforce()
        self.enforce()

    def step(self, deadly: bool = True) -> None:
        self.clock += 20.0
        self.dies_in = self.chance.randrange(1, 8) if deadly and self.chance.random() < 0.3 else -1
        what = self.chance.random()
        uids = sorted(self.node.pods)
        if what < 0.2 and len(uids) < 24:
            self.sequence += 1
            self.node.start(f"{self.sequence:08x}-0", self.chance.choice(self.node.qos))
        elif what < 0.28 and uids:
            gone = self.chance.choice(uids)
            self.node.stop(gone)
        elif what < 0.36 and uids:  # a container is restarted: a new cgroup, filled from the pod's
            uid = self.chance.choice(uids)
            self.sequence += 1
            self.node.start_container(uid, f"{self.sequence:08x}")
            try:
                self.agent.look_at(uid)
            except Killed:
                self.restart()
        elif what < 0.44 and uids:  # drift by hand
            uid = self.chance.choice(uids)
            everything = self.cgroups.effective(self.node.pods[uid].rpartition("/")[0])
            paths = self.node.below(uid)
            self.cgroups.after_write = lambda: None
            for path in paths:
                self.cgroups.write(self.cgroups.root / path / "cpuset.cpus", ",".join(map(str, sorted(everything))))
            self.cgroups.after_write = self.check
        elif what < 0.6 and self.bindings:
            del self.bindings[self.chance.choice(sorted(self.bindings))]
        elif uids:
            self.bind(self.chance.choice(uids))
        self.deliver()
        self.dies_in = -1
        self.enforce()

    def bind(self, uid: str) -> None:
        """A binding is made, or edited: one in two is moved to CPUs that another had."""
        key = ("default", f"b-{uid if self.chance.random() < 0.9 else self.chance.randrange(5)}")
        count = self.chance.randint(1, max(1, len(self.topology.cpus) // 8))
        cpus = frozenset(self.chance.sample(sorted(self.topology.cpus), count))
        if self.bindings and self.chance.random() < 0.5:
            cpus = self.bindings[self.chance.choice(sorted(self.bindings))].cpus
        old = self.bindings.get(key)
        self.sequence += 1
        created = f"2026-01-01T{self.sequence // 3600:02}:{self.sequence // 60 % 60:02}:{self.sequence % 60:02}Z"
        self.bindings[key] = PodCPUBinding(
            *key, "uid", old.created if old else created, uid, cpus, self.chance.choice(LEVELS)
        )

    # How it must end

    def check_end(self) -> None:
        """Every pod has just what the objects describe, and the agent says so."""
        verdicts = {self.bindings[k].pod_name: (self.bindings[k], v) for k, v in self.verdicts().items() if v.cpus}
        kept = {uid: self.topology.closure(b.cpus, b.level) for uid, (b, _) in verdicts.items()}
        assert self.agent.grants.keys() == verdicts.keys()
        assert not self.agent.refusals
        for uid in self.node.pods:
            others = frozenset[int]().union(*(k for owner, k in kept.items() if owner != uid))
            paths = self.node.below(uid)[1:] if self.rule.containers_only else self.node.below(uid)
            bound = verdicts.get(uid)
            want = bound[0].cpus if bound else (self.rule.default or self.topology.cpus) - others
            assert want, "the shared pool is never empty"
            for path in paths:
                has = self.cgroups.effective(path)
                wide = self.rule.containers_only and not bound and has >= want and not has & others
                assert has == want or wide, f"{path} has {sorted(has)}, not {sorted(want)}"
                mems = self.cgroups.effective(path, "cpuset.mems")
                assert mems == (parse_cpu_list(bound[1].mems) if bound else frozenset(self.topology.numa_nodes))
            if bound:
                outcome = self.agent.outcomes[uid]
                assert outcome.exact and not outcome.error and not outcome.intruder
        before = len(self.cgroups.writes)
        self.enforce()
        assert len(self.cgroups.writes) == before, "what is as it should be is not written again"

    def check_released(self) -> None:
        """Without any binding nothing is left of us."""
        self.bindings.clear()
        self.deliver()
        for uid in self.node.pods:
            for path in self.node.below(uid):
                directory = self.cgroups.root / path
                for file, everything in (
                    ("cpuset.cpus", self.topology.cpus),
                    ("cpuset.mems", self.topology.numa_nodes),
                ):
                    # v2 refuses to empty a set below which there are processes
                    may_inherit = self.cgroups.version == 2 and not self.rule.containers_only
                    written = self.cgroups.read(directory, file)
                    assert written == frozenset(everything) or (may_inherit and not written)


NONE = KubeletRule()
STATIC = KubeletRule(containers_only=True, default=machine(2, 8, 2).cpus)
WORLDS = {
    "v1, cgroupfs, 2 sockets of 64 cores of 2 threads": (1, "cgroupfs", machine(2, 64, 2), NONE),
    "v2, systemd and containerd, 2 sockets of 64 cores of 2 threads": (2, "systemd", machine(2, 64, 2), NONE),
    "v2, CRI-O, 4 sockets": (2, "crio", machine(4, 4, 1), NONE),
    "v1, docker, a small machine": (1, "docker", machine(1, 2, 2), NONE),
    "v1, kubelet's policy is static": (1, "cgroupfs", machine(2, 8, 2), STATIC),
}


STEPS, SEEDS = (200, range(4)) if os.environ.get("CONCERTO_PINNING_FULL") == "1" else (25, range(1))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("version", "driver", "topology", "rule"), WORLDS.values(), ids=WORLDS)
def test_random_steps_end_as_the_objects_say(tmp_path, version, driver, topology, rule, seed):
    world = World(tmp_path / "cpuset", version, driver, topology, rule, seed)
    for _ in range(STEPS):
        world.step()
        world.check_end()
    world.check_released()
