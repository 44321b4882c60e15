"""KubeSchedulerConfigurations with Trimaran's arguments, as their documentation has them."""

import re

import pytest
import yaml

from concerto.api.schedulingprofile import ProfileSettings
from concerto.cli.main import main
from concerto.cli.migrate_trimaran import migrate
from concerto.scheduling.consistency import consistency_condition
from concerto.scheduling.profile import Profile
from support.crd_schemas import REPOSITORY, problems


def configuration(*plugins, disabled=("NodeResourcesBalancedAllocation", "NodeResourcesFit"), name="trimaran", **args):
    """Score plugins that are enabled, and arguments by plugin."""
    score = {"enabled": list(plugins), "disabled": [{"name": n} for n in disabled]}
    config = [{"name": plugin, "args": given} for plugin, given in args.items()]
    profile = {"schedulerName": name, "plugins": {"score": score}, "pluginConfig": config}
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    return yaml.safe_dump(head | {"leaderElection": {"leaderElect": False}, "profiles": [profile]})


def migrated(text):
    """The only profile's spec, and the notes; what is made must be valid, and usable."""
    (made,), notes = migrate(text)
    assert problems(made) == []
    Profile.build(ProfileSettings.from_raw(made["spec"]))
    return made["spec"], notes


TLP = {"name": "TargetLoadPacking"}
WATCHER = "http://127.0.0.1:2020"


def test_target_load_packing_with_a_watcher():
    args = {
        "defaultRequests": {"cpu": "2000m"},
        "defaultRequestsMultiplier": "2",
        "targetUtilization": 70,
        "watcherAddress": WATCHER,
    }
    spec, notes = migrated(configuration(TLP, TargetLoadPacking=args))
    assert spec["schedulerName"] == "trimaran"
    assert spec["scores"][0] == {
        "name": "TargetLoadPacking", "weight": 1, "targetLoadPacking": {"targetUtilization": 70},
    }  # fmt: skip
    assert {s["name"]: s["weight"] for s in spec["scores"][1:]}.items() >= {
        "TaintToleration": 3,
        "NodeAffinity": 2,
    }.items()
    assert spec["load"] == {
        "window": "15m", "requestMultiplier": "2", "defaultCPURequest": "2000m", "bestEffortCPURequest": "2000m",
    }  # fmt: skip
    assert spec["metricProvider"] == {"type": "LoadWatcher", "loadWatcher": {"address": WATCHER}}
    assert all("no counterpart" in note for note in notes)


def test_risk_balancing_and_over_commitment_with_prometheus():
    provider = {"type": "Prometheus", "address": "https://prom:9090", "token": "s3cret", "insecureSkipVerify": True}
    spec, notes = migrated(
        configuration(
            {"name": "LoadVariationRiskBalancing", "weight": 4},
            {"name": "LowRiskOverCommitment"},
            disabled=("*",),
            LoadVariationRiskBalancing={
                "metricProvider": provider, "safeVarianceMargin": 1.5, "safeVarianceSensitivity": 2,
            },
            LowRiskOverCommitment={
                "metricProvider": provider, "smoothingWindowSize": 3, "riskLimitWeights": {"cpu": 0.25, "memory": 1},
            },
        )
    )  # fmt: skip
    by_name = {score["name"]: score for score in spec["scores"]}
    assert by_name == {
        "LoadVariationRiskBalancing": {
            "name": "LoadVariationRiskBalancing",
            "weight": 4,
            "loadVariationRiskBalancing": {
                "formula": "Upstream", "safeVarianceMargin": "1.5", "safeVarianceSensitivity": "2",
            },
        },
        "LowRiskOverCommitment": {
            "name": "LowRiskOverCommitment",
            "weight": 1,
            "lowRiskOverCommitment": {"smoothingWindowSize": 3, "riskLimitWeights": {"cpu": "0.25", "memory": "1"}},
        },
    }  # fmt: skip
    prometheus = spec["metricProvider"]["prometheus"]
    assert prometheus["queries"]["cpu"]["average"] == "avg_over_time(instance:node_cpu:ratio[$window])"
    assert (prometheus["authorization"], prometheus["tls"]) == (
        {"type": "Bearer", "key": "token"}, {"insecureSkipVerify": True},
    )  # fmt: skip
    assert notes == [
        "trimaran: put the token into Secret concerto-prometheus of the operator's namespace, as key token"
    ]
    assert "s3cret" not in str(spec)


def test_scores_by_requests_are_carried_over_with_advice():
    fit = {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 2}]}}
    spec, notes = migrated(configuration(TLP, disabled=(), NodeResourcesFit=fit, TargetLoadPacking={}))
    (found,) = [score for score in spec["scores"] if score["name"] == "NodeResourcesFit"]
    assert found["nodeResourcesFit"] == {"strategy": "MostAllocated", "resources": [{"name": "cpu", "weight": 2}]}
    assert "trimaran: score NodeResourcesFit compares requests: Trimaran advises to disable it; remove it" in notes


def test_risks_beside_requests_are_as_in_upstreams_example_and_work_together():
    spec, notes = migrated(configuration({"name": "LowRiskOverCommitment"}, disabled=()))
    assert {"LowRiskOverCommitment", "NodeResourcesFit"} <= {score["name"] for score in spec["scores"]}
    assert not any("compares requests" in note for note in notes)
    assert consistency_condition(ProfileSettings.from_raw(spec)).status == "True"


OTHERS = {
    "metrics-server is the default": ({"targetUtilization": 50}, {"type": "KubernetesMetricsServer"}, ""),
    "no arguments at all": (None, {"type": "KubernetesMetricsServer"}, ""),
    "SignalFx": ({"metricProvider": {"type": "SignalFx"}}, None, "the agents measure"),
    "a token that would be sent in the clear": (
        {"metricProvider": {"type": "Prometheus", "address": "http://p", "token": "t"}}, ..., "https addresses only",
    ),
    "Prometheus at its default address": ({"metricProvider": {"type": "Prometheus"}}, ..., "load-watcher's default"),
}  # fmt: skip


@pytest.mark.parametrize(("args", "provider", "note"), OTHERS.values(), ids=OTHERS)
def test_other_sources(args, provider, note):
    spec, notes = migrated(configuration(TLP, disabled=("*",), **({"TargetLoadPacking": args} if args else {})))
    if provider is not ...:
        assert spec.get("metricProvider") == provider
    assert any(note in said for said in notes) if note else notes == []


def test_the_default_schedulers_profile_gets_another_name():
    spec, notes = migrated(configuration(TLP, name="default-scheduler"))
    assert spec["schedulerName"] == "trimaran"
    assert any("kube-scheduler has schedulerName default-scheduler" in note for note in notes)


def test_the_command_prints_profiles_and_notes(tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(configuration(TLP, {"name": "Peaks"}))
    assert main(["migrate-trimaran", str(file)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["kind"] == "SchedulingProfile"
    assert "trimaran: score Peaks has no counterpart, and is left out" in err


BAD = {
    "nothing": ("", "no object of kind KubeSchedulerConfiguration"),
    "another kind": ("kind: Pod", "no object of kind KubeSchedulerConfiguration"),
    "no plugin of Trimaran": (configuration({"name": "ImageLocality"}), "no profile enables one of TargetLoadPacking"),
    "not YAML": ("{", "expected"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_what_is_not_such_a_configuration_is_refused(text, words, tmp_path, capsys):
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert main(["migrate-trimaran", str(file)]) == 2
    assert words in capsys.readouterr().err
    assert main(["migrate-trimaran", str(tmp_path / "none.yaml")]) == 2


def test_the_page_has_a_row_for_each_argument():
    page = (REPOSITORY / "docs" / "load-aware.md").read_text()
    section = page.partition("\n## Coming from Trimaran\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)", section, re.MULTILINE))
    assert named >= {
        "targetUtilization", "defaultRequests", "defaultRequestsMultiplier", "safeVarianceMargin", "watcherAddress",
        "safeVarianceSensitivity", "smoothingWindowSize", "riskLimitWeights", "metricProvider",
    }  # fmt: skip
