"""Arguments that an agent cannot measure with."""

from __future__ import annotations

from argparse import ArgumentParser

import pytest

from concerto_agent.main import add_arguments


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
