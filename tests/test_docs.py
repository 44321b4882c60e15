"""The documentation says what is so: generated pages are current, and links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import tomllib
from argparse import ArgumentParser

import pytest
import yaml

from concerto.api.podcpubinding import PodCPUBinding
from concerto.autoscaling.forecast_influence import ROOM_SECONDS, ActionSettings
from concerto.autoscaling.forecast_settings import ForecastSettings
from concerto.autoscaling.settings import ControllerSettings
from concerto.cli.main import COMMANDS
from concerto.cli.top import table
from concerto.pinning.validation import judge_unplaced
from support.crd_schemas import CRDS, REPOSITORY, fields, structural_schema

FILE = r"(operator|agent|e2e|tests|manifests|docs|crds|concerto|concerto_agent)/[\w./*-]+"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def test_the_reference_is_what_the_crds_say():
    spec = importlib.util.spec_from_file_location("reference", REPOSITORY / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert reference.PAGE.read_text() == reference.page(), "run `python docs/reference.py`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    targets = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)}
    local = {target for target in targets if target and "://" not in target}
    assert [target for target in sorted(local) if not (page.parent / target).exists()] == []


def slugs(page):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h).strip().lower() for h in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_a_page_find_their_heading(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link.partition("#") for link in re.findall(r"\]\(([^)\s]+#[^)\s]+)\)", text) if "://" not in link]
    wrong = [(to, anchor) for to, _, anchor in links if anchor not in slugs(page.parent / to if to else page)]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_a_page_names_are_there(page):
    targets = set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    # in a code block at the beginning of a line, or as a code span
    named = re.findall(r"(?:^    |`)(?:\$ )?((?:make|concerto) [a-z][a-z0-9-]*)", page.read_text(), re.MULTILINE)
    known = {f"make {target}" for target in targets} | {f"concerto {command}" for command in COMMANDS}
    assert set(named) <= known


def options(command):
    """The options of a subcommand of `concerto`."""
    parser = ArgumentParser(prog=command)
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    return set(parser._option_string_actions)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_with_their_command_are_there(page):
    # up to the end of the code, of the line, or of a comment's beginning
    named = re.findall(rf"\bconcerto ({'|'.join(COMMANDS)})\b([^`|#\n]*)", page.read_text())
    given = {(command, option) for command, rest in named for option in re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", rest)}
    assert {(command, option) for command, option in given if option not in options(command)} == set()


OPTIONS_OF_OTHERS = {"--runtime-config"}
"""Of kube-apiserver."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_that_a_page_names_by_themselves_are_those_of_some_program_of_ours(page):
    sources = [path for folder in ("operator", "agent", "e2e", "docs") for path in (REPOSITORY / folder).rglob("*.py")]
    ours = {option for command in COMMANDS for option in options(command)}
    ours |= {option for path in sources for option in re.findall(r'"(--[a-z][a-z-]*)"', path.read_text())}
    named = {option for span in spans(page) for option in re.findall(r"^(--[a-z][a-z-]*)", span)}
    assert named - ours - OPTIONS_OF_OTHERS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_runs_are_there(page):
    named = set(re.findall(r"python -m ([\w.]+)", page.read_text())) - {"pytest"}
    assert {name for name in named if importlib.util.find_spec(name) is None} == set()


def reasons(page):
    """What tables have in columns that are headed as reasons, as far as it is nothing but words in CamelCase."""
    for found in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in found.splitlines())
        for column in (i for i, cell in enumerate(header) if re.search(r"\breason\b", cell)):
            cells = [row[column] for row in rows if re.fullmatch(r"[A-Z]\w+(?:[ ,/]+[A-Z]\w+)*", row[column])]
            yield from (word for cell in cells for word in re.findall(r"\w+", cell))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_reasons_that_a_table_explains_are_in_the_code(page):
    sources = [path for folder in ("operator", "agent") for path in (REPOSITORY / folder).rglob("*.py")]
    code = "\n".join(path.read_text() for path in sources)
    known = set(re.findall(r'"([A-Z]\w+)"', code)) | {"True", "False", "Unknown"}
    assert set(reasons(page)) - known == set()


OF_KUBERNETES = {
    "FailedScheduling",
    "Scheduled",
    "Preempted",
    "SuccessfulRescale",
    "AmbiguousSelector",
    "FailedComputeMetricsReplicas",
    "InternalError",
}
"""Events that mean what they mean in Kubernetes, or that the page on autoscaling explains."""


def test_events_of_our_own_are_explained():
    code = "\n".join(path.read_text() for path in (REPOSITORY / "operator/concerto/controllers").rglob("*.py"))
    recorded = {
        reason
        for body in re.findall(r"\.record\((.{0,400})", code, re.DOTALL)
        for reason in re.findall(r'reason="(\w+)"', body.partition("\n    def ")[0])
    }
    recorded |= set(re.findall(r'(?:warning|normal)\(\s*\w+(?:\.\w+)?, "([A-Z]\w+)"', code))
    assert {"NotObserved", "AgentMetricsUnavailable"} <= recorded
    table = (REPOSITORY / "docs/runbooks.md").read_text().partition("## Events")[2]
    explained = set(re.findall(r"\w+", " ".join(re.findall(r"^\| ([^|]+)\|", table, re.MULTILINE))))
    assert recorded - explained - OF_KUBERNETES == set()


def test_the_files_of_a_component_that_is_left_out_are_all_that_it_brings():
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    ((component, files),) = re.findall(
        r"cd manifests/components/(\w+) && kubectl delete \S+ ((?:-f \S+\s+\\?\s*)+)", text
    )
    kustomization = REPOSITORY / "manifests" / "components" / component / "kustomization.yaml"
    assert re.findall(r"-f (\S+)", files) == yaml.safe_load(kustomization.read_text())["resources"]


def test_to_go_back_to_an_earlier_version_leaves_the_newer_kinds():
    base = yaml.safe_load((REPOSITORY / "manifests" / "base" / "kustomization.yaml").read_text())
    assert "../../crds" in base["resources"], "an overlay brings kinds"
    (back,) = re.findall(
        r"^    (kubectl apply -k EARLIER-OVERLAY.*?)\s*#", (REPOSITORY / "docs/operations.md").read_text(), re.MULTILINE
    )
    assert back.endswith(" && kubectl apply -k crds")


def test_the_command_line_is_installed_with_all_that_it_needs():
    extras = set(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    (named,) = re.findall(r"pip install '\.\[([\w,]+)\]'", (REPOSITORY / "docs" / "install.md").read_text())
    assert set(named.split(",")) == extras - {"dev"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_links_the_glossary(page):
    assert "#glossary)" in page.read_text() or page.name == "CONTRIBUTING.md"


def test_the_readme_fits_two_screens_and_goes_from_what_it_is_to_how_to_install_it():
    text = (REPOSITORY / "README.md").read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert headings[:4] == ["Concerto", "Try it", "Test it", "Install it"]
    assert text[: text.index("## The kinds")].count("\n") <= 55
    assert text.count("\n") <= 110


def spans(page):
    """What a page has in code style, outside of blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_fields_that_a_page_names_are_there(page):
    known = {re.sub(r"\[\]|{}", "", path) for kind in CRDS for path, _ in fields(structural_schema(kind))}
    named = {field for span in spans(page) for field in re.findall(r"(?<![\w.])(?:spec|status)(?:\.[A-Za-z]+)+", span)}
    assert named - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metrics_that_a_page_names_are_in_the_reference(page):
    known = (REPOSITORY / "docs" / "reference.md").read_text()
    named = {metric for span in spans(page) for metric in re.findall(r"\bconcerto_(?!agent/)[a-z_]+", span)}
    assert [metric for metric in sorted(named) if metric not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    roots = [REPOSITORY, REPOSITORY / "operator", REPOSITORY / "agent"]
    named = [span for span in spans(page) if re.fullmatch(FILE, span)]
    assert [span for span in named if not any(any(root.glob(span)) for root in roots)] == []


@pytest.mark.parametrize("path", ["crds/predictivehpas.yaml", "docs/autoscaling.md", "docs/reference.md"])
def test_the_default_downscale_window_is_stated_as_it_is(path):
    action = ActionSettings()
    share, shortest, longest = 100 * action.hold_share, action.hold_min_seconds, action.hold_max_seconds
    text = " ".join((REPOSITORY / path).read_text().split())
    assert (action.min_drop_replicas, action.release_errors) == (2.0, 2.0)
    assert ControllerSettings().downscale_stabilization_seconds == 300.0
    assert f"{share:g} % of the horizon, between {shortest:g}s and {longest / 60:g}m" in text


def test_what_a_forecast_bears_and_what_a_rescale_is_worth_are_stated_as_they_are():
    action = ActionSettings()
    text = " ".join((REPOSITORY / "docs/autoscaling.md").read_text().split())
    assert f"its upper end {action.rise_room:g} tolerances above it" in text
    assert f"The {action.rise_room:g} are for a horizon of {ROOM_SECONDS:g} s" in text
    assert f"or by less than {100 * action.min_drop:g} % of them, is not worth a rescale" in text
    share = ControllerSettings().tolerance
    assert ForecastSettings().upper_room == pytest.approx(share * action.rise_room)
    assert ForecastSettings().expected_room == pytest.approx(share * action.expected_room)


def test_code_cites_sections_and_sources_that_the_references_have():
    page = (REPOSITORY / "docs" / "references.md").read_text()
    headings = set(re.findall(r"^#+ (.+)$", page, re.MULTILINE))
    sections, sources = set(), set()
    for path in (
        path for folder in ("operator", "agent", "e2e", "tests") for path in (REPOSITORY / folder).rglob("*.py")
    ):
        text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
        sections |= {(path.name, name) for name in re.findall(r'docs/references\.md, "([^"\[]+)"', text)}
        sources |= {
            (path.name, name)
            for name in re.findall(r"Source: ([A-Z]\w+), [^.(\"]*[^(\"]{0,40}\(docs/references\.md", text)
        }
    assert {(file, name) for file, name in sections | sources if name not in headings} == set()


def test_the_worked_example_of_a_filter_is_the_real_code():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    shown = text.partition("```python\n")[2].partition("```")[0]
    file = REPOSITORY / "operator/concerto/scheduling/plugins/node_unschedulable/filter.py"
    assert shown.startswith("class NodeUnschedulable")
    assert file.read_text().endswith(shown)


def test_the_filter_shown_as_an_example_is_the_real_one():
    page = (REPOSITORY / "CONTRIBUTING.md").read_text()
    (path,) = re.findall(r"This is the whole of `([^`]+)`", page)
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert (REPOSITORY / path).read_text().endswith("\n\n\n" + shown)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_that_kubectl_prints_has_the_columns_of_its_kind(page):
    columns = {
        crd["spec"]["names"]["shortNames"][0]: [
            "NAME",
            *(
                c["name"].upper()
                for c in crd["spec"]["versions"][0]["additionalPrinterColumns"]
                if not c.get("priority")
            ),
        ]
        for crd in CRDS.values()
    }
    samples = re.findall(r"^\$ kubectl get (\w+)\n(NAME[^\n]*)", page.read_text(), re.MULTILINE)
    for short, header in samples:
        assert re.split(r"\s{2,}", header.strip()) == columns[short], f"{page.name}: kubectl get {short}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_that_concerto_top_prints_has_its_columns(page):
    for header in re.findall(r"^\$ concerto top\n(NODE[^\n]*)", page.read_text(), re.MULTILINE):
        assert re.split(r"\s{2,}", header.strip()) == re.split(r"\s{2,}", table([], "5m", 0.0))


def test_the_page_on_debugging_has_the_text_that_its_program_writes():
    source = ast.parse((REPOSITORY / "e2e" / "demo" / "incidents.py").read_text())
    texts = [
        (node.lineno, node.args[0].value)
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "page.write"
        and isinstance(node.args[0], ast.Constant)
    ]
    page = (REPOSITORY / "docs" / "debugging.md").read_text()
    prose = re.sub(r"```console\n.*?\n```\n*", "", page[page.index("## 1. ") :], flags=re.DOTALL)
    assert prose.split() == " ".join(text for _, text in sorted(texts)).split(), "run `python -m e2e.demo.incidents`"


RETIRED = re.compile("|".join((r"\bis " + "none\\b", r"\bhas a " + "say\\b", r"Has" + "ASay", r"\bno " + "unit\\b")))
CLOSED = re.compile("|".join(("algorithms " + "section", "algorithms " + "§", "seed " + "00", r"\b00[0-4] (§|eq)")))


def test_words_of_our_own_and_sources_that_nobody_can_open_stay_away():
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        try:
            text = (REPOSITORY / name).read_text()
        except (UnicodeDecodeError, OSError):
            continue
        assert not RETIRED.search(text), name
        assert name == "docs/references.md" or not CLOSED.search(text), name


def test_messages_shown_for_argo_cd_are_those_of_the_code():
    page = " ".join((REPOSITORY / "docs" / "argocd.md").read_text().split())
    binding = PodCPUBinding("default", "later", "u", "", "not-there-yet", frozenset())
    assert judge_unplaced(binding, None).message in page
    rules = structural_schema("PodReservation")["properties"]["spec"]["x-kubernetes-validations"]
    assert any(f"spec.nodeName: Invalid value: {rule['message']}" in page for rule in rules)
