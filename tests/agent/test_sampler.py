from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.capacity_settings import CapacitySettings, Gauge
from concerto_agent.files import (
    KeptFile,
    parse_cpu_times,
    parse_cpus,
    parse_field,
    parse_number,
    parse_pressure,
    parse_pressure_full,
)
from concerto_agent.node_files import NodeFiles
from concerto_agent.rates import Rate
from concerto_agent.sampler import Sample, Sampler
from support.node_trees import UIDS, Machine, pod_paths, write

GIB = 2**30
MEMORY_TOTAL = 24684092


class OneByOne(Sampler):
    """A sampler whose samples are worked out as they are taken."""

    def sample(self, now: float, uncounted: Iterable[str] = ()) -> Sample:
        self.take(now, uncounted)
        (sample,) = self.samples()
        return sample


def sampler(machine: Machine, *, cgroup: str | None = None, memory: int | None = None, **spec: object) -> OneByOne:
    settings = NodeFiles(
        scope="Machine" if cgroup is None else "Cgroup",
        cgroup=cgroup or "",
        memory_capacity_bytes=memory,
        proc=machine.proc,
        sys=machine.sys,
    )
    return OneByOne(settings, CapacitySettings.from_raw(spec))


def reasons(sample: Sample) -> set[str]:
    return {problem.reason for problem in sample.problems}


PARSERS = {
    "a number": (parse_number, b"12\n", 12.0),
    "no limit is no number": (parse_number, b"max\n", None),
    "an empty file is no number": (parse_number, b"", None),
    "a field on a later line": (lambda d: parse_field(d, b"inactive_file"), b"file 1\ninactive_file 7\n", 7.0),
    "a field whose name ends another's": (lambda d: parse_field(d, b"file"), b"inactive_file 7\nfile 1\n", 1.0),
    "a field that is missing": (lambda d: parse_field(d, b"MemAvailable:"), b"MemTotal: 7 kB\n", None),
    "a field with spaces": (lambda d: parse_field(d, b"MemTotal:"), b"MemTotal:    7 kB\n", 7.0),
    "pressure in seconds": (parse_pressure, b"some avg10=0.00 avg60=0 avg300=0 total=1500000\nfull total=9\n", 1.5),
    "full pressure in seconds": (
        parse_pressure_full,
        b"some avg10=0.00 total=9\nfull avg10=0 avg60=0 avg300=0 total=2500000\n",
        2.5,
    ),
    "a kernel without full pressure of cpu": (parse_pressure_full, b"some avg10=0.00 total=9\n", None),
    "pressure disabled at boot": (parse_pressure, b"", None),
    "cpu times without guest": (parse_cpu_times, b"cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 0\n", (1, 2, 3, 4, 5, 6, 7, 8)),
    "cpu times of a kernel without steal": (parse_cpu_times, b"cpu 1 2 3 4 5 6 7\n", (1, 2, 3, 4, 5, 6, 7, 0)),
    "cpu times that are cut short": (parse_cpu_times, b"cpu 1 2 3\n", None),
    "cpu times that are no numbers": (parse_cpu_times, b"cpu a b c d e f g h\n", None),
    "cpu times of some CPUs, one of them offline": (
        lambda d: parse_cpu_times(d, frozenset({1, 2, 10, 12})),
        b"cpu 9 9 9 9 9 9 9 9\ncpu1 1 0 0 0 0 0 0 1 0 0\ncpu10 2 0 0 0 0 0 0 2\ncpu2 4 0 0 0 0 0 0 4\nintr 5\n",
        (7, 0, 0, 0, 0, 0, 0, 7),
    ),
    "cpu times of CPUs that are not there": (
        lambda d: parse_cpu_times(d, frozenset({7})),
        b"cpu0 1 1 1 1 1 1 1 1\n",
        None,
    ),
    "a cpu list": (parse_cpus, b"0-2,8\n", frozenset({0, 1, 2, 8})),
    "an empty cpu list": (parse_cpus, b"\n", frozenset()),
    "a broken cpu list": (parse_cpus, b"0-x\n", None),
}


@pytest.mark.parametrize(("parse", "data", "expected"), PARSERS.values(), ids=PARSERS.keys())
def test_parser(parse, data, expected):
    assert parse(data) == expected


@pytest.mark.parametrize("parse", [parse_number, parse_pressure, parse_cpu_times, parse_cpus])
def test_parsers_say_nothing_of_a_file_that_is_not_there(parse):
    assert parse(None) is None


@given(st.binary(max_size=200))
def test_parsers_survive_any_bytes(data):
    for parse in (parse_number, parse_pressure, parse_cpu_times, parse_cpus, lambda d: parse_field(d, b"x")):
        parse(data)


def test_a_kept_file_is_found_again_after_it_was_removed_and_made_anew(tmp_path):
    path = tmp_path / "usage"
    file = KeptFile(path)
    assert file.read() is None
    assert isinstance(file.error, FileNotFoundError)
    path.write_text("1")
    assert file.read() == b"1"
    path.write_text("2")
    assert file.read() == b"2"
    file.close()
    path.unlink()
    assert file.read() is None
    path.write_text("3")
    assert file.read() == b"3"
    file.close()


@given(st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 1e18)), st.floats(0, 5))))
def test_a_rate_is_never_negative_and_never_spans_a_reset(steps):
    rate, last = Rate(), None
    for value, seconds in steps:
        result = rate.update(value, seconds)
        if value is None or last is None or value < last or seconds == 0:
            assert math.isnan(result)
        else:
            assert result == (value - last) / seconds
        last = value


def test_machine_scope_measures_cpu_and_memory(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    first = meters.sample(10.0)
    assert math.isnan(first.readings["cpu"].usage), "a counter that was read once has no rate"
    assert first.readings["memory"].usage == pytest.approx(1 - 24187124 / MEMORY_TOTAL)
    machine.stat("130 0 110 860 0 0 0 0")  # 40 busy of 100
    machine.psi(1000 + 25_000)
    second = meters.sample(10.1)
    assert second.seconds == pytest.approx(0.1)
    assert second.readings["cpu"].usage == pytest.approx(0.4 * (1 + 0.25) / 2)
    assert reasons(second) == {"NoPodCgroups"}
    meters.close()


def test_running_and_waiting_tasks_are_counted_without_the_one_that_counts(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    assert math.isnan(meters.sample(10.0).readings["cpu"].runnable), "a kernel that does not report it"
    for tasks, expected in ((1, 0.0), (9, 2.0)):
        machine.stat("130 0 110 860 0 0 0 0", running=tasks)
        assert meters.sample(10.1).readings["cpu"].runnable == pytest.approx(expected), "of four CPUs"
    meters.close()


def test_in_a_cgroup_no_tasks_are_counted(tmp_path):
    machine = Machine(tmp_path, "v2")
    machine.stat(running=9)
    machine.cpu("node", 1.0)
    machine.cpuset("node", "0-1")
    meters = sampler(machine, cgroup="node")
    assert math.isnan(meters.sample(10.0).readings["cpu"].runnable), "procs_running is of the whole machine"
    meters.close()


def test_caricos_formulas_are_selectable(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine, cpuFormula="Mean", memoryFormula="FreeBuffersCached")
    meters.sample(10.0)
    machine.stat("130 0 110 860 0 0 0 0")
    machine.psi(1000 + 25_000)
    readings = meters.sample(10.1).readings
    assert readings["cpu"].usage == pytest.approx((0.4 + 0.25) / 2)
    assert readings["memory"].usage == pytest.approx(1 - (20752632 + 296696 + 3067380) / MEMORY_TOTAL)


def test_pressure_uses_the_time_that_really_went_by(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    meters.sample(10.0)
    machine.stat("200 0 100 800 0 0 0 0")  # all busy
    machine.psi(1000 + 150_000)
    assert meters.sample(10.3).readings["cpu"].usage == pytest.approx((1 + 0.5) / 2)


MACHINE_FAULTS = {
    "no PSI in the kernel": ("pressure/cpu", None, {"NoPressure"}, "cpu", 0.4),
    "PSI disabled at boot": ("pressure/cpu", "", {"NoPressure"}, "cpu", 0.4),
    "no MemAvailable": (
        "meminfo",
        "MemTotal: 1000 kB\nMemFree: 500 kB\nBuffers: 100 kB\nCached: 200 kB\n",
        {"NoMemAvailable"},
        "memory",
        0.2,
    ),
    "meminfo is gone": ("meminfo", None, {"Unreadable"}, "memory", math.nan),
    "meminfo lacks a field": ("meminfo", "MemTotal: 1000 kB\nMemFree: 5 kB\n", {"Unreadable"}, "memory", math.nan),
    "stat is gone": ("stat", None, {"Unreadable"}, "cpu", math.nan),
    "stat is garbage": ("stat", "intr 1 2 3\n", {"Unreadable"}, "cpu", math.nan),
}


@pytest.mark.parametrize(("file", "text", "said", "name", "value"), MACHINE_FAULTS.values(), ids=MACHINE_FAULTS.keys())
def test_what_is_missing_is_said_and_never_made_up(tmp_path, file, text, said, name, value):
    machine = Machine(tmp_path)
    if text is None:
        (machine.proc / file).unlink()
    else:
        write(machine.proc / file, text)
    meters = sampler(machine)
    meters.sample(10.0)
    if file != "stat":
        machine.stat("130 0 110 860 0 0 0 0")
    sample = meters.sample(10.1)
    assert reasons(sample) - {"NoPodCgroups"} == said
    assert sample.readings[name].usage == pytest.approx(value, nan_ok=True)
    other = "cpu" if name == "memory" else "memory"
    assert not math.isnan(sample.readings[other].usage), "one resource's trouble is not another's"


def test_pressure_that_comes_back_is_used_again(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    meters.sample(10.0)
    (machine.proc / "pressure/cpu").rename(tmp_path / "hidden")
    meters.close()
    machine.stat("130 0 110 860 0 0 0 0")
    assert meters.sample(10.1).readings["cpu"].usage == pytest.approx(0.4)
    (tmp_path / "hidden").rename(machine.proc / "pressure/cpu")
    machine.stat("160 0 120 920 0 0 0 0")
    assert math.isnan(meters.sample(10.2).readings["cpu"].usage), "neither with nor without pressure"
    machine.stat("190 0 130 980 0 0 0 0")
    assert meters.sample(10.3).readings["cpu"].usage == pytest.approx(0.4 / 2)


def test_a_suspended_machine_leaves_no_sample_of_its_sleep(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    meters.sample(10.0)
    machine.stat("900 0 110 860 0 0 0 0")
    woken = meters.sample(500.0)
    assert woken.seconds == 0
    assert math.isnan(woken.readings["cpu"].usage)
    assert not math.isnan(woken.readings["memory"].usage), "a level needs no difference"
    machine.stat("930 0 120 920 0 0 0 0")
    assert meters.sample(500.1).readings["cpu"].usage == pytest.approx(0.4 / 2)


def test_a_cpu_taken_offline_while_its_counters_shrink_gives_a_fraction(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    meters.sample(10.0)
    machine.stat("110 0 110 700 0 0 0 0")
    assert meters.sample(10.1).readings["cpu"].usage == pytest.approx(1.0 / 2)


LAYOUTS = ["v1", "v1-joined", "hybrid", "v2"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd", "kind"])
def test_non_pod_usage_is_the_node_without_its_pods(tmp_path, layout, driver):
    machine = Machine(tmp_path, layout, cpus="0-1")
    pod, daemon = pod_paths(driver, {UIDS[0]: "burstable", UIDS[1]: "guaranteed"}).values()
    kubepods = {"cgroupfs": "kubepods", "systemd": "kubepods.slice", "kind": "kubelet.slice/kubelet-kubepods.slice"}[
        driver
    ]
    total = MEMORY_TOTAL * 1024
    machine.cpu(kubepods, 5.0)
    machine.cpu(daemon, 1.0)
    machine.memory(kubepods, total // 2 + 500, inactive=500)
    machine.memory(daemon, total // 4)
    write(machine.proc / "meminfo", f"MemTotal: {MEMORY_TOTAL} kB\nMemAvailable: {MEMORY_TOTAL // 4} kB\n")
    meters = sampler(machine)
    meters.sample(10.0, uncounted=[daemon])
    machine.stat("180 0 100 820 0 0 0 0")  # 80 of 100 ticks busy: 1.6 of 2 CPUs
    machine.cpu(kubepods, 5.1)  # 1.0 of them by pods
    machine.cpu(daemon, 1.0)
    readings = meters.sample(10.1, uncounted=[daemon]).readings
    assert readings["cpu"].usage == pytest.approx(0.8 / 2)
    assert readings["cpu"].non_pod == pytest.approx(0.3 / 2), "1.6 - 1.0 CPUs of 2, damped"
    assert readings["memory"].usage == pytest.approx(0.75, abs=1e-6)
    assert readings["memory"].non_pod == pytest.approx(0.75 - 0.5 + 0.25, abs=1e-6), "DaemonSet pods are not counted"
    assert pod != daemon


def test_a_daemonset_pods_cpu_is_given_back_to_the_node_once_it_was_measured(tmp_path):
    machine = Machine(tmp_path, "v2", cpus="0")
    daemon = pod_paths("systemd", {UIDS[0]: "burstable"})[UIDS[0]]
    used = ticks = 0.0
    meters = sampler(machine)
    for step in range(22):  # one CPU: the DaemonSet's pod takes half, other pods a quarter
        ticks = step * 10
        used = step * 0.05
        machine.stat(f"{round(ticks * 0.75 * 10)} 0 0 {round(ticks * 0.25 * 10)} 0 0 0 0")
        machine.cpu(daemon, used)
        machine.cpu("kubepods.slice", step * 0.075)
        readings = meters.sample(10.0 + step / 10, uncounted=[daemon]).readings
    assert readings["cpu"].usage == pytest.approx(0.75 / 2, abs=0.005)
    assert readings["cpu"].non_pod == pytest.approx(0.5 / 2, abs=0.005)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cgroup_scope_measures_against_its_own_cpus_and_capacity(tmp_path, layout):
    machine = Machine(tmp_path, layout)
    machine.cpuset("n1", "2-3")
    machine.cpu("n1", 7.0)
    machine.memory("n1", 3 * GIB, inactive=GIB)
    machine.cgroup_psi("n1", 0)
    meters = sampler(machine, cgroup="/n1", memory=8 * GIB)
    meters.sample(10.0)
    machine.cpu("n1", 7.1)  # one of two CPUs
    machine.cgroup_psi("n1", 50_000)
    sample = meters.sample(10.1)
    assert sample.readings["memory"].usage == pytest.approx(0.25)
    if layout in ("hybrid", "v2"):
        assert sample.readings["cpu"].usage == pytest.approx(0.5 * 1.5 / 2)
        assert reasons(sample) == {"NoPodCgroups"}
    else:
        assert sample.readings["cpu"].usage == pytest.approx(0.5), "v1 alone has no pressure per cgroup"
        assert reasons(sample) == {"NoPodCgroups", "NoPressure"}


def test_cgroup_scope_without_a_cpuset_of_its_own_takes_its_ancestors(tmp_path):
    machine = Machine(tmp_path, "v2")
    machine.cpuset("machines", "0")
    machine.cpu("machines/n1", 7.0)
    meters = sampler(machine, cgroup="machines/n1", memory=GIB)
    meters.sample(10.0)
    machine.cpu("machines/n1", 7.05)
    assert meters.sample(10.1).readings["cpu"].usage == pytest.approx(0.5)


def test_cgroup_scope_without_any_cpuset_takes_the_machines_cpus(tmp_path):
    machine = Machine(tmp_path, "v2", cpus="0-1")
    machine.cpu("n1", 7.0)
    meters = sampler(machine, cgroup="n1")
    machine.memory("n1", MEMORY_TOTAL * 1024 // 2)
    meters.sample(10.0)
    machine.cpu("n1", 7.1)
    readings = meters.sample(10.1).readings
    assert readings["cpu"].usage == pytest.approx(0.5)
    assert readings["memory"].usage == pytest.approx(0.5, abs=1e-6), "without a capacity: MemTotal"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cgroup_that_is_not_there_is_not_measured_and_found_when_it_comes(tmp_path, layout):
    machine = Machine(tmp_path, layout)
    meters = sampler(machine, cgroup="n1", memory=GIB)
    sample = meters.sample(10.0)
    assert all(math.isnan(reading.usage) for reading in sample.readings.values())
    assert "Unreadable" in reasons(sample)
    machine.cpu("n1", 1.0)
    machine.memory("n1", GIB // 2)
    machine.cgroup_psi("n1", 0) if layout in ("hybrid", "v2") else None
    meters.sample(10.1)
    machine.cpu("n1", 1.1)
    readings = meters.sample(10.2).readings
    assert not math.isnan(readings["cpu"].usage)
    assert readings["memory"].usage == pytest.approx(0.5)


def test_a_cgroup_made_anew_starts_its_counters_again(tmp_path):
    machine = Machine(tmp_path, "hybrid")
    machine.cpuset("n1", "0")
    machine.cpu("n1", 100.0)
    machine.cgroup_psi("n1", 0)
    meters = sampler(machine, cgroup="n1", memory=GIB)
    meters.sample(10.0)
    machine.cpu("n1", 0.05)
    assert math.isnan(meters.sample(10.1).readings["cpu"].usage)
    machine.cpu("n1", 0.1)
    assert meters.sample(10.2).readings["cpu"].usage == pytest.approx(0.5 / 2)


OTHERS = {
    "the node's tasks wait for what others take": (0.5, 1.0, 0.5, 1.0),
    "half of the time they wait": (0.5, 0.5, 0.5, 0.75 * 1.5 / 2),
    "others are busy, and the node wants nothing": (0.0, 0.0, 1.0, 0.0),
    "others are idle, and the node's tasks are held back by their quota": (0.1, 0.8, 0.0, 0.1 * 1.8 / 2),
}


@pytest.mark.parametrize(("own", "pressure", "others", "expected"), OTHERS.values(), ids=OTHERS.keys())
def test_what_others_take_of_the_nodes_cpus_while_it_waits_counts_as_busy(tmp_path, own, pressure, others, expected):
    machine = Machine(tmp_path, "hybrid")
    machine.cpuset("n1", "2-3")
    machine.memory("n1", 1)
    meters = sampler(machine, cgroup="n1", memory=GIB)
    for step in range(25):
        seconds = step / 10
        busy = round((own + others) * 1000 * seconds)  # of two CPUs, in thousandths of a tick a CPU
        line = f"{busy} 0 0 {round(1000 * seconds) - busy} 0 0 0 0"
        machine.stat(cpus={1: f"{round(1000 * seconds)} 0 0 0 0 0 0 0", 2: line, 3: line})
        machine.cpu("n1", own * 2 * seconds)
        machine.cgroup_psi("n1", round(pressure * seconds * 1e6))
        reading = meters.sample(10.0 + seconds).readings["cpu"]
    assert reading.usage == pytest.approx(expected, abs=0.01)


def test_a_full_node_is_full_though_its_counters_are_read_late_and_others_come_and_go(tmp_path):
    machine = Machine(tmp_path, "hybrid")
    machine.cpuset("n1", "2")
    machine.memory("n1", 1)
    meters = sampler(machine, cgroup="n1", memory=GIB)
    usages, own = [], 0.0
    for step in range(200):
        seconds = step / 10 + (step * 7 % 10) / 250  # the agent itself waits for the CPU, up to 36 ms
        own += 0.1 * (step * 3 % 5) / 4  # from nothing to all of a sample
        ticks = round(1000 * seconds)
        machine.stat(cpus={2: f"{ticks} 0 0 0 0 0 0 0"})
        machine.cpu("n1", own)
        machine.cgroup_psi("n1", round(seconds * 1e6))
        usages.append(meters.sample(10.0 + step / 10).readings["cpu"].usage)
    assert sum(usages[2:]) / len(usages[2:]) > 0.99


SHARED = {
    "another node on the same CPUs": ("n2", "1-2", "kubepods", {"SharedCPUs"}),
    "another node on other CPUs": ("n2", "2-3", "kubepods", set()),
    "something that is no node": ("system.slice", "0-3", None, set()),
}


@pytest.mark.parametrize(("sibling", "cpus", "kubepods", "said"), SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize("layout", ["hybrid", "v2"])
def test_cpus_shared_with_another_node_are_reported(tmp_path, layout, sibling, cpus, kubepods, said):
    machine = Machine(tmp_path, layout)
    for name, own in (("n1", "0-1"), (sibling, cpus)):
        machine.cpuset(name, own)
        machine.cpu(name, 1.0)
        machine.cgroup_psi(name, 0)
        machine.memory(name, 1)
    machine.cpu("n1/kubepods", 0.0)
    if kubepods:
        machine.cpu(f"{sibling}/{kubepods}", 0.0)
    assert reasons(sampler(machine, cgroup="n1", memory=GIB).sample(10.0)) == said


def test_a_neighbour_that_comes_later_or_new_cpus_of_our_own_are_seen(tmp_path):
    machine = Machine(tmp_path, "v2")
    for name, cpus in (("n1", "0"), ("n2", "1-2")):
        machine.cpuset(name, cpus)
        machine.cpu(name, 1.0)
        machine.cgroup_psi(name, 0)
        machine.memory(name, 1)
    machine.cpu("n1/kubepods", 0.0)
    meters = sampler(machine, cgroup="n1", memory=GIB)
    assert reasons(meters.sample(10.0)) == set()
    machine.cpu("n2/kubepods", 0.0)
    machine.cpuset("n2", "0-1")
    assert reasons([meters.sample(10.0 + second) for second in range(1, 11)][-1]) == {"SharedCPUs"}, "every ten seconds"
    machine.cpuset("n1", "2-3")
    assert reasons(meters.sample(21.0)) == set(), "at once"


def test_io_is_the_machines_io_pressure(tmp_path):
    machine = Machine(tmp_path)
    machine.psi(0, "io")
    meters = sampler(machine, resources=["io"])
    meters.sample(10.0)
    machine.psi(20_000, "io")
    assert meters.sample(10.1).readings["io"].usage == pytest.approx(0.2)


def interface(machine: Machine, name: str, speed: str, received: int, sent: int, physical: bool = True) -> None:
    directory = machine.sys / "class/net" / name
    write(directory / "speed", speed)
    write(directory / "statistics/rx_bytes", f"{received}\n")
    write(directory / "statistics/tx_bytes", f"{sent}\n")
    if physical:
        (directory / "device").mkdir(exist_ok=True)


def test_network_is_the_busiest_direction_of_the_busiest_physical_interface(tmp_path):
    machine = Machine(tmp_path)
    interface(machine, "eth0", "1000", 0, 0)
    interface(machine, "eth1", "10000", 0, 0)
    interface(machine, "veth1", "10", 0, 0, physical=False)
    meters = sampler(machine, resources=["network"])
    meters.sample(10.0)
    interface(machine, "eth0", "1000", 1_000_000, 2_500_000)  # in 0.1 s: 80 and 200 Mbit/s
    interface(machine, "eth1", "10000", 12_500_000, 0)  # 1 Gbit/s of 10
    interface(machine, "veth1", "10", 10**9, 10**9, physical=False)
    assert meters.sample(10.1).readings["network"].usage == pytest.approx(0.2)


@pytest.mark.parametrize("speed", ["-1", "", "unknown"])
def test_network_without_a_known_speed_is_not_measured(tmp_path, speed):
    machine = Machine(tmp_path)
    interface(machine, "eth0", speed, 0, 0)
    meters = sampler(machine, resources=["network"])
    meters.sample(10.0)
    sample = meters.sample(10.1)
    assert math.isnan(sample.readings["network"].usage)
    assert "NetworkSpeedUnknown" in reasons(sample)


GAUGES = {
    "a number": ("0.25\n", 0.25, set()),
    "the bounds are inside": ("1", 1.0, set()),
    "more than the whole": ("1.5", math.nan, {"InvalidGauge"}),
    "negative": ("-0.1", math.nan, {"InvalidGauge"}),
    "not a number": ("nan", math.nan, {"InvalidGauge"}),
    "words": ("half", math.nan, {"InvalidGauge"}),
    "no file": (None, math.nan, {"InvalidGauge"}),
}


@pytest.mark.parametrize(("text", "value", "said"), GAUGES.values(), ids=GAUGES.keys())
def test_gauge(tmp_path, text, value, said):
    machine = Machine(tmp_path)
    path = tmp_path / "gpu"
    if text is not None:
        path.write_text(text)
    meters = sampler(machine, resources=["gpu"], gauges=[{"name": "gpu", "path": str(path)}])
    sample = meters.sample(10.0)
    assert sample.readings["gpu"].usage == pytest.approx(value, nan_ok=True)
    assert reasons(sample) - {"NoPodCgroups"} == said


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(2**40)


@pytest.mark.parametrize("put", [fifo, endless, huge, Path.mkdir])
def test_whatever_is_put_in_the_place_of_a_gauge_holds_up_nothing_and_fills_no_memory(tmp_path, put):
    machine, path = Machine(tmp_path), tmp_path / "gauge"
    put(path)
    meters = sampler(machine, resources=["cpu", "gpu"], gauges=[{"name": "gpu", "path": str(path)}])
    done = threading.Event()
    threading.Thread(target=lambda: (meters.sample(0.0), done.set()), daemon=True).start()
    assert done.wait(10), "the sampler hangs"
    sample = meters.sample(0.1)
    assert math.isnan(sample.readings["gpu"].usage)
    assert "InvalidGauge" in reasons(sample)


def test_running_tasks_of_a_machine_with_thousands_of_cpus_are_read(tmp_path):
    """The list of CPUs and that of interrupts come before them, and may have hundreds of kilobytes."""
    machine = Machine(tmp_path, cpus="0-4095")
    meters = sampler(machine)
    for time_, busy in ((0.0, 1000), (1.0, 1900)):
        line = f"{busy} 0 12345678 {2000 - busy} 0 0 12345678 0"
        machine.stat(line, dict.fromkeys(range(4096), line), running=4097)
        sample = meters.sample(time_)
    assert (machine.proc / "stat").stat().st_size > 2**17
    assert sample.readings["cpu"].runnable == 1.0
    assert sample.readings["cpu"].utilisation == pytest.approx(1.0)


def test_times_of_the_last_cpus_of_a_large_machine_are_read(tmp_path):
    file = KeptFile(tmp_path / "stat")
    for ticks in (1, 7):
        lines = (f"cpu{n} {ticks} 0 0 0 0 0 0 123456789\n" for n in range(4096))
        write(Path(file.path), "cpu  0 0 0 0 0 0 0 0\n" + "".join(lines))
        assert parse_cpu_times(file.read(), frozenset({4095})) == (ticks, 0, 0, 0, 0, 0, 0, 123456789)


def test_a_gauge_that_was_replaced_as_a_whole_is_read_anew(tmp_path):
    machine = Machine(tmp_path)
    path = tmp_path / "gpu"
    path.write_text("0.25")
    meters = sampler(machine, resources=["gpu"], gauges=[{"name": "gpu", "path": str(path)}])
    meters.sample(10.0)
    (tmp_path / "new").write_text("0.75")
    (tmp_path / "new").rename(path)
    assert meters.sample(10.1).readings["gpu"].usage == 0.75


def test_a_resource_that_nothing_measures_is_reported(tmp_path):
    spec = CapacitySettings(resources=("gpu",), gauges=(Gauge("disk", "/x"),))
    machine = Machine(tmp_path)
    sample = OneByOne(NodeFiles(proc=machine.proc, sys=machine.sys), spec).sample(1.0)
    assert "InvalidGauge" in reasons(sample)


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_this_machine_agrees_with_psutil():
    meters = OneByOne(NodeFiles(), CapacitySettings(resources=("cpu", "memory"), memory_formula="Available"))

    def agrees() -> bool:
        meters.sample(time.monotonic())
        before = psutil.cpu_times()
        deadline = time.monotonic() + 0.4
        while time.monotonic() < deadline:
            sum(range(1000))  # make it measurable
        sample, after, memory = meters.sample(time.monotonic()), psutil.cpu_times(), psutil.virtual_memory()
        idle = (after.idle - before.idle) + (after.iowait - before.iowait)
        fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
        busy = 1 - idle / sum(getattr(after, name) - getattr(before, name) for name in fields)
        # usage is busy * (1 + pressure) / 2 with a pressure in [0, 1], or busy where the kernel has none
        cpu = busy / 2 - 0.1 <= sample.readings["cpu"].usage <= busy + 0.1
        return cpu and abs(sample.readings["memory"].usage - (1 - memory.available / memory.total)) < 0.02

    # The two do not look at the same moment, and on a busy machine the moments may be far from each other
    assert any(agrees() for _ in range(10))


def test_samples_hold_what_the_files_held_when_they_were_taken(tmp_path):
    machine = Machine(tmp_path)
    meters = sampler(machine)
    for step, (ticks, free) in enumerate([(0, 0.5), (50, 0.25), (60, 0.75)]):
        machine.stat(f"{ticks} 0 0 {100 * step - ticks} 0 0 0 0")
        write(machine.proc / "meminfo", f"MemTotal: 1000 kB\nMemAvailable: {free * 1000:.0f} kB\n")
        meters.take(10.0 + step / 10)
    machine.stat("60 0 0 340 0 0 0 0")
    assert meters.taken == 3
    found = meters.samples()
    assert [sample.at for sample in found] == pytest.approx([10.0, 10.1, 10.2])
    assert [sample.readings["cpu"].utilisation for sample in found[1:]] == pytest.approx([0.5, 0.1])
    assert [sample.readings["memory"].usage for sample in found] == pytest.approx([0.5, 0.75, 0.25])
    assert (meters.taken, meters.samples()) == (0, [])
    assert meters.sample(10.3).readings["cpu"].utilisation == pytest.approx(0.0, abs=1e-9), "read anew"


def test_samples_belong_to_what_was_known_when_they_were_taken(tmp_path):
    machine = Machine(tmp_path, "v2", cpus="0-1")
    machine.cpu("node", 0.0)
    machine.cpuset("node", "0-1")
    meters = sampler(machine, cgroup="node")
    meters.take(10.0)
    machine.cpu("node", 0.1)
    meters.take(10.1)
    machine.cpuset("node", "0")
    machine.cpu("node", 1.0)
    meters.take(11.0)  # a second after the last look
    found = [sample.readings["cpu"].utilisation for sample in meters.samples()]
    assert found[1:] == pytest.approx([0.5, 1.0]), "one second of two CPUs, and of one"


def test_a_gauge_is_read_when_the_sample_is_taken(tmp_path):
    gauge = tmp_path / "gauge"
    spec = CapacitySettings(resources=("gpu",), gauges=(Gauge("gpu", str(gauge)),))
    machine = Machine(tmp_path)
    meters = Sampler(NodeFiles(proc=machine.proc, sys=machine.sys), spec)
    for step, text in enumerate(["0.25", "0.5"]):
        gauge.write_text(text)
        meters.take(10.0 + step / 10)
    assert [sample.readings["gpu"].usage for sample in meters.samples()] == [0.25, 0.5]
