from dataclasses import replace

import numpy as np
import pytest

from concerto.autoscaling.decision import Floor
from concerto.autoscaling.forecast_influence import ActionSettings
from concerto.cli.evaluate_autoscaling import trial_of
from concerto.cli.main import main
from concerto.simulation.autoscaling.cross_validation import (
    Totals,
    Trial,
    candidates,
    cross_validate,
    judge,
    measure,
    total,
)
from concerto.simulation.autoscaling.evaluation import Plan
from concerto.simulation.autoscaling.families import FAMILIES, member
from concerto.simulation.autoscaling.policies import Reactive
from concerto.simulation.autoscaling.traffic import PHASES, STEADY

CALM, EAGER = ActionSettings(), replace(ActionSettings(), min_rise=0.5)
REFERENCE = {name: Totals(9.0, 100.0, 9.0) for name in ("a", "b", "c")}


def test_a_family_is_judged_with_what_the_others_choose():
    measured = {
        CALM: {"a": Totals(0.0, 100.0, 9.0), "b": Totals(5.0, 100.0, 9.0), "c": Totals(5.0, 100.0, 9.0)},
        EAGER: {"a": Totals(9.0, 100.0, 9.0), "b": Totals(3.0, 100.0, 9.0), "c": Totals(3.0, 100.0, 9.0)},
    }
    folds, chosen = cross_validate(REFERENCE, measured)
    assert {fold.family: fold.chosen for fold in folds} == {"a": EAGER, "b": CALM, "c": CALM}
    assert chosen == CALM
    assert total(folds) == (Totals(19.0, 300.0, 27.0), Totals(27.0, 300.0, 27.0))


COSTS = {
    "pods": Totals(3.0, 130.0, 9.0),
    "rescales": Totals(3.0, 100.0, 30.0),
}


@pytest.mark.parametrize("costly", COSTS.values(), ids=COSTS)
def test_fewer_violations_are_not_bought_at_any_cost(costly):
    measured = {CALM: dict.fromkeys(REFERENCE, Totals(5.0, 100.0, 9.0)), EAGER: dict.fromkeys(REFERENCE, costly)}
    assert cross_validate(REFERENCE, measured)[1] == CALM


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_is_the_same_each_time_and_differs_from_the_next(family):
    first, again, second = (member(family, number, seconds=600.0) for number in (1, 1, 2))
    np.testing.assert_array_equal(first.rates, again.rates)
    assert not np.array_equal(first.rates, second.rates)
    assert (first.end - first.start, first.start >= 3 * 86400.0) == (600.0, True)
    assert np.isfinite(first.rates).all() and first.rates.min() > 0


def test_every_family_is_measured():
    totals = measure(Trial((30.0,), 1, 120.0), Reactive())
    assert set(totals) == {*PHASES, *STEADY, *FAMILIES}
    assert all(t.pod_minutes > 0 for t in totals.values())


def test_a_policy_is_judged_by_family_beside_hpa_v2():
    trial = Trial((30.0,), 2, 120.0)
    judged = {each.family: each for each in judge(trial, Reactive())}
    assert set(judged) == {*PHASES, *STEADY, *FAMILIES}
    for each in judged.values():
        assert each.ours == each.reference
        assert (each.z_sum.mean, each.worse, each.worse_violations) == (0.0, False, False)


def test_who_wastes_pods_has_less_eru_and_qos():
    class Wasteful(Reactive):
        def floors(self, sync):
            return [Floor(40, "all", replaces=True)] * len(sync.current)

    flat = {each.family: each for each in judge(Trial((5.0,), 2, 120.0), Wasteful())}["flat"]
    assert flat.ours.pod_minutes > 1.5 * flat.reference.pod_minutes
    assert flat.z_sum.mean < 0.0


def test_the_settings_in_use_are_among_those_that_are_tried():
    assert ActionSettings() in candidates()


def test_families_have_as_many_members_as_are_asked_for_and_folds_at_most_so_many():
    """Of 16 windows of a trace, the first four had been run, and of 8 seeds four."""
    windows = tuple(replace(STEADY["steady"], name="trace") for _ in range(16))
    plan = Plan(seeds=8, startups=(5.0, 135.0))
    whole, fold = trial_of(plan, [windows]), trial_of(plan, [windows], 4)
    assert (whole.members, len(whole.traces["trace"]), whole.startups) == (8, 16, (135.0,))
    assert (fold.members, len(fold.traces["trace"])) == (4, 4)


def test_families_are_shown_under_the_policy_that_is_asked_for(tmp_path, capsys):
    options = ["--seeds", "2", "--startup", "30", "--policy", "static", "--output", str(tmp_path)]
    assert main(["evaluate-autoscaling", "--families", *options]) == 0
    said = capsys.readouterr().out
    assert "static; start-up 30 s" in said
    assert sum(line.startswith("  flat ") for line in said.splitlines()) == 1
