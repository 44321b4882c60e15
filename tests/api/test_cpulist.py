import pytest
from hypothesis import given
from hypothesis import strategies as st

from concerto.api.cpulist import HIGHEST, format_cpu_list, parse_cpu_list


@given(st.sets(st.integers(0, 300)))
def test_a_list_reads_back_as_the_same_set(numbers):
    assert parse_cpu_list(format_cpu_list(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((0,), "0"), ((3, 1, 2), "1-3"), ((0, 1, 4, 6, 7), "0-1,4,6-7")]
)
def test_a_list_is_written_as_short_as_can_be(numbers, text):
    assert format_cpu_list(numbers) == text


@given(st.sets(st.integers(0, HIGHEST), max_size=300))
def test_a_list_of_n_numbers_takes_fewer_than_5n_characters(numbers):
    assert len(format_cpu_list(numbers)) <= max(5 * len(numbers) - 1, 0)


@pytest.mark.parametrize("text", ["a", "1-", "-1", "0-x", "0;1"])
def test_what_is_no_list_is_refused_by_quoting_it(text):
    with pytest.raises(ValueError, match="not a list of CPUs"):
        parse_cpu_list(text)


@pytest.mark.parametrize("text", ["8192", "0-99999999999", "99999999999-0"])
def test_a_list_does_not_fill_the_memory_of_its_reader(text):
    with pytest.raises(ValueError, match="names CPUs above 8191"):
        parse_cpu_list(text)


@pytest.mark.parametrize("text", ["0-8191,0", "0-8191," * 3000 + "0", ",".join(["0"] * 8193)])
def test_a_list_that_names_more_numbers_than_there_are_is_refused(text):
    """A status of an agent has room for 200,000 times all CPUs of Linux: to read it would hold the event loop."""
    with pytest.raises(ValueError, match="names CPUs again and again") as refused:
        parse_cpu_list(text)
    assert len(str(refused.value)) < 400


def test_a_list_may_name_some_numbers_twice():
    assert parse_cpu_list("0-3,2") == {0, 1, 2, 3}


@pytest.mark.parametrize("text", ["5-2", "0,9-8"])
def test_a_list_that_counts_downwards_is_not_taken_for_none(text):
    with pytest.raises(ValueError, match="counts downwards"):
        parse_cpu_list(text)
