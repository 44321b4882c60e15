"""CPUs that a container is created with: those that cgroup files would get a moment later."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpusets import FOUR, STATIC, agent, claim, node, sets

from concerto.api.cpulist import format_cpu_list
from concerto_agent.container_start import NewContainer, StartCpus
from concerto_agent.cpusets import KubeletRule
from concerto_agent.node_cpusets import NodeCpusets

NONE, KUBELETS_MEMS = KubeletRule(), KubeletRule(mems=True)
ONLY_MAIN = replace(claim("a", 1), containers=frozenset({"main"}))


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


BOUND, MEM = cpus(1), cpus(0)

# kubelet's rule, claims, the container, what it is created with
CHOICES = {
    "a bound pod": (NONE, [claim("a", 1)], NewContainer("a", "main"), StartCpus("Bound", BOUND, MEM)),
    "a bound pod, by static policy": (
        STATIC, [claim("a", 1)], NewContainer("a", "main", cpus(0, 1, 2)), StartCpus("Bound", BOUND, MEM),
    ),
    "memory is left to kubelet's memory manager": (
        KUBELETS_MEMS, [claim("a", 1)], NewContainer("a", "main"), StartCpus("Bound", BOUND),
    ),
    "an unbound pod has what its pod's cgroup has": (
        NONE, [claim("a", 1)], NewContainer("b", "main"), StartCpus("Inherited"),
    ),
    "an unbound pod, by static policy": (
        STATIC, [claim("a", 1)], NewContainer("b", "main", cpus(0, 1, 2)), StartCpus("Shared", cpus(0, 2)),
    ),
    "an unbound pod where nothing is kept": (
        STATIC, [claim("a", 1, level="None")], NewContainer("b", "main", cpus(0, 1, 2)), StartCpus("Inherited"),
    ),
    "the container that the binding names": (
        NONE, [ONLY_MAIN], NewContainer("a", "main"), StartCpus("Bound", BOUND, MEM),
    ),
    "another container of its pod, whose cgroup has only the binding's CPUs by now": (
        NONE, [ONLY_MAIN], NewContainer("a", "log"), StartCpus("Inherited"),
    ),
    "another container of its pod, by static policy": (
        STATIC, [ONLY_MAIN], NewContainer("a", "log"), StartCpus("Shared", cpus(0, 2)),
    ),
    "a container that kubelet pins": (
        STATIC, [claim("a", 1)], NewContainer("k", "main", cpus(3)), StartCpus("LeftToKubelet"),
    ),
    "another container of a pod that kubelet pins": (
        STATIC, [claim("a", 1)], NewContainer("k", "log", cpus(0, 1, 2)), StartCpus("Shared", cpus(0, 2)),
    ),
    "kubelet's rule is not known": (
        KubeletRule(known=False), [claim("a", 1)], NewContainer("a", "main"), StartCpus("Unknown"),
    ),
    "the pod has no cgroup": (NONE, [claim("a", 1)], NewContainer("z", "main"), StartCpus("Unknown")),
    "an update of an unbound pod's container takes back what it was created with": (
        NONE, [claim("a", 1)], NewContainer("b", "main", exists=True), StartCpus("Inherited", cpus(0, 2, 3), MEM),
    ),
    "an update of an unbound pod's container by static policy": (
        STATIC, [], NewContainer("b", "main", exists=True), StartCpus("Inherited", cpus(0, 1, 2), MEM),
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("rule", "claims", "container", "expected"), CHOICES.values(), ids=CHOICES)
def test_a_container_is_created_with(tmp_path, version, rule, claims, container, expected):
    cpusets = agent(node(tmp_path, version, pods="abk"), rule)
    cpusets.enforce(claims)
    cpusets.look_at(container.pod_uid)
    assert cpusets.start_cpus(container) == expected


def test_a_pod_whose_cpus_others_still_have_does_not_start_there(tmp_path):
    model = node(tmp_path, pods="ab")
    cpusets = agent(model)
    model.cgroups.after_write = lambda: model.cgroups._put(
        model.cgroups.root / model.below("b")[1], "cpuset.cpus", FOUR.cpus
    )
    cpusets.enforce([claim("a", 1)])
    assert cpusets.outcomes["a"].intruder
    assert cpusets.start_cpus(NewContainer("a", "main")) == StartCpus("Inherited")


def test_on_v1_a_set_that_the_pods_cgroup_does_not_contain_is_not_asked_for(tmp_path):
    model = node(tmp_path, 1)
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1)])
    for path in reversed(model.below("a")):
        model.cgroups._put(model.cgroups.root / path, "cpuset.cpus", cpus(2))  # somebody else's write, not seen yet
    assert cpusets.start_cpus(NewContainer("a", "main")) == StartCpus("Inherited")


@st.composite
def situations(draw: st.DrawFn):
    """Cgroup version, kubelet's rule, claims of pods a and b, a pod and its new container's name."""
    rule = draw(st.sampled_from([NONE, STATIC, replace(STATIC, exclusive={}), KUBELETS_MEMS]))
    claims = []
    for number, uid in enumerate(draw(st.lists(st.sampled_from("ab"), unique=True))):
        made = claim(
            uid, *draw(st.sets(st.integers(0, 3), min_size=1, max_size=2)),
            level=draw(st.sampled_from(["None", "CPU", "Core"])), created=number,
        )  # fmt: skip
        claims.append(replace(made, containers=draw(st.sampled_from([frozenset(), frozenset({"main"})]))))
    return (
        draw(st.sampled_from([1, 2])),
        rule,
        claims,
        draw(st.sampled_from("abc")),
        draw(st.sampled_from(["main", "x"])),
    )


@settings(max_examples=40)  # each writes some hundred files
@given(situations())
def test_cgroup_files_have_nothing_to_correct_of_a_container_that_was_created_with_its_cpus(situation):
    version, rule, claims, uid, name = situation
    with tempfile.TemporaryDirectory() as folder:
        model = node(Path(folder), version, pods="abc")
        new = "f" * 64
        cpusets = agent(model, rule)
        cpusets._names = lambda of: {new: name}
        cpusets.enforce(claims)
        cpusets.look_at(uid)
        asked = rule.default if rule.containers_only else frozenset()
        chosen = cpusets.start_cpus(NewContainer(uid, name, asked))
        path = model.start_container(uid, new)
        for file, value in (("cpuset.cpus", chosen.cpus or asked), ("cpuset.mems", chosen.mems)):
            if value:
                model.cgroups.write(model.cgroups.root / path / file, format_cpu_list(value))
        begins_with = {file: model.cgroups.effective(path, file) for file in ("cpuset.cpus", "cpuset.mems")}
        cpusets.look_at(uid)
        if chosen.result == "Inherited" and uid in cpusets.grants:
            return  # a container that its pod's binding is not for: the look before its start gives it its CPUs
        assert {file: model.cgroups.effective(path, file) for file in begins_with} == begins_with


def late(tmp_path, **before: set[int]) -> NodeCpusets:
    """Cpusets of pods a and b, some containers of which are set already."""
    model = node(tmp_path, 2)
    for uid, numbers in before.items():
        for path in model.below(uid)[1:]:
            model.cgroups.write(model.cgroups.root / path / "cpuset.cpus", format_cpu_list(numbers))
    return agent(model)


def test_a_binding_that_comes_after_the_containers_is_counted_once(tmp_path):
    cpusets = late(tmp_path)
    cpusets.enforce([claim("a", 1)])
    cpusets.enforce([claim("a", 1)])
    cpusets.enforce([claim("a", 2)])  # an edit
    assert cpusets.late == 1


def test_containers_that_have_their_cpus_when_an_agent_starts_are_not_late(tmp_path):
    cpusets = late(tmp_path, a={1})
    cpusets.enforce([claim("a", 1)])
    assert cpusets.late == 0


def test_a_pod_without_containers_is_not_late(tmp_path):
    model = node(tmp_path, pods="b")
    model.start("a", "burstable", containers=0)
    cpusets = agent(model)
    cpusets.enforce([claim("a", 1)])
    assert (cpusets.late, sets(model, "a")) == (0, {BOUND})
