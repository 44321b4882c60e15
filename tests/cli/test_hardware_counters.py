"""What perf counts, as its manual page says it writes it; the refusals are of a virtual machine."""

from __future__ import annotations

import os
import subprocess

import pytest

from concerto.cli.hardware_counters import counted, describe, find_perf, parse_perf

COUNTED = """\
# started on Sun Nov 29 04:00:00 2026

2400000,,instructions:u,1000000,100.00,1.20,insn per cycle
2000000,,cycles:u,1000000,100.00,,
12000,,LLC-load-misses:u,1000000,100.00,,
"""
REFUSED = "<not supported>,,instructions,0,100.00,,\n<not counted>,,cycles,0,0.00,,\n"


def test_counts_are_read_and_refusals_are_no_zeros():
    assert parse_perf(COUNTED) == {"instructions": 2.4e6, "cycles": 2e6, "LLC-load-misses": 12e3}
    assert parse_perf(REFUSED) == parse_perf("") == {}


# counts of each run, text
TEXTS = {
    "all": ([parse_perf(COUNTED)] * 2, "1.20 instructions a cycle, 5.0 last-level cache misses per 1,000 instructions"),
    "no cache events": ([{"instructions": 3.0, "cycles": 2.0}], "1.50 instructions a cycle"),
    "no misses at all": (
        [{"instructions": 3.0, "cycles": 2.0, "LLC-load-misses": 0.0}],
        "1.50 instructions a cycle, 0.0 last-level cache misses per 1,000 instructions",
    ),
    "nothing": ([{}], ""),
}


@pytest.mark.parametrize(("counts", "expected"), TEXTS.values(), ids=TEXTS)
def test_counts_of_runs_are_summed_up(counts, expected):
    assert describe(counts) == expected


def test_perf_runs_the_command_where_it_is_there_and_counts(tmp_path):
    perf = find_perf()
    if perf is None:
        pytest.skip("perf is not installed, or counts no instructions on this machine")
    output = tmp_path / "counters"
    done = subprocess.run(counted(perf, ["sh", "-c", "exit 3"], output), env=os.environ, check=False)
    assert done.returncode == 3
    assert parse_perf(output.read_text())["instructions"] > 0
