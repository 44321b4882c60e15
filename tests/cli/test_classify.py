import pytest

from concerto.cli.classify import describe_machine
from concerto.cli.main import main
from concerto.pinning.topology import TopologyIndex
from support.topologies import machine

# The seed's table 8.1, as times with a vanilla one of 1: three rows of each class in it
CSV = "workload,vanilla,packed,spread\ncanneal-2,100,78,159\nstream-4,1,1.44,0.94\nfreqmine-4,1,0.96,0.95\n"


def reported(tmp_path, capsys, text, *flags):
    path = tmp_path / "times.csv"
    path.write_text(text, encoding="utf-8", newline="")
    status = main(["classify", str(path), *flags])
    captured = capsys.readouterr()
    return status, captured.out.splitlines(), captured.err


def test_each_workload_gets_its_slowdowns_class_and_label(tmp_path, capsys):
    status, lines, _ = reported(tmp_path, capsys, CSV)
    assert status == 0
    assert [line.split() for line in lines] == [
        ["canneal-2", "packed", "0.78", "spread", "1.59", "PackedFriendly", "concerto.dev/workload-type=cpu-bound"],
        ["stream-4", "packed", "1.44", "spread", "0.94", "SpreadFriendly", "concerto.dev/workload-type=memory-bound"],
        ["freqmine-4", "packed", "0.96", "spread", "0.95", "Agnostic", "concerto.dev/workload-type=cpu-bound"],
    ]


def test_repetitions_are_averaged_without_the_warm_up(tmp_path, capsys):
    text = "workload,vanilla,packed,spread\na,100,900,100\na,10,8,10\na,10,10,11\n"
    assert "packed 0.90  spread 1.05" in reported(tmp_path, capsys, text, "--warm-up", "1")[1][0]
    assert "IsolationFriendly" in reported(tmp_path, capsys, "workload,vanilla,packed,spread\na,10,9,9\n")[1][0]
    status, _, error = reported(tmp_path, capsys, text, "--warm-up", "3")
    assert (status, "a: no repetition is left" in error) == (2, True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workload,vanilla,packed\n", "no column spread"),
        ("workload,vanilla,packed,spread\na,1,x,1\n", "line 2: 'x' is not a number"),
        ("workload,vanilla,packed,spread\na,0,1,1\n", "line 2: '0' is not a positive number"),
        ("workload,vanilla,packed,spread\na,1\n", "line 2: '' is not a number"),
        ("workload,vanilla,packed,spread\na,1e99,1,1\n", "line 2: '1e99' is not a time that a program can take"),
        ("workload,vanilla,packed,spread\na,1,1e-999999,1\n", "line 2: '1e-999999' is not a time"),
        ("workload,vanilla,packed,spread\n", "no times"),
    ],
)
def test_what_is_wrong_with_the_file_is_said_with_its_line(tmp_path, capsys, text, says):
    status, _, error = reported(tmp_path, capsys, text)
    assert status == 2
    assert says in error


def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path, capsys):
    assert reported(tmp_path, capsys, "\ufeff" + CSV.replace("\n", "\r\n")) == reported(tmp_path, capsys, CSV)


def test_repetitions_that_lie_too_far_apart_are_reported(tmp_path, capsys):
    text = "workload,vanilla,packed,spread\na,10,8,10\na,10,{},10\n"
    assert len(reported(tmp_path, capsys, text.format("8.4"))[1]) == 1
    assert "lie 20% apart" in reported(tmp_path, capsys, text.format("9.8"))[1][1]


def test_a_class_comes_with_the_repetitions_that_give_it_by_themselves(tmp_path, capsys):
    text = "workload,vanilla,packed,spread\n" + "a,10,8,10\n" * 4 + "a,10,10,8\n"
    line = reported(tmp_path, capsys, text)[1][0]
    assert "PackedFriendly" in line and line.endswith("4 of 5 repetitions")
    assert "repetitions" not in reported(tmp_path, capsys, CSV)[1][0]


def test_the_machine_is_named_with_the_result(tmp_path):
    index = TopologyIndex.build(machine(2, 5, 2))
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\n")
    shape = "2 sockets, 10 cores, 20 CPUs, 2 memory nodes"
    assert describe_machine(tmp_path / "cpuinfo", index) == f"A CPU @ 2 GHz: {shape}"
    assert describe_machine(tmp_path / "missing", index) == f"unknown CPU: {shape}"


@pytest.mark.parametrize(
    "arguments", [[], ["times.csv", "--run", "true"], ["--run", "true", "--repeat", "0"], ["a", "--warm-up", "-1"]]
)
def test_what_makes_no_sense_is_refused(arguments):
    with pytest.raises(SystemExit) as refused:
        main(["classify", *arguments])
    assert refused.value.code == 2
