"""An evaluation that was ended goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.test_runs import PI_2000

from concerto.api.capacity_settings import CapacitySettings
from concerto.simulation.scheduling import scenario
from concerto.simulation.scheduling.experiments import Task, tasks_of
from concerto.simulation.scheduling.kept_runs import KeptRuns, run_tasks
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import JobSpec

SETUP = Setup((NodeSpec(count=2),), (JobSpec("pi", 6, PI_2000),))
POLICIES = ("kube-scheduler@500m", "oracle")
TASKS = [Task(SETUP, policy, seed, CapacitySettings()) for policy in POLICIES for seed in (1, 2)]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path, workers=1)
    assert kept(TASKS[:2]) == run_tasks(TASKS[:2], workers=1)
    for path in files(tmp_path):
        path.write_text(json.dumps({"kept": True}))
    again = KeptRuns(tmp_path, workers=1)(TASKS)
    assert again[:2] == [{"kept": True}] * 2
    assert again[2:] == run_tasks(TASKS[2:], workers=1)
    assert len(files(tmp_path)) == len(TASKS)


def test_figures_of_other_code_and_halves_of_files_are_not_taken(tmp_path: Path) -> None:
    KeptRuns(tmp_path, workers=1)(TASKS[:1])
    (whole,) = files(tmp_path)
    whole.rename(whole.with_suffix(".17"))  # ended before it was whole
    old = tmp_path / "0123456789abcdef"
    old.mkdir()
    (old / whole.name).write_text("{}")
    assert KeptRuns(tmp_path, workers=1)(TASKS[:1]) == run_tasks(TASKS[:1], workers=1)
    assert not old.exists()


def test_each_run_of_all_scenarios_has_a_name_of_its_own() -> None:
    tasks = [task for name in scenario.built_in_names() for task in tasks_of(scenario.load(name), seeds=2)]
    names = [repr(task) for task in tasks]
    assert not [name for name in names if " at 0x" in name]
    assert len({(task.setup, task.policy, task.seed, task.capacity) for task in tasks}) == len(set(names))
