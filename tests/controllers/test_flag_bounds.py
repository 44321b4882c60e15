"""Durations and numbers that operator and agent cannot run with are refused at once, with what to write instead."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import pytest

from concerto.controllers import operator
from concerto.controllers.autoscaling.flags import settings_from
from concerto_agent import main as agent

HUGE = "9" * 400


def parsed(*arguments: str) -> Namespace:
    parser = ArgumentParser()
    operator.add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("value", ["0s", "-5s", "15", "1ms", "61m", f"{HUGE}h", "often", ""])
def test_a_sync_period_that_no_autoscaler_can_keep_is_refused(value, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(f"--autoscaling-sync-period={value}")
    assert ended.value.code == 2
    assert f"{value!r} is not a duration from 1s to 1h: write for example 15s" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--autoscaling-downscale-stabilization=61m", "is not a duration from 0s to 1h: write for example 300s"),
        ("--autoscaling-cpu-initialization-period=25h", "is not a duration from 0s to 24h: write for example 300s"),
        ("--autoscaling-initial-readiness-delay=-1s", "is not a duration from 0s to 24h: write for example 30s"),
        ("--autoscaling-tolerance=10", "is not a number from 0 to 1: write for example 0.1"),
        ("--autoscaling-tolerance=-0.1", "is not a number from 0 to 1: write for example 0.1"),
        ("--autoscaling-tolerance=nan", "is not a number from 0 to 1: write for example 0.1"),
        ("--autoscaling-max-series=-1", "is not a whole number from 0 to 100000: write for example 500"),
        ("--autoscaling-max-series=1e9", "is not a whole number from 0 to 100000: write for example 500"),
        (f"--autoscaling-max-series={HUGE * 20}", "is not a whole number from 0 to 100000: write for example 500"),
        ("--leader-elect-lease-duration=0s", "is not a duration from 1s to 1h: write for example 15s"),
        (f"--leader-elect-lease-duration={HUGE}s", "is not a duration from 1s to 1h: write for example 15s"),
        ("--leader-elect-lease-duration=3500ms", "is not a duration in whole seconds: write for example 15s"),
        ("--leader-elect-renew-deadline=10", "is not a duration from 100ms to 1h: write for example 10s"),
        ("--leader-elect-retry-period=0s", "is not a duration from 100ms to 1h: write for example 2s"),
    ],
)
def test_a_value_outside_of_its_bounds_is_refused(argument, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed(argument)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("written", ["debug", "DEBUG", "Debug"])
@pytest.mark.parametrize("program", [(operator, []), (agent, ["--node-name=n"])], ids=["operator", "agent"])
def test_operator_and_agent_take_the_same_log_levels_in_any_letters(program, written):
    module, needed = program
    parser = ArgumentParser()
    module.add_arguments(parser)
    args = parser.parse_args([*needed, f"--log-level={written}"])
    assert args.log_level == "DEBUG"


def test_values_at_their_bounds_are_taken():
    args = parsed(
        "--autoscaling-sync-period=1s",
        "--autoscaling-downscale-stabilization=0s",
        "--autoscaling-tolerance=0",
        "--autoscaling-max-series=0",
    )
    settings = settings_from(args)
    assert (settings.controller.sync_seconds, settings.controller.downscale_stabilization_seconds) == (1.0, 0.0)
    assert (settings.controller.tolerance, settings.max_series) == (0.0, 0)
    assert settings_from(parsed()).controller.sync_seconds == 15.0


def test_durations_of_an_election_in_the_wrong_order_are_named(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(operator, "load_config", lambda *_: None)
    assert operator.run(parsed("--leader-elect-renew-deadline=20s")) == 2
    assert capsys.readouterr().err == (
        "concerto operator: --leader-elect-retry-period (2 s) has to be shorter than --leader-elect-renew-deadline "
        "(20 s), and that shorter than --leader-elect-lease-duration (15 s)\n"
    )
