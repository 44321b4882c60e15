"""The command line: what is called by two words."""

from __future__ import annotations

import pytest

from concerto.cli import main


def test_simulate_autoscale_is_the_autoscalers_own_command(capsys):
    assert main(["simulate", "autoscale", "--seeds", "1"]) == 2
    assert "at least 2" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", "autoscale", "--help"])
    assert "--plots" in capsys.readouterr().out


def test_simulate_itself_runs_scenarios(capsys):
    assert main(["simulate", "--list"]) == 0
    assert "pi-2000" in capsys.readouterr().out
