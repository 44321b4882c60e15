"""Scenarios: what is read, and what is refused with which words."""

from __future__ import annotations

import pytest

from concerto.simulation.scheduling import scenario

GOOD = """
nodes:
  - {count: 2, cores: 4, memory: 8Gi}
jobs:
  - {name: a, count: 3, coreSeconds: 1, waitSeconds: 0.5, threads: 2, memory: 20Mi, cpuRequest: 250m}
policies: [concerto, kube-sweep]
seeds: 2
faults:
  - {kind: NodeLoss, atSeconds: 1, forSeconds: 2, nodes: [1]}
capacity:
  estimator: {initialPerPodCost: 200m}
"""


def test_everything_that_is_written_is_read():
    read = scenario.parse(GOOD, "x.yaml")
    assert [n.count for n in read.setup.nodes] == [2]
    (job,) = read.setup.jobs
    assert (job.load.threads, job.load.wait_seconds, job.cpu_request_millicores) == (2, 0.5, 250)
    assert read.policies[0] == "concerto"
    assert "kube-scheduler@100m" in read.policies
    assert read.setup.faults[0].nodes == (1,)
    assert read.capacity.estimator.initial_per_pod_cost == 0.2


REFUSED = {
    "a field that does not exist": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1}\nnode: []\n",
        ["x.yaml:3: node: expected one of", "'node'"],
    ),
    "a word for a number": (
        "jobs:\n  - name: a\n    count: many\n    coreSeconds: 1\n",
        ["x.yaml:3: jobs[0].count: expected a whole number from 1", "'many'"],
    ),
    "work of nothing": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 0}\n",
        ["x.yaml:2: jobs[0].coreSeconds: expected a number above 0", "'0'"],
    ),
    "a policy nobody wrote": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1}\npolicies:\n  - concerto\n  - magic\n",
        ["x.yaml:5: policies[1]: expected one of concerto", "'magic'"],
    ),
    "not a quantity": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1, memory: lots}\n",
        ["x.yaml:2: jobs[0].memory: expected a quantity such as 700Mi", "'lots'"],
    ),
    "a fault on a node that is not there": (
        "nodes:\n  - {count: 1}\njobs:\n  - {name: a, count: 1, coreSeconds: 1}\n"
        "faults:\n  - {kind: NodeLoss, atSeconds: 0, forSeconds: 1, nodes: [7]}\n",
        ["x.yaml:6: faults[0].nodes: expected indices from 0 to 0"],
    ),
    "a job without work": (
        "jobs:\n  - {name: a, count: 1}\n",
        ["x.yaml:2: jobs[0]: expected a field `coreSeconds`"],
    ),
    "no job that ends": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1, waitSeconds: 1, bursts: 0}\n",
        ["x.yaml:2: jobs: expected at least one job that ends"],
    ),
    "a name twice": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1}\n  - {name: a, count: 1, coreSeconds: 1}\n",
        ["jobs: expected a different name for each job"],
    ),
    "a field twice": (
        "jobs:\n  - name: a\n    name: b\n    count: 1\n    coreSeconds: 1\n",
        ["x.yaml:3: jobs[0].name: expected once"],
    ),
    "bounds in the wrong order": (
        "jobs:\n  - {name: a, count: 1, coreSeconds: 1}\nplant:\n  startSeconds: [2, 1]\n",
        ["x.yaml:4: plant.startSeconds: expected two numbers, the least and the most, in that order"],
    ),
    "not YAML": ("jobs: [\n", ["x.yaml:", "not YAML"]),
    "nothing": ("", ["x.yaml:1: expected a mapping with `jobs`"]),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_wrong_is_said_with_line_and_field(sentence):
    text, words = REFUSED[sentence]
    with pytest.raises(scenario.ScenarioError) as refused:
        scenario.parse(text, "x.yaml")
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("name", scenario.built_in_names())
def test_every_built_in_scenario_is_valid_and_says_what_it_shows(name):
    read = scenario.load(name)
    assert read.name == name
    assert read.description


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(scenario.ScenarioError, match="pi-2000"):
        scenario.load("no-such-thing")
