"""The command line: what is called by two words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from concerto.cli.main import main


def test_simulate_autoscale_is_the_autoscalers_own_command(capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "autoscale", "--seeds", "1"])
    assert "is not a whole number from 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", "autoscale", "--help"])
    assert "--plots" in capsys.readouterr().out


def test_simulate_itself_runs_scenarios(capsys):
    assert main(["simulate", "--list"]) == 0
    assert "pi-2000" in capsys.readouterr().out


def test_who_reads_only_the_first_lines_sees_no_traceback():
    reported = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m concerto.cli.main simulate --list | head -1"],
        capture_output=True,
        text=True,
    )
    assert (reported.stdout.count("\n"), reported.stderr) == (1, "")


def test_a_simulation_that_could_not_show_its_results_is_not_begun(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "meta_path", [])
    monkeypatch.delitem(sys.modules, "rich")
    assert main(["simulate", "pi-2000"]) == 2
    assert "needs rich: pip install '.[plots]' in Concerto's folder" in capsys.readouterr().err
