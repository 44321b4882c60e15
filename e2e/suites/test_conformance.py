"""`make conformance`: what Ginkgo's reports say of a test, and what is printed."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from e2e.conformance.program import SchedulerTests
from e2e.conformance.report import Outcome, names_of, outcome_of, reason_to_leave_out, summary, table

NAME = "[sig-scheduling] SchedulerPredicates [Serial] validates limits"


def a_spec(state: str, message: str = "", *, node: str = "It", text: str = "validates limits") -> dict[str, Any]:
    spec: dict[str, Any] = {
        "ContainerHierarchyTexts": ["[sig-scheduling] SchedulerPredicates [Serial]"] if node == "It" else None,
        "LeafNodeType": node,
        "LeafNodeText": text if node == "It" else "",
        "State": state,
        "RunTime": 2_000_000_000,
    }
    if message:
        spec["Failure"] = {"Message": message}
    return spec


OTHER = a_spec("skipped", text="another test")
OUTCOMES: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "it has passed": ([OTHER, a_spec("passed")], "passed", ""),
    "it has failed": ([OTHER, a_spec("failed", "pod is not running")], "failed", "pod is not running"),
    "it has taken too long": ([a_spec("timedout")], "failed", "timedout"),
    "it has skipped itself": ([a_spec("skipped", "only one zone")], "skipped", "only one zone"),
    "what comes before all tests has failed": (
        [a_spec("failed", "no nodes", node="SynchronizedBeforeSuite"), a_spec("skipped")],
        "failed",
        "no nodes",
    ),
    "what comes after it has failed": (
        [a_spec("passed"), a_spec("failed", "namespace left", node="SynchronizedAfterSuite")],
        "failed",
        "namespace left",
    ),
    "it is not there": ([OTHER], "failed", "the report does not name the test"),
}


@pytest.mark.parametrize(("specs", "state", "why"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_the_outcome_of_a_test(specs: list[dict[str, Any]], state: str, why: str) -> None:
    outcome = outcome_of([{"SpecReports": specs}], NAME)
    assert (outcome.name, outcome.state, outcome.why) == (NAME, state, why)


def test_a_dry_run_names_the_tests_that_would_run() -> None:
    specs = [a_spec("passed", node="SynchronizedBeforeSuite"), a_spec("passed"), OTHER]
    assert names_of([{"SpecReports": specs}, {"SpecReports": None}]) == [NAME]


def test_tests_are_left_out_by_how_their_names_begin() -> None:
    reasons = {"SchedulerPredicates": "not yet"}
    assert reason_to_leave_out(NAME, reasons) == "not yet"
    assert reason_to_leave_out(NAME, {"Predicates": "not yet"}) == ""


def test_what_is_printed_names_the_reason_below_the_test() -> None:
    outcomes = [Outcome(NAME, "passed", 12.34), Outcome(NAME, "left out", why="not yet")]
    assert table(outcomes) == [
        "passed     12.3 s  SchedulerPredicates [Serial] validates limits",
        "left out           SchedulerPredicates [Serial] validates limits",
        "                   not yet",
    ]
    assert summary(outcomes, 90) == "2 tests: 1 passed, 0 failed, 0 skipped, 1 left out; 1.5 min"


E2E_TEST = """#!/bin/sh
for flag in "$@"; do case "$flag" in
  --list-images) printf 'localhost/agnhost:2\\nlocalhost/pause:3\\nlocalhost/perl:5\\nelsewhere/pause:3\\n'; exit;;
  --ginkgo.json-report=*) report="${flag#*=}";;
  --ginkgo.focus=*) focus="${flag#*=}";;
esac; done
[ "$focus" = 'broken$' ] && { echo 'it broke'; exit 2; }
printf '%s' "$SAYS" > "$report"
exit 1
"""


@pytest.fixture
def tests(tmp_path: Path) -> SchedulerTests:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("e2e.test", E2E_TEST), ("agnhost", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return SchedulerTests(programs, tmp_path / "results")


def test_a_test_is_run_alone_and_its_report_is_read(tests: SchedulerTests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYS", json.dumps([{"SpecReports": [a_spec("failed", "no room")]}]))
    assert tests.run(NAME, Path("/kubeconfig")) == Outcome(NAME, "failed", 2.0, "no room")
    assert "it broke" in tests.run("broken", Path("/kubeconfig")).why


def test_images_are_built_under_the_names_that_tests_ask_for(tests: SchedulerTests) -> None:
    archives = tests.build_images()
    found = {}
    for archive in archives:
        with tarfile.open(archive) as tar:
            (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
            config = json.load(tar.extractfile(manifest["Config"]))  # type: ignore[arg-type]
            with tarfile.open(fileobj=tar.extractfile(manifest["Layers"][0])) as layer:
                has_agnhost = "agnhost" in layer.getnames()
        found[manifest["RepoTags"][0]] = (config["config"]["Entrypoint"][0], has_agnhost)
    assert found == {"localhost/pause:3": ("/bin/busybox", False), "localhost/agnhost:2": ("/agnhost", True)}
