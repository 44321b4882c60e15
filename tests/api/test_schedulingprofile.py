from pathlib import Path

import yaml

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.profile import Profile
from concerto.scheduling.registry import FILTERS, SCORES

CRD = Path(__file__).parents[2] / "crds" / "schedulingprofiles.yaml"


def spec_schema():
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema["properties"]["spec"]["properties"]


def test_what_is_left_out_takes_the_default_of_the_crd():
    schema = spec_schema()
    defaults = {name: field["default"] for name, field in schema.items() if "default" in field}
    defaults["reservations"] = {n: f["default"] for n, f in schema["reservations"]["properties"].items()}
    assert ProfileSettings.from_raw({"schedulerName": "x"}) == ProfileSettings.from_raw(
        {"schedulerName": "x"} | defaults
    )
    assert ProfileSettings.from_raw({"schedulerName": "x"}) == ProfileSettings("x")


def test_the_crd_knows_the_plugins_that_there_are():
    schema = spec_schema()
    assert set(schema["filters"]["items"]["properties"]["name"]["enum"]) == set(FILTERS)
    assert set(schema["scores"]["items"]["properties"]["name"]["enum"]) == set(SCORES)


def test_a_profile_has_the_plugins_that_its_spec_lists_in_that_order():
    spec = {
        "schedulerName": "x",
        "filters": [{"name": "PodCapacity"}, {"name": "NodeReady"}],
        "scores": [{"name": "Capacity", "weight": 7}],
        "metricsPolicy": "Avoid",
        "staleAfter": "90s",
        "admitFraction": "500m",
        "tieBreaking": "FirstByName",
        "reservations": {"maxUnitsPerNamespace": 5, "unboundTTL": "2m"},
    }
    made = Profile.build(ProfileSettings.from_raw(spec))
    assert [f.name for f in made.filters] == ["PodCapacity", "NodeReady"]
    assert [(s.name, w) for s, w in made.scores] == [("Capacity", 7)]
    settings = made.settings
    assert (settings.metrics_policy, settings.stale_after_seconds, settings.admit_fraction) == ("Avoid", 90.0, 0.5)
    assert (settings.max_units_per_namespace, settings.unbound_ttl_seconds) == (5, 120.0)
