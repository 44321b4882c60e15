"""The command line: what is called by two words, and what its help says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from argparse import SUPPRESS, ArgumentParser

import pytest

from concerto.cli.main import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_states_the_default_of_each_option_that_has_one(command):
    parser = ArgumentParser()
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    with_default = [a for a in parser._actions if a.default not in (None, False, [], SUPPRESS)]
    assert [a.dest for a in with_default if "default" not in (a.help or "")] == []
    assert parser.format_help()


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
