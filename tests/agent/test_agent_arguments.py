"""Arguments that an agent cannot measure with."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser

import pytest

from concerto_agent.main import add_arguments, run
from support.node_trees import Machine


def memory_of(text: str) -> int:
    parser = ArgumentParser()
    add_arguments(parser)
    return int(parser.parse_args(["--node-name=n", f"--memory-capacity={text}"]).memory_capacity)


@pytest.mark.parametrize("text", ["0", "-8Gi", "8", "1E", "much", "nan"])
def test_memory_that_no_node_has_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        memory_of(text)
    assert f"{text!r} is not an amount of memory from 1Mi to 8Pi: write for example 8Gi" in capsys.readouterr().err


def test_memory_of_a_node_is_taken():
    assert memory_of("8Gi") == 8 * 2**30


def binds(option: str, text: str) -> str:
    parser = ArgumentParser()
    add_arguments(parser)
    return str(vars(parser.parse_args(["--node-name=n", f"{option}={text}"]))[option[2:].replace("-", "_")])


BINDS = pytest.mark.parametrize("option", ["--metrics-bind", "--secure-metrics-bind", "--pod-metrics-bind"])


@BINDS
@pytest.mark.parametrize("text", ["", "9101", "localhost", "::1:", ":http", ":70000", ":-1", ":٣"])
def test_an_address_that_nobody_can_listen_on_is_refused(option, text, capsys):
    with pytest.raises(SystemExit):
        binds(option, text)
    message = f"{text!r} is not an address and a port up to 65535: write for example :8080, on every address"
    assert message in capsys.readouterr().err


@BINDS
@pytest.mark.parametrize("text", [":9101", "0.0.0.0:9101", "[::]:9101", "fd00::2:9102", "10.0.0.1:0", "localhost:1"])
def test_addresses_of_both_families_are_taken_also_as_a_pod_is_given_its_own(option, text):
    assert binds(option, text) == text


@BINDS
def test_an_address_of_another_machine_ends_the_agent_with_a_sentence(option, tmp_path, capsys):
    machine = Machine(tmp_path, "v2")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}], users: [{name: u, user: {token: t}}],"
        " contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}"
    )
    parser = ArgumentParser()
    add_arguments(parser)
    args = ["--node-name=n", f"--kubeconfig={kubeconfig}", f"{option}=192.0.2.1:9101"]
    assert run(parser.parse_args([*args, f"--sys={machine.sys}", f"--proc={machine.proc}"])) == 2
    assert "concerto agent: cannot listen on 192.0.2.1:9101: " in capsys.readouterr().err


def copies(capsys, *options: str) -> tuple[int, str]:
    parser = ArgumentParser()
    add_arguments(parser)
    status = run(parser.parse_args(["--node-name=n", *options]))
    return status, capsys.readouterr().err


def test_a_certificate_is_not_copied_into_a_folder_that_does_not_exist(tmp_path, capsys, caplog):
    source, target = tmp_path / "kubelet.crt", tmp_path / "nowhere" / "kubelet.crt"
    source.write_text("certificate")
    options = [f"--kubelet-certificate={source}", f"--copy-kubelet-certificate={target}"]
    expected = f"concerto agent: --copy-kubelet-certificate: {target} cannot be written: No such file or directory\n"
    assert copies(capsys, *options) == (1, expected)
    target.parent.mkdir()
    assert copies(capsys, *options) == (0, "")
    assert target.read_text() == "certificate"
    assert "authority" not in caplog.text


def test_a_target_that_cannot_be_written_is_an_error_also_without_a_certificate(tmp_path, capsys):
    """Else the next kubelet with one would find the mistake."""
    options = [f"--kubelet-certificate={tmp_path}/none", f"--copy-kubelet-certificate={tmp_path}/nowhere/kubelet.crt"]
    expected = f"{tmp_path}/nowhere/kubelet.crt cannot be written: there is no folder {tmp_path}/nowhere"
    assert copies(capsys, *options) == (1, f"concerto agent: --copy-kubelet-certificate: {expected}\n")
    options = [f"--kubelet-certificate={tmp_path}/none", f"--copy-kubelet-certificate={tmp_path}/kubelet.crt"]
    assert copies(capsys, *options) == (0, "")
    assert not (tmp_path / "kubelet.crt").exists()


def test_a_certificate_that_cannot_be_read_is_named(tmp_path, capsys):
    options = [f"--kubelet-certificate={tmp_path}", f"--copy-kubelet-certificate={tmp_path}/kubelet.crt"]
    expected = f"concerto agent: --copy-kubelet-certificate: {tmp_path} cannot be read: Is a directory\n"
    assert copies(capsys, *options) == (1, expected)


def test_an_agent_may_open_as_many_files_as_the_kernel_lets_it():
    """It keeps four of each pod open, and a container may begin with a limit of 1,024."""
    code = """
import argparse, resource
from concerto_agent.main import add_arguments, run
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
parser = argparse.ArgumentParser()
add_arguments(parser)
assert run(parser.parse_args(["--node-name=n", "--kubeconfig=/nowhere/kubeconfig"])) == 2
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), resource.getrlimit(resource.RLIMIT_NOFILE)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
