"""The demo ends what it started, however it is interrupted, and nothing else."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from e2e.demo import __main__ as demo
from e2e.demo.job import ORDINARY_STEPS_PER_SECOND, SAMPLE, burn
from e2e.demo.trace import wait_seconds
from e2e.testbed import system as testbed


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "STATE", tmp_path / "state.json")
    return tmp_path / "state.json"


def test_a_second_demo_does_not_forget_the_first(state, capsys):
    state.write_text("{}")
    assert demo.demo() == 1
    assert "make demo-down" in capsys.readouterr().out
    assert state.exists()


class Part:
    """Operator or agent."""

    pid = 1

    def __init__(self, *_, **__):
        self.is_running = False

    def start(self, **_):
        self.is_running = True

    def stop(self):
        self.is_running = False

    def wait_ready(self):
        pass


class Nodes(dict):
    """Real nodes, which have been started."""

    def __iter__(self):
        return iter(self.values())

    def wait_ready(self):
        pass

    def detach(self):
        return 1


@pytest.mark.parametrize("kept", [True, False])
def test_operator_and_agents_go_on_after_a_demo_that_was_to_be_left_running(kept, tmp_path, monkeypatch):
    node = SimpleNamespace(name="n1", import_image=lambda _: None)
    monkeypatch.setattr(testbed, "RealNodes", lambda *_: nullcontext(Nodes(n1=node)))
    monkeypatch.setattr(testbed, "build_image", lambda *_: None)
    monkeypatch.setattr(testbed, "operator_process", Part)
    monkeypatch.setattr(testbed, "agent_on", Part)
    monkeypatch.setattr(testbed.System, "wait_measured", lambda _: None)
    cluster = SimpleNamespace(work_dir=tmp_path, logs=tmp_path, kubeconfig="", kubectl_path="")
    with ExitStack() as stack:
        system = stack.enter_context(testbed.real_system(cluster, print, ("n1",), outlives_us=True))
        parts = [system.operator, *system.agents.values()]
        if kept:
            demo.leave_running(stack, system)
        gc.collect()
    assert [part.is_running for part in parts] == [kept, kept]


def test_demo_down_leaves_processes_alone_that_only_have_the_number_of_one_of_ours(state, tmp_path):
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        state.write_text(json.dumps({"pids": [stranger.pid], "nodes": None, "work_dir": str(tmp_path / "gone")}))
        assert demo.down() == 0
        assert stranger.poll() is None
        assert not state.exists()
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file that is somebody else's")
def test_demo_down_does_not_trust_a_file_of_somebody_else(state):
    state.write_text(json.dumps({"pids": [], "nodes": None, "work_dir": "/"}))
    os.chown(state, 65534, 65534)
    assert demo.down() == 1
    assert Path("/").exists()


def test_pods_take_a_third_of_the_steps_where_a_step_takes_three_times_as_long():
    job = yaml.safe_load(SAMPLE.read_text())
    assert burn(ORDINARY_STEPS_PER_SECOND) == burn(3 * ORDINARY_STEPS_PER_SECOND) == job
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["command"][-1] = "sleep 2; i=0; while [ $i -lt 666667 ]; do i=$((i+1)); done"
    assert burn(ORDINARY_STEPS_PER_SECOND / 3) == job
    assert wait_seconds() == 2.0


@pytest.mark.parametrize("argument", ["up", "--help"])
def test_nothing_is_started_for_an_argument_that_there_is_not_or_for_help(argument, monkeypatch, capsys):
    monkeypatch.setattr(demo, "demo", lambda: pytest.fail("it was started"))
    monkeypatch.setattr(sys, "argv", ["demo", argument])
    with pytest.raises(SystemExit):
        demo.main()
    assert "usage: python -m e2e.demo" in "".join(capsys.readouterr())


def test_an_interruption_is_reported_in_a_line(monkeypatch, capsys):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "demo", interrupted)
    monkeypatch.setattr(sys, "argv", ["demo"])
    monkeypatch.setattr(demo.signal, "signal", lambda *_: None)
    assert demo.main() == 130
    assert "interrupted" in capsys.readouterr().out
