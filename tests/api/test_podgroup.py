from concerto.api.podgroup import PodGroup, trim_pod_group
from support.gang_builders import group, raw_group

TRUE = {"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled", "message": "m"}


def test_a_gang_has_a_number_of_pods_and_a_basic_group_has_none():
    assert (group("g", 6).min_count, group("g", None).min_count) == (6, 0)
    assert group("g", 6).key == ("default", "g")
    assert group("g", 6, priority=7).priority == 7
    assert group("g", 6).priority is None


def test_what_concerto_does_not_evaluate_is_named_by_its_field():
    found = group(
        "g", 2, schedulingConstraints={"topology": [{"key": "zone"}]}, parentCompositePodGroupName="p",
        resourceClaims=[{"name": "c"}],
    )  # fmt: skip
    assert found.unsupported == (
        "schedulingConstraints", "parentCompositePodGroupName", "resourceClaims",
    )  # fmt: skip
    assert group("g", 2, schedulingConstraints={}).unsupported == ()
    assert group("g", 2, schedulingPolicy={"hybrid": {}}).unsupported == ("schedulingPolicy",)


def test_its_condition_is_read():
    other = {"type": "DisruptionTarget", "status": "False", "reason": "r", "message": ""}
    assert group("g", 2, conditions=[other, TRUE]).scheduled == ("True", "Scheduled", "m")
    assert group("g", 2, conditions=[other]).scheduled == ("", "", "")


def test_a_trimmed_group_reads_the_same():
    raw = raw_group(
        "g", 3, priority=5, conditions=[TRUE, {"type": "Other", "status": "True"}], disruptionMode={"all": {}}
    )
    trimmed = trim_pod_group(raw | {"metadata": raw["metadata"] | {"annotations": {"a": "b" * 1000}}})
    assert PodGroup.from_raw(trimmed) == PodGroup.from_raw(raw)
    assert "annotations" not in trimmed["metadata"]
    assert PodGroup.from_raw(trimmed).disrupted_as_a_whole
    assert [c["type"] for c in trimmed["status"]["conditions"]] == ["PodGroupInitiallyScheduled"]
