from concerto.scheduling.plugins.unsupported_constraints.filter import UnsupportedConstraints
from support.scheduling_builders import cluster_state, node, passes, pod, query, reasons


def test_a_pod_with_a_constraint_that_is_not_evaluated_goes_nowhere_and_gets_an_event_that_names_it():
    both = {"workloadRef": {"name": "w", "podGroup": "g"}, "resourceClaims": [{"name": "gpu"}]}
    asked = query(cluster_state([node("a"), node("b")]), pod(**both))
    assert passes(UnsupportedConstraints(), asked) == []
    assert reasons(UnsupportedConstraints(), asked) == {
        "pod has workload reference, which Concerto does not evaluate": 2,
        "pod has resource claims, which Concerto does not evaluate": 2,
    }
    assert passes(UnsupportedConstraints(), query(cluster_state([node("a")]), pod())) == ["a"]
