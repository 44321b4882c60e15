import pytest

from concerto.api.selectors import LabelSelector, NodeSelector, Requirement

REQUIREMENTS = {
    "In, one of them": (Requirement("k", "In", ("a", "b")), "a", True),
    "In, none of them": (Requirement("k", "In", ("a", "b")), "c", False),
    "In, absent": (Requirement("k", "In", ("a",)), None, False),
    "NotIn, another": (Requirement("k", "NotIn", ("a",)), "b", True),
    "NotIn, absent": (Requirement("k", "NotIn", ("a",)), None, True),
    "NotIn, that one": (Requirement("k", "NotIn", ("a",)), "a", False),
    "Exists": (Requirement("k", "Exists"), "", True),
    "Exists, absent": (Requirement("k", "Exists"), None, False),
    "DoesNotExist": (Requirement("k", "DoesNotExist"), None, True),
    "DoesNotExist, present": (Requirement("k", "DoesNotExist"), "a", False),
    "Gt": (Requirement("k", "Gt", ("3",)), "4", True),
    "Gt, equal": (Requirement("k", "Gt", ("3",)), "3", False),
    "Lt, as numbers": (Requirement("k", "Lt", ("10",)), "9", True),
    "Lt, a sign, which no label value can begin with": (Requirement("k", "Lt", ("-1",)), "-2", False),
    "Gt, no number": (Requirement("k", "Gt", ("3",)), "x", False),
    "Gt, absent": (Requirement("k", "Gt", ("3",)), None, False),
    "Gt, compared with no number": (Requirement("k", "Gt", ("x",)), "4", False),
    "Gt, beyond 64 bits": (Requirement("k", "Gt", ("3",)), "9223372036854775808", False),
    "an operator unknown to us selects nothing": (Requirement("k", "Like", ("a",)), "a", False),
}


@pytest.mark.parametrize(("requirement", "value", "accepted"), REQUIREMENTS.values(), ids=REQUIREMENTS)
def test_requirements(requirement, value, accepted):
    assert requirement.accepts(value) is accepted


SELECTORS = {
    "an absent selector selects nothing": (None, {"a": "b"}, False),
    "an empty selector selects everything": ({}, {}, True),
    "labels must all match": ({"matchLabels": {"a": "1", "b": "2"}}, {"a": "1"}, False),
    "labels and expressions": (
        {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]},
        {"a": "1", "b": ""},
        True,
    ),
}


@pytest.mark.parametrize(("raw", "labels", "selected"), SELECTORS.values(), ids=SELECTORS)
def test_label_selectors(raw, labels, selected):
    assert LabelSelector.from_raw(raw).matches(labels) is selected


def expressions(*items):
    return {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in items]}


NODES = {
    "no constraint": (None, None, True),
    "node selector": ({"disk": "ssd"}, None, True),
    "node selector, another value": ({"disk": "hdd"}, None, False),
    "one term of two": (
        None,
        [expressions(("disk", "In", ["hdd"])), expressions(("zone", "Exists", []))],
        True,
    ),
    "all expressions of a term": (None, [expressions(("disk", "In", ["ssd"]), ("gpu", "Exists", []))], False),
    "selector and affinity together": ({"disk": "ssd"}, [expressions(("gpu", "Exists", []))], False),
    "by name": (None, [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}], True),
    "not by name": (None, [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}], False),
    "an empty term selects nothing": (None, [{}], False),
    "no terms select nothing": (None, [], False),
}


@pytest.mark.parametrize(("selector", "terms", "selected"), NODES.values(), ids=NODES)
def test_node_selectors(selector, terms, selected):
    required = None if terms is None else {"nodeSelectorTerms": terms}
    assert NodeSelector.from_raw(selector, required).matches("n1", {"disk": "ssd", "zone": "a"}) is selected
