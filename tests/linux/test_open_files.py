"""How many files a process may have open, where the kernel refuses to say more."""

from __future__ import annotations

import logging
import resource

import pytest

from concerto.linux.open_files import raise_open_files_limit


@pytest.mark.parametrize("error", [ValueError("not allowed to raise maximum limit"), PermissionError(1, "seccomp")])
def test_a_process_goes_on_with_the_limit_that_it_has_where_the_kernel_takes_no_other(monkeypatch, caplog, error):
    """The kernel refuses a limit above fs.nr_open, which may have been lowered since the container was started."""

    def refuse(which, limits):
        raise error

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 2**20))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with caplog.at_level(logging.WARNING):
        raise_open_files_limit()
    assert "1024" in caplog.text


def test_a_limit_that_is_as_high_as_it_can_be_is_not_set_again(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: pytest.fail("it was set"))
    raise_open_files_limit()
