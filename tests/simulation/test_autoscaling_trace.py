"""Traces as people have them: read rightly, or refused with the row that is wrong; and what is run on them."""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from concerto.cli.evaluate_autoscaling import add_arguments, run
from concerto.simulation.autoscaling.traffic import MAX_RATE, PEAK_RATE, from_trace, read_trace

EPOCH = 1_700_000_000


def written(folder: Path, text: str, name: str = "load.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


# Each: file name, text, seconds between samples, values
READ: dict[str, tuple[str, str, float, list[float]]] = {
    "epoch seconds": ("load.csv", f"ts,v\n{EPOCH},1\n{EPOCH + 60},2\n{EPOCH + 120},3\n", 60, [1, 2, 3]),
    "epoch milliseconds": ("load.csv", f"ts,v\n{EPOCH}000,1\n{EPOCH + 60}000,2\n", 60, [1, 2]),
    "epoch microseconds": ("load.csv", f"ts,v\n{EPOCH}000000,1\n{EPOCH + 60}000000,2\n", 60, [1, 2]),
    "epoch nanoseconds": ("load.csv", f"ts,v\n{EPOCH}000000000,1\n{EPOCH + 60}000000000,2\n", 60, [1, 2]),
    "epochs in a file that is named after minutes": ("per-minute.csv", f"t,v\n{EPOCH},1\n{EPOCH + 60},2\n", 60, [1, 2]),
    "scientific epochs": ("load.csv", "t,v\n1.7e9,1\n1.70000006e9,2\n", 60, [1, 2]),
    "minutes by their header": ("load.csv", "minute,requests\n0,1\n1,2\n2,3\n", 60, [1, 2, 3]),
    "minutes by the file's name": ("load-per-minute.csv", "t,v\n0,1\n1,2\n", 60, [1, 2]),
    "seconds in a file that is named after minutes": ("load-per-minute.csv", "t,v\n0,1\n60,2\n", 60, [1, 2]),
    "a name that only holds a unit's letters": ("streams.csv", "t,v\n0,1\n60,2\n", 60, [1, 2]),
    "hours": ("load.csv", "Hour of the year;load\n0;1\n1;2\n", 3600, [1, 2]),
    "seconds": ("load.csv", "seconds,v\n0,1\n1,2\n", 1, [1, 2]),
    "ISO with a blank, no zone": ("load.csv", "t,v\n2014-04-10 00:04:00,94.0\n2014-04-10 00:09:00,56\n", 300, [94, 56]),
    "ISO with zones": ("load.csv", "t,v\n2026-03-01T12:00:00Z,1\n2026-03-01T13:01:00+01:00,2\n", 60, [1, 2]),
    "no zone, in a night that clocks change": (
        "load.csv",
        "t,v\n2026-03-29 01:59:00,1\n2026-03-29 02:00:00,2\n2026-03-29 03:00:00,62\n",
        60 * 30.5,
        [1, 31.5, 62],
    ),
    "CRLF, a byte order mark, blanks and empty lines": (
        "load.csv", f"\ufeffts, v\r\n{EPOCH}, 1\r\n\r\n{EPOCH + 60}, 2\r\n", 60, [1, 2],
    ),
    "no header": ("load.csv", f"{EPOCH},1\n{EPOCH + 60},2\n{EPOCH + 120},3\n", 60, [1, 2, 3]),
    "tabs": ("load.csv", f"ts\tv\n{EPOCH}\t1\n{EPOCH + 60}\t2\n", 60, [1, 2]),
    "unsorted": ("load.csv", f"ts,v\n{EPOCH + 120},3\n{EPOCH},1\n{EPOCH + 60},2\n", 60, [1, 2, 3]),
    "the same time twice": ("load.csv", f"ts,v\n{EPOCH},1\n{EPOCH + 60},2\n{EPOCH + 60},4\n", 60, [1, 3]),
    "gaps": (
        "load.csv",
        "".join(f"{EPOCH + 60 * i},{v}\n" for i, v in enumerate(["NaN", 2, "", "null", 5])) + f"{EPOCH + 420},8\n",
        60,
        [2, 2, 3, 4, 5, 6, 7, 8],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "step", "values"), READ.values(), ids=READ)
def test_a_trace_is_read_as_it_is_meant(tmp_path, name, text, step, values):
    got_step, got = read_trace(written(tmp_path, text, name))
    assert got_step == pytest.approx(step)
    assert got == pytest.approx(values, rel=1e-4)


WRONG = {
    "an empty file": ("", "values at two times at least, and has 0"),
    "a header alone": ("ts,v\n", "and has 0"),
    "one value": (f"ts,v\n{EPOCH},1\n", "and has 1"),
    "one value among gaps": (f"ts,v\n{EPOCH},1\n{EPOCH + 60},\n", "and has 1"),
    "one time only": (f"ts,v\n{EPOCH},1\n{EPOCH},2\n", "and has 1"),
    "one column": ("ts\n0\n1\n", "row 2 has no second column"),
    "words for values": (f"ts,v\n{EPOCH},many\n", "row 2: 'many' is not a number"),
    "negative": (f"ts,v\n{EPOCH},1\n{EPOCH + 60},-3\n", "row 3: -3 is not a valid load"),
    "infinite": (f"ts,v\n{EPOCH},inf\n", "row 2: inf is not a valid load"),
    "too large": (f"ts,v\n{EPOCH},1e301\n", "row 2: 1e301 is not a valid load"),
    "words for times": (f"ts,v\n{EPOCH},1\nlater,2\n", "row 3: 'later' is not a valid time"),
    "no time": (f"ts,v\n{EPOCH},1\n,2\n", "row 3: '' is not a valid time"),
    "NaN for a time": (f"ts,v\n{EPOCH},1\nnan,2\n", "row 3: 'nan' is not a valid time"),
    "dates and numbers": (f"ts,v\n{EPOCH},1\n2026-03-01T12:00:00Z,2\n", "some times are dates, and others numbers"),
    "numbers of nobody knows what": ("t,v\n0,1\n1,2\n2,3\n", "seconds, minutes or hours"),
    "a time that is wrong": (f"ts,v\n100,1\n{EPOCH},1\n{EPOCH + 1},2\n{EPOCH + 2},2\n", "is a time wrong?"),
    "no text": ("\udc80", "not a CSV file"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused_in_words(tmp_path, capsys, text, words):
    path = tmp_path / "load.csv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert command(tmp_path, "--trace-only", "--trace", str(path)) == 2
    said = capsys.readouterr().err
    assert words in said
    assert str(path) in said


def days(folder: Path, count: float, value: float | None = None) -> Path:
    """A trace of so many days, each minute."""
    rows = (f"{EPOCH + 60 * i},{10 + i % 7 if value is None else value}" for i in range(round(count * 1440) + 1))
    return written(folder, "ts,v\n" + "\n".join(rows) + "\n")


# Each: days of trace, days of history, windows asked for; hours of window, first start in hours, distinct, all
WINDOWS = {
    "long enough": (5, 3, 4, (2, 72, 4, 4)),
    "shorter than history and windows: less history": (3.1, 3, 20, (2, 34.4, 20, 20)),
    "much shorter: none, and only windows that do not overlap": (0.5, 3, 20, (2, 0, 6, 6)),
    "room for one": (0.1, 3, 5, (2, 0.4, 1, 5)),
    "shorter than a window": (1.5 / 24, 3, 5, (1.5, 0, 1, 5)),
    "no history wanted": (5, 0, 4, (2, 0, 4, 4)),
    "one window": (5, 3, 1, (2, 72, 1, 1)),
}


@pytest.mark.parametrize(("length", "history", "windows", "want"), WINDOWS.values(), ids=WINDOWS)
def test_windows_lie_within_the_trace_and_do_not_overlap(tmp_path, length, history, windows, want):
    traffics = from_trace(days(tmp_path, length), hours=2, history_days=history, windows=windows)
    starts = sorted({t.start for t in traffics})
    got = ((traffics[0].end - traffics[0].start) / 3600, starts[0] / 3600, len(starts), len(traffics))
    assert got == pytest.approx(want, rel=1e-6)
    assert starts[0] >= 0
    assert traffics[-1].end <= traffics[0].times[-1] + 1e-6
    assert all(b - a >= got[0] * 3600 - 1e-6 for a, b in itertools.pairwise(starts))


def test_too_little_of_a_trace_is_said(tmp_path):
    with pytest.raises(ValueError, match="60 s of load are too little"):
        from_trace(days(tmp_path, 1 / 1440), hours=2, history_days=3, windows=2)


@pytest.mark.parametrize(
    ("values", "top"),
    [
        ([0.0] * 20, 0.0),
        ([0.0] * 5000 + [3.0], PEAK_RATE),
        ([1.0] * 5000 + [1e9], MAX_RATE),
        ([5e-324] * 20, PEAK_RATE),
    ],
    ids=["never any load", "a single one", "one burst", "next to none"],
)
def test_rates_are_numbers_that_can_be_served(tmp_path, values, top):
    rows = "".join(f"{EPOCH + 60 * i},{v!r}\n" for i, v in enumerate(values))
    traffic = from_trace(written(tmp_path, rows), hours=1, history_days=0, windows=1)[0]
    assert np.isfinite(traffic.rates).all()
    assert traffic.rates.max() == pytest.approx(top)


def command(folder: Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(["--output", str(folder / "out"), *arguments]))


@pytest.mark.parametrize("value", [None, 0.0], ids=["some load", "no load"])
@pytest.mark.filterwarnings("error")
def test_a_short_trace_without_history_is_evaluated_and_its_figures_are_json(tmp_path, capsys, value):
    arguments = ["--trace-only", "--trace-windows", "2", "--startup", "30", "--policy", "Auto"]
    path = days(tmp_path, 0.02, value)
    assert command(tmp_path, *arguments, "--trace", str(path), "--trace", str(path)) == 0
    document = json.loads((tmp_path / "out/figures.json").read_text(), parse_constant=pytest.fail)
    assert [c["traffic"] for c in document["cells"]] == ["load", "load-2"], "neither hides the other"
    assert document["cells"][0]["policies"]["HPA v2"]["podMinutes"] >= 28
    if value == 0.0:
        assert document["verdicts"][0]["short"] == [], "none of no violations are left to halve"
    assert "1 window, 2 times, of 0.48 h after 0.0 h of history" in capsys.readouterr().out


def test_cells_without_a_goal_are_shown_and_not_judged(tmp_path):
    path = days(tmp_path, 0.02)
    arguments = ["--trace-only", "--trace", str(path), "--trace-windows", "2", "--startup", "5", "--policy", "static"]
    assert command(tmp_path, *arguments) == 0
    assert json.loads((tmp_path / "out/figures.json").read_text())["verdicts"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--startup", "-5"],
        ["--startup", "nan"],
        ["--target", "0"],
        ["--target", "50.5"],
        ["--trace-windows", "0"],
        ["--trace-hours", "0"],
        ["--trace-history", "-1"],
    ],
    ids=" ".join,
)
def test_arguments_that_mean_nothing_are_refused(tmp_path, arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(tmp_path, *arguments)
    assert arguments[0] in capsys.readouterr().err


def test_no_trace_at_all_is_said(tmp_path, capsys):
    assert command(tmp_path, "--trace-only") == 2
    assert command(tmp_path, "--trace", str(tmp_path)) == 2
    assert command(tmp_path, "--trace", str(tmp_path / "nothing.csv")) == 2
    said = capsys.readouterr().err
    for words in ("--trace-only needs a trace", "has no file *.csv in it", "nothing.csv is not there"):
        assert words in said


def test_plots_without_the_library_for_them_are_refused_before_an_hour_is_computed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command(tmp_path, "--plots") == 2
    assert "needs matplotlib" in capsys.readouterr().err
