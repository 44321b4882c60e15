"""Other autoscalers of a target: a user may make thousands of them, and each asks for the others at each sync."""

from concerto.api.predictivehpa import ObjectReference
from concerto.controllers.autoscaling.target_conflicts import TargetConflicts
from support.step_counts import steps_of

WEB, DB = ObjectReference("Deployment", "web", "apps/v1"), ObjectReference("Deployment", "db", "apps/v1")


def scaler(number):
    return ("PredictiveHPA", "n", f"o{number:05}")


def conflicts(number):
    made = TargetConflicts()
    for each in range(number):
        made.put(scaler(each), WEB)
    return made


def test_the_first_others_are_named_in_order_and_the_rest_are_counted():
    made = conflicts(12)
    assert made.of(scaler(2), 3) == ([scaler(0), scaler(1), scaler(3)], 8)
    assert made.of(scaler(11), 3) == ([scaler(0), scaler(1), scaler(2)], 8)
    assert made.of(("PredictiveHPA", "n", "unknown"), 3) == ([], 0)
    made.put(scaler(0), DB)
    made.put(scaler(1), None)
    assert made.of(scaler(2), 1) == ([scaler(3)], 8)
    assert made.of(scaler(0), 3) == ([], 0)
    for each in range(12):
        made.put(scaler(each), None)
    assert not made._targets and not made._scalers


def test_to_ask_takes_no_longer_where_thousands_scale_one_target():
    few, many = conflicts(20), conflicts(5000)
    assert steps_of(lambda: many.of(scaler(3), 8)) < 1.2 * steps_of(lambda: few.of(scaler(3), 8))
