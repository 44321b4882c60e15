"""`concerto classify --run` on this machine's real cpusets."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from concerto.api.cpulist import parse_cpu_list
from concerto.cli.classify import measure
from concerto.cli.main import main
from concerto.cli.timed_runs import Cpuset, CpusetError


@pytest.fixture(autouse=True)
def cpuset() -> None:
    try:
        with Cpuset() as found:
            if len(found.available()) < 2:
                pytest.skip("there is one CPU only")
    except CpusetError as error:
        pytest.skip(str(error))


def left_over() -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"**/concerto-classify-{os.getpid()}"))


def test_a_command_runs_on_the_cpus_of_its_configuration_from_its_first_instruction(tmp_path: Path):
    log = tmp_path / "log"
    script = f"grep Cpus_allowed_list /proc/self/status >>{log}; sleep 0.01"
    times = measure(["sh", "-c", script], threads=1, times=2)["sh"]
    seen = [parse_cpu_list(line.split()[1]) for line in log.read_text().splitlines()]
    different = len(seen) // 2
    assert different in (2, 3), "two runs in each configuration; packed and spread may be the same"
    assert seen[:different] == seen[different:]
    assert len(seen[0]) > 1, "vanilla may run anywhere"
    assert all(len(cpus) == 1 for cpus in seen[1:different])
    assert all(each >= 0.01 for run in times for each in run)
    assert left_over() == []


def test_it_says_where_it_measured_and_what_came_of_it(capfd: pytest.CaptureFixture[str]):
    status = main(
        ["classify", "--run", f"{sys.executable} -c pass", "--threads", "1", "--repeat", "2", "--warm-up", "1"]
    )
    out = capfd.readouterr().out.splitlines()
    assert status == 0
    assert "; 3 runs of each" in out[0]
    assert any(line.startswith(Path(sys.executable).name) for line in out)


@pytest.mark.parametrize(
    ("command", "threads", "says"),
    [("false", "1", "false ended with status 1"), ("true", "4096", "4096 threads do not fit")],
)
def test_a_failure_is_reported_and_leaves_nothing_behind(capfd: pytest.CaptureFixture[str], command, threads, says):
    assert main(["classify", "--run", command, "--threads", threads]) == 2
    assert says in capfd.readouterr().err
    assert left_over() == []
