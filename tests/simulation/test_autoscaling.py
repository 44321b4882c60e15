"""The experiments' own parts: traffic, the modelled service, policies and statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from concerto.autoscaling.settings import Bounds
from concerto.simulation.autoscaling.evaluation import RESCALES_GOAL, Cell, Plan, cells, figures, verdict
from concerto.simulation.autoscaling.plant import Plant, PlantSettings
from concerto.simulation.autoscaling.policies import Forecasting, Foresight, Perfect, Reactive, Static
from concerto.simulation.autoscaling.run import Experiment, run
from concerto.simulation.autoscaling.statistics import holm, upper_tail
from concerto.simulation.autoscaling.statistics import tested as student
from concerto.simulation.autoscaling.traffic import PHASES, STEADY, Traffic, from_phases, from_trace


def constant(rate: float, minutes: float = 20.0) -> Traffic:
    seconds = 60.0 * minutes
    return Traffic("constant", np.array([0.0, seconds]), np.array([rate, rate]), 0.0, seconds)


@pytest.mark.parametrize(
    ("name", "seconds", "peak"),
    [("increase-decrease", 2400, 20), ("flash-crowd", 2400, 20), ("jagged-edge", 2040, 20), ("step-ladder", 1500, 19)],
)
def test_phases_are_the_seeds(name, seconds, peak):
    traffic = from_phases(name, PHASES[name])
    assert (traffic.end, traffic.rates.max(), float(traffic.rate(0.0))) == (seconds, peak, 1.0)


def test_a_trace_is_cut_scaled_and_brings_its_history(tmp_path):
    path = tmp_path / "load.csv"
    rows = [f"{1_700_000_000 + 60 * i},{10 + i % 5 if i != 7 else ''}" for i in range(5 * 1440)]
    path.write_text("timestamp,value\n" + "\n".join(rows))
    first, last = from_trace(path, hours=2, history_days=2, windows=2)
    assert first.start == 2 * 86400
    assert last.end == pytest.approx(first.times[-1])
    assert first.rates.max() == pytest.approx(20.0)
    assert np.isfinite(first.rates).all()


@pytest.mark.parametrize("utilisation", [0.3, 0.5, 0.6])
def test_a_settled_pod_is_an_m_m_1_queue(utilisation):
    settings = PlantSettings()
    plant = Plant(settings, np.full(20, 4), np.random.default_rng(1))
    rate = np.full(20, 4 * utilisation / settings.service_seconds)
    took = np.concatenate([plant.tick(rate)[0] for _ in range(400)][40:], axis=1)
    p95 = np.nanquantile(took, 0.95) / settings.unloaded_p95_seconds
    assert p95 == pytest.approx(1 / (1 - utilisation), rel=0.06)
    assert np.nansum(plant.cpu_readings(), axis=1).mean() == pytest.approx(4 * 0.1 * utilisation, rel=0.2)


def test_pods_take_their_time_to_start_and_the_unready_go_first():
    plant = Plant(PlantSettings(startup_seconds=60, startup_spread=0), np.array([2]), np.random.default_rng(1))
    plant.scale(0, 5)
    assert (plant.replicas()[0], plant.ready.sum()) == (5, 2)
    plant.scale(0, 4)
    assert plant.ready.sum() == 2
    for _ in range(13):
        plant.tick(np.array([1.0]))
    assert plant.ready.sum() == 4


def test_what_is_decided_for_one_replicate_changes_nothing_for_the_others():
    """Two policies had shown differences that were those of their random numbers."""
    plants = [Plant(PlantSettings(), np.array([2, 2]), np.random.default_rng(1)) for _ in range(2)]
    plants[0].scale(0, 9)
    for _ in range(60):
        some, other = (plant.tick(np.array([6.0, 6.0]))[0] for plant in plants)
        assert np.array_equal(some[1], other[1], equal_nan=True)
        assert np.array_equal(np.isfinite(some), np.isfinite(other)), "and its own requests are the same"


def test_a_service_without_ready_pods_or_load_does_not_fail():
    plant = Plant(PlantSettings(), np.array([0]), np.random.default_rng(1))
    latency, used, existing = plant.tick(np.array([5.0]))
    assert np.isnan(latency).all()
    assert used[0] == existing[0] == 0


def steady(rate: float, policy: Reactive, seeds: int = 6):
    return run(Experiment((constant(rate),) * seeds, PlantSettings(startup_seconds=30.0), bounds=Bounds(40)), policy)


@pytest.mark.parametrize("policy", [Static(), Reactive(), Forecasting(), Perfect()], ids=lambda p: p.name)
def test_a_steady_load_violates_next_to_nothing_and_costs_what_it_needs(policy):
    result = steady(10.0, policy)
    assert result.violations.mean() <= 0.1 * result.p95.shape[1]
    assert 4.9 <= result.pods.mean() <= 7.0


@pytest.mark.parametrize("startup", [30.0, 300.0])
def test_replicas_of_a_steady_load_change_hardly_more_often_than_with_hpa_v2(startup):
    """With days of history and without; `concerto evaluate-autoscaling` has the goal at all start-up times."""
    traffics = tuple(replace(t, end=t.start + 1800.0) for t in STEADY.values() for _ in range(3))
    experiment = Experiment(traffics, PlantSettings(startup_seconds=startup))
    ours, theirs = (run(experiment, policy).rescales.sum() for policy in (Forecasting(), Reactive()))
    assert ours <= RESCALES_GOAL * theirs


def test_runs_are_the_same_for_the_same_seed():
    first, second = steady(8.0, Forecasting()), steady(8.0, Forecasting())
    np.testing.assert_array_equal(first.pods, second.pods)
    np.testing.assert_array_equal(first.mean, second.mean)


def test_a_rise_is_met_earlier_by_a_forecast_and_earliest_by_one_that_knows():
    plan = Plan(seeds=4, startups=(135.0,), patterns=("increase-decrease",))
    (cell,) = cells(plan, lambda: [Reactive(), Forecasting(), Perfect()])
    hpa, auto, perfect = (cell.results[n].violations.mean() for n in ("HPA v2", "Auto", "perfect forecast"))
    assert perfect <= auto < 0.5 * hpa
    table = figures(cell)
    assert table["HPA v2"]["violationsRatio"] == 1.0
    assert table["perfect forecast"]["pBetter"] < 0.05
    judged = verdict([cell], "perfect forecast")
    assert judged.worse == []
    assert [m for m in judged.short if m.violations > 0.5 or m.pod_minutes > 1.1] == [], "it may rescale often"


@pytest.mark.parametrize("startup", [30.0, 300.0])
def test_who_knows_the_next_five_minutes_needs_fewer_pods_and_violates_less(startup):
    """Also where pods take five minutes to start. A bound that forecasts could exceed would be none."""
    plan = Plan(seeds=4, startups=(startup,), patterns=("jagged-edge",))
    (cell,) = cells(plan, lambda: [Reactive(), Forecasting(), Foresight()])
    table = figures(cell)
    assert table["next 5 minutes known"]["violationsRatio"] < min(0.5, table["Auto"]["violationsRatio"] + 0.05)
    assert table["next 5 minutes known"]["podMinutesRatio"] < 1.0


def test_only_cells_with_a_goal_are_judged():
    assert not Cell("x", 5.0, 0.0).counts
    assert Cell("x", 30.0, 60.0).counts
    assert not Cell("five-minute trace", 30.0, 300.0).counts


@pytest.mark.parametrize(("t", "degrees"), [(0.0, 5), (1.3, 19), (2.5, 3), (-2.0, 19), (6.0, 19)])
def test_the_tail_of_student(t, degrees):
    assert upper_tail(t, degrees) == pytest.approx(stats.t.sf(t, degrees), rel=1e-9)


def test_paired_differences_are_tested_by_their_standard_error():
    values = np.array([0.1, 0.3, 0.2, 0.25, 0.05])
    got, want = student(values), stats.ttest_1samp(values, 0, alternative="greater")
    assert got.p_better == pytest.approx(want.pvalue)
    assert got.p_worse == pytest.approx(1 - want.pvalue)
    assert student(np.zeros(5)).p_better == 1.0


def test_holms_correction():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
