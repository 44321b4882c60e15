"""All pods are looked at one a step, and what happens between two steps breaks no promise."""

from __future__ import annotations

import pytest
from test_cpusets import FOUR, agent, claim, sets

from concerto_agent.bindings import Outcome
from concerto_agent.cpusets import KubeletRule
from support.cgroupfs_model import CgroupfsModel, NodeModel

STATIC = KubeletRule(containers_only=True, default=FOUR.cpus)


def node(tmp_path, version: int, pods: str) -> NodeModel:
    model = NodeModel(CgroupfsModel(tmp_path / "cpuset", version, FOUR.cpus), "cgroupfs")
    for uid in pods:
        model.start(uid, "burstable")
    return model


@pytest.mark.parametrize("version", [1, 2])
def test_a_container_that_starts_meanwhile_waits_for_no_other_pod(tmp_path, version):
    model = node(tmp_path, version, "abcdefgh")
    cpusets = agent(model, STATIC)
    cpusets.enforce([claim("a", 1)])
    steps = cpusets.steps([claim("a", 1)])
    for number, _ in enumerate(steps):
        path = model.start_container("h", f"new{number}")
        cpusets.look_at("h")
        assert model.cgroups.effective(path) == {0, 2, 3}
    assert number > 8, "as many steps as pods at least"


@pytest.mark.parametrize("rule", [KubeletRule(), STATIC], ids=["all levels", "containers"])
@pytest.mark.parametrize("version", [1, 2])
def test_nobody_enters_between_two_steps_what_others_have_not_left(tmp_path, version, rule):
    model = node(tmp_path, version, "abcd")
    cpusets = agent(model, rule)
    cpusets.enforce([claim("a", 1)])
    moved = [claim("a", 2), claim("b", 1)]

    def containers(uid: str) -> set[int]:
        return {cpu for path in model.below(uid)[1:] for cpu in model.cgroups.effective(path)}

    for number, _ in enumerate(cpusets.steps(moved)):
        model.start_container("c", f"new{number}")
        for uid in "abcd":
            cpusets.look_at(uid)
        for uid, other in (("a", "b"), ("b", "a")):
            if len(containers(uid)) == 1:
                assert not any(containers(uid) & containers(beside) for beside in {other, "c", "d"})
        assert all(cpusets.standing(each) is None for each in moved), "nothing is said before all have moved"
    assert (containers("a"), containers("b"), containers("c")) == ({2}, {1}, {0, 3})


def test_what_is_unchanged_stays_said_while_others_move(tmp_path):
    model = node(tmp_path, 2, "abc")
    cpusets = agent(model)
    first = claim("a", 1)
    cpusets.enforce([first])
    for _ in cpusets.steps([first, claim("b", 2, created=1)]):
        standing = cpusets.standing(first)
        assert standing is not None and standing[1] == Outcome(frozenset({1}), frozenset({0}), exact=True)
    assert sets(model, "b") == {frozenset({2})}


@pytest.mark.parametrize("version", [1, 2])
def test_a_bound_pods_containers_that_start_meanwhile_enter_with_the_others(tmp_path, version):
    model = node(tmp_path, version, "abcd")
    cpusets = agent(model, STATIC)
    one = claim("a", 1)
    for number, _ in enumerate(cpusets.steps([one])):
        model.start_container("a", f"new{number}")
        cpusets.look_at("a")
    assert {frozenset(model.cgroups.effective(path)) for path in model.below("a")[1:]} == {frozenset({1})}
    standing = cpusets.standing(one)
    assert standing is not None and standing[1].exact


def test_a_container_that_starts_during_the_last_step_is_reported(tmp_path):
    model = node(tmp_path, 1, "b")
    one = claim("a", 1)
    cpusets = agent(model)
    steps = cpusets.steps([one])
    next(steps)
    model.start("a", "burstable")
    cpusets.look_at("a")
    for _ in steps:
        continue
    standing = cpusets.standing(one)
    assert standing is not None and standing[1].exact


def test_nothing_is_said_of_a_claim_that_was_refused_before_it_is_known_how_it_stands(tmp_path):
    model = node(tmp_path, 2, "abc")
    cpusets = agent(model)
    older, younger = claim("b", 1), claim("a", 1, created=1)
    cpusets.enforce([older, younger])
    for _ in cpusets.steps([younger]):
        cpusets.look_at("a")
        standing = cpusets.standing(younger)
        assert standing is None or not isinstance(standing, tuple) or not standing[1].intruder
    standing = cpusets.standing(younger)
    assert isinstance(standing, tuple) and standing[1].exact
