"""CPUs that kubelet reserves, however it is configured."""

from __future__ import annotations

import pytest

from concerto.api.cpulist import parse_cpu_list
from concerto.linux.cpu_topology import KubeletCPUs
from concerto.linux.reserved_cpus import reserved_count, reserved_cpus
from support.topologies import machine

SEED = machine(2, 5, 2)

# what the file names, CPUs that are not allocatable, reserved CPUs, whether the two contradict
RESERVED = {
    "the file names them": ("0,10", 2, "0,10", False),
    "kubeReserved: whole cores from the first": ("", 3, "0-1,10", False),
    "flags, and the file has none": ("", 2, "0,10", False),
    "a file that kubelet does not use": ("5", 2, "0,5", True),
    "a file that reserves what the Node gives away": ("0-3", 2, "0-3", True),
    "an unknown Node": ("4", None, "4", False),
    "nothing": ("", 0, "", False),
    "more than there are": ("", 30, "0-19", False),
}


@pytest.mark.parametrize(("named", "count", "expected", "contradict"), RESERVED.values(), ids=RESERVED)
def test_reserved_cpus_are_those_named_and_as_many_as_are_not_allocatable(named, count, expected, contradict):
    found, problem = reserved_cpus(SEED, KubeletCPUs(reserved=parse_cpu_list(named)), count)
    assert (found, bool(problem)) == (parse_cpu_list(expected), contradict)


# capacity, allocatable, reserved CPUs
COUNTS = {
    "nothing": ("20", "20", 0),
    "a part of a CPU takes a whole one": ("20", "19940m", 1),
    "reservedSystemCPUs": ("20", "18", 2),
    "more allocatable than there is": ("2", "3", 0),
    "no allocatable": ("20", None, None),
}


@pytest.mark.parametrize(("capacity", "allocatable", "expected"), COUNTS.values(), ids=COUNTS)
def test_the_node_says_how_many_kubelet_reserves(capacity, allocatable, expected):
    status = {"capacity": {"cpu": capacity}, "allocatable": {} if allocatable is None else {"cpu": allocatable}}
    assert reserved_count({"status": status}) == expected
    assert reserved_count({}) is None
