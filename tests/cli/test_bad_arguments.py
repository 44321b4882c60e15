"""Arguments and files that a command cannot use: a sentence, before it has computed for long."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

import pytest

from concerto.cli import simulate
from concerto.cli.main import COMMANDS, main
from concerto.cli.node_traces import TraceError, Where, read_traces
from concerto.cli.top_node import cell
from concerto.simulation.scheduling import experiments


@pytest.fixture
def nothing_runs(monkeypatch):
    def run_all(*_):
        raise AssertionError("it was run")

    monkeypatch.setattr(experiments, "run_all", run_all)


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5"])
@pytest.mark.parametrize("option", ["--workers", "--seeds"])
def test_a_number_of_processes_or_runs_that_cannot_be_is_refused(option, number, nothing_runs, capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "pi-2000", option, number])
    assert "is not a whole number from 1 to " in capsys.readouterr().err


def options_with_a_type() -> Iterator[tuple[str, str]]:
    for name, command in COMMANDS.items():
        parser = ArgumentParser()
        importlib.import_module(command.module).add_arguments(parser)
        yield from ((name, a.option_strings[0]) for a in parser._actions if a.type not in (None, str, Path))


@pytest.mark.parametrize(("command", "option"), [*options_with_a_type()])
def test_a_refused_value_is_named_with_what_is_expected(command, option, capsys):
    """And not with the function of ours that reads it."""
    with pytest.raises(SystemExit) as ended:
        main([command, f"{option}=x y"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"argument {option}: 'x y' is not " in err
    assert "write for example " in err


@pytest.mark.parametrize("text", ["x", "", "0", "-1", "nan", "sNaN", "inf", "101", "1e999999999", "1e-999999999", "5%"])
def test_a_threshold_that_no_slowdowns_have_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        main(["classify", "times.csv", f"--threshold={text}"])
    expected = f"{text!r} is not a number from 0.0001 to 100: write for example 0.05"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(("option", "port"), [("--agent", 9101), ("--operator", 8080)])
def test_an_address_of_an_endpoint_is_checked_before_any_cluster_is_looked_for(option, port, capsys):
    with pytest.raises(SystemExit):
        main(["top", "node", "n", "--trace", f"{option}=127.0.0.1:80", "--kubeconfig=none"])
    expected = f"'127.0.0.1:80' is not an http or https URL: write for example http://127.0.0.1:{port}"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--plots"])
def test_results_that_could_not_be_written_are_not_computed(option, nothing_runs, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert main(["simulate", "pi-2000", option, str(file / "below" / "it")]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["simulate", "pi-2000", "--json", str(tmp_path)]) == 2


SCENARIOS = {
    "bytes": b"\xff\xfe\x00",
    "control characters": b"jobs:\n- name: \x01",
    "an object of Python": b"jobs: [{count: !!python/object:os.system {}}]",
    "a list": b"- a",
    "nothing": b"",
    "a date of no calendar": b"jobs: [{name: a, count: 2026-99-99}]",
    "deeply nested": b"[" * 5000,
}


@pytest.mark.parametrize("text", SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario_that_is_none_is_refused(text, nothing_runs, tmp_path, capsys):
    path = tmp_path / "scenario.yaml"
    path.write_bytes(text)
    assert main(["simulate", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


NODE = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}}
POD = {
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "a", "uid": "u", "creationTimestamp": "2026-03-01T12:00:00Z"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "x"}]},
    "status": {"phase": "Running"},
}
DUMPS = {
    "no list": {"kind": "Node"},
    "no items": {"items": None},
    "items that are a word": {"items": "Node"},
    "items that are words": {"items": ["Node"]},
    "half a node": {"items": [{"kind": "Node"}]},
    "a node that cannot be read": {"items": [{**NODE, "status": {"allocatable": {"cpu": "many"}}}]},
    "half a pod": {"items": [NODE, {"kind": "Pod"}]},
    "half a capacity": {"items": [NODE, {"kind": "NodeCapacity", "metadata": {}}]},
    "a number": 7,
    "no pod": {"items": [NODE]},
    "a node without CPU": {"items": [{**NODE, "status": {"allocatable": {"cpu": "0"}}}, POD]},
    "a node without memory": {"items": [{**NODE, "status": {"allocatable": {"memory": "0"}}}, POD]},
}


@pytest.mark.parametrize("dump", DUMPS.values(), ids=DUMPS)
def test_a_dump_that_cannot_be_replayed_is_refused(dump, tmp_path, capsys):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dump))
    assert main(["simulate", "--dump", str(path)]) == 2
    err = capsys.readouterr().err
    assert "dump" in err
    assert "Traceback" not in err


WHAT_IF = {
    "two clusters": (["--from-cluster", "--dump", "a"], "give one of them"),
    "a scenario and a cluster": (["pi-2000", "--from-cluster"], "no scenario is run"),
    "a policy and a dump": (["--dump", "a", "--policy", "oracle"], "go with a scenario"),
    "runs of a cluster": (["--from-cluster", "--seeds", "3"], "go with a scenario"),
    "plots of a dump": (["--dump", "a", "--plots", "b"], "go with a scenario"),
    "a profile of a scenario": (["pi-2000", "--profile", "a"], "--from-cluster or --dump"),
    "processes of a dump": (["--dump", "a", "--workers", "2"], "go with a scenario"),
    "a cluster of a scenario": (["pi-2000", "--kubeconfig", "a"], "go with --from-cluster"),
    "a context of a dump": (["--dump", "a", "--context", "b"], "go with --from-cluster"),
}


@pytest.mark.parametrize(("arguments", "message"), WHAT_IF.values(), ids=WHAT_IF)
def test_options_of_a_scenario_and_of_a_replay_are_not_mixed(arguments, message, nothing_runs, capsys):
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--families", "--cross-validate"])
def test_families_are_not_judged_by_a_start_up_time_that_does_not_count(option, capsys):
    assert main(["evaluate-autoscaling", option, "--seeds", "2", "--startup", "5"]) == 2
    assert "30 s and more" in capsys.readouterr().err


WITHOUT_EFFECT = {
    "a policy to choose settings of": (["--cross-validate", "--policy", "Auto"], "--policy"),
    "plots of families": (["--cross-validate", "--plots"], "--plots"),
    "a pattern of families": (["--families", "--pattern", "steady"], "--pattern"),
    "a target of families": (["--families", "--target", "60"], "--target"),
    "families of traces alone": (["--families", "--trace", "a", "--trace-only"], "--trace-only"),
    "a pattern beside traces alone": (["--trace", "a", "--trace-only", "--pattern", "steady"], "--pattern"),
}


@pytest.mark.parametrize(("arguments", "named"), WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_options_that_would_have_no_effect_on_an_evaluation(arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("0,1")
    assert main(["evaluate-autoscaling", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"{named}: ")


@pytest.mark.parametrize("text", ["{", "a: [", "\x00", "a: !x y"])
def test_a_dump_that_is_no_document_is_refused(text, tmp_path, capsys):
    path = tmp_path / "dump.yaml"
    path.write_text(text)
    assert main(["simulate", "--dump", str(path)]) == 2
    assert capsys.readouterr().err.startswith("concerto simulate: ")


PROFILES = {
    "another kind": "kind: Pod",
    "no spec": "kind: SchedulingProfile\nspec: [1]",
    "a score of no plugin": "kind: SchedulingProfile\nspec: {scores: [{name: Nonsense}]}",
    "scores that are a number": "kind: SchedulingProfile\nspec: {scores: 7}",
}


@pytest.mark.parametrize("text", PROFILES.values(), ids=PROFILES)
def test_a_profile_that_cannot_be_used_is_refused(text, tmp_path, capsys):
    dump, profile = tmp_path / "dump.json", tmp_path / "profile.yaml"
    dump.write_text(json.dumps({"items": [NODE, POD]}))
    profile.write_text(text)
    assert main(["simulate", "--dump", str(dump), "--profile", str(profile)]) == 2
    assert "profile.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("amounts", [{}, {"cpu": "2", "memory": "4Gi"}])
def test_a_cluster_that_nobody_has_measured_is_replayed_and_what_is_unknown_is_null(amounts, tmp_path, capsys):
    dump, out = tmp_path / "dump.json", tmp_path / "out.json"
    dump.write_text(json.dumps({"items": [{**NODE, "status": {"allocatable": amounts}}, POD]}))
    assert main(["simulate", "--dump", str(dump), "--json", str(out)]) == 0

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    answer = json.loads(out.read_text(), parse_constant=refuse)
    assert (answer["total"], answer["nodes"][0]["cpu_now"]) == (1, None)
    capsys.readouterr()
    assert main(["simulate", "--dump", str(dump), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 1


CONFIGURATIONS = {
    "profiles that are numbers": "profiles: [1]",
    "arguments without a name": "profiles: [{pluginConfig: [{}]}]",
    "plugins that are a list": "profiles: [{plugins: [1]}]",
    "profiles that are a number": "profiles: 7",
}


@pytest.mark.parametrize("text", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_configuration_that_no_scheduler_reads_is_refused(text, tmp_path, capsys):
    path = tmp_path / "scheduler.yaml"
    path.write_text(f"kind: KubeSchedulerConfiguration\n{text}\n")
    assert main(["migrate-trimaran", str(path)]) == 2
    assert "scheduler.yaml" in capsys.readouterr().err


ADDRESSES = ["http://127.0.0.1:abc", "http://a b", "http://[1", "ftp://127.0.0.1", "http://", "x"]


@pytest.mark.parametrize("address", ADDRESSES)
async def test_an_address_of_no_endpoint_is_refused_with_a_sentence(address):
    with pytest.raises(TraceError):
        await read_traces(None, "n1", Where("concerto-system", address, address))


async def test_what_answers_in_another_protocol_is_named():
    async def greet(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(TraceError, match="is not an HTTP endpoint") as caught:
            await read_traces(None, "n1", Where("concerto-system", url, url))
        assert str(caught.value).endswith("9101: it answers SSH-2.0-OpenSSH_9.2")


async def test_an_endpoint_that_is_away_is_named_with_the_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with pytest.raises(TraceError) as caught:
        await read_traces(None, "n1", Where("concerto-system", url, url))
    assert str(caught.value) == f"{url}/debug/trace?node=n1: cannot connect to 127.0.0.1:{port}: Connection refused"


@pytest.mark.parametrize("text", ['{"items": [{}]}', "{}", "[]", '{"items": 1}', "{"])
def test_a_dump_to_compare_with_is_refused_without_the_name_of_an_exception(text, tmp_path, capsys):
    dump = tmp_path / "dump.json"
    dump.write_text(text)
    assert main(["top", "--plot=x.png", f"--before={dump}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"concerto top: {dump} is not what `kubectl get ncap -o json` prints: ")
    assert "Error(" not in err


def trace(**changes):
    columns = [{"name": "at", "unit": "seconds"}, {"name": "pods", "unit": "pods"}]
    return {"node": "n1", "columns": columns, "rows": [[1.8e9, 1.0]], **changes}


TRACES = {
    "no time": trace(rows=[[None, 1.0]]),
    "a time after all years": trace(rows=[[1e300, 1.0]]),
    "a time before all years": trace(rows=[[-1e300, 1.0]]),
    "a number that no float holds": trace(rows=[[1.8e9, 10**400]]),
    "rows that are words": trace(rows="rows"),
    "columns that are words": trace(columns="columns"),
}


@pytest.mark.parametrize("answer", TRACES.values(), ids=TRACES)
def test_an_answer_that_no_clock_could_have_made_is_no_trace(answer):
    from concerto.cli.node_traces import _parse

    with pytest.raises(TraceError, match="does not answer /debug/trace with a trace"):
        _parse(answer, "the agent", "n1")


def test_a_number_without_bounds_is_shown_as_unknown():
    assert [cell(value, unit) for value in (float("inf"), float("nan")) for unit in ("share", "bytes", "pods")] == [
        "-"
    ] * 6


def test_who_ends_a_command_sees_no_traceback(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(simulate, "run", interrupted)
    assert main(["simulate", "--list"]) == 130
