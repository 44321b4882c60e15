"""The study of load-aware scores: what it counts, and that they keep nodes cooler where requests are wrong."""

import json

import numpy as np
import pytest

from concerto.simulation.studies.load_study import POLICIES, StudySettings, bursts, main, read_trace, run

SMALL = StudySettings(nodes=8, minutes=180, pods=64)


def test_a_day_is_the_same_for_the_same_seed():
    demand = bursts(np.random.default_rng(0), 40, 240)
    figures = [run(SMALL, demand, POLICIES["TargetLoadPacking"], seed) for seed in (1, 1, 2)]
    assert figures[0] == figures[1] != figures[2]


@pytest.mark.parametrize("name", POLICIES)
def test_figures_are_what_they_can_be(name):
    figures = run(SMALL, bursts(np.random.default_rng(0), 40, 240), POLICIES[name], 0)
    assert 0 <= figures.hot_percent <= 100
    assert 0 <= figures.waiting_percent <= 100
    assert 0 < figures.spread < figures.peak


def test_a_node_on_which_nothing_wants_more_than_it_has_is_never_hot():
    figures = run(SMALL, np.full((4, 60), 0.5), POLICIES["LoadVariationRiskBalancing (KEP)"], 0)
    assert figures.hot_percent == 0


def test_a_trace_is_read_by_column_and_scaled_to_a_mean_of_one(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("sample,a,idle,b\n0,10,0,1\n1,30,0,3\n")
    demand = read_trace(file)
    assert demand.shape == (2, 10)
    assert demand[0].tolist() == demand[1].tolist() == [0.5] * 5 + [1.5] * 5


def test_the_command_reports_each_policy(tmp_path, capsys):
    out = tmp_path / "out" / "figures.json"
    assert main(["--seeds", "1", "--wrong-by", "2", "--minutes", "70", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in POLICIES)
    assert set(json.loads(out.read_text())["requests wrong by up to x2"]) == set(POLICIES)
