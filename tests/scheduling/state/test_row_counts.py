"""Numbers by row, summed up at once as one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from concerto.scheduling.state.row_counts import RowCounts, weighted_sum


@pytest.mark.parametrize("seed", range(20))
def test_a_sum_is_that_of_all_numbers_as_they_are_now(seed):
    chance = random.Random(seed)
    counts = [RowCounts() for _ in range(6)]
    for _ in range(5):
        for each in counts:
            for _ in range(chance.choice([0, 3, 60])):
                row = chance.randrange(40)
                each.add(row, chance.choice([1, 1, -1]) if each.get(row) else 1)
        weighted = [(each, chance.choice([1, 1, -3, 100])) for each in counts]
        expected: Counter[int] = Counter()
        for each, weight in weighted:
            for row, number in each.items():
                expected[row] += weight * number
        found: Counter[int] = Counter()
        for row, number in zip(*(array.tolist() for array in weighted_sum(weighted))):
            found[row] += number
        assert {r: n for r, n in found.items() if n} == {r: n for r, n in expected.items() if n}


def test_rows_without_any_are_not_kept_nor_arrays_of_few():
    counts = RowCounts()
    for row in range(10):
        counts.add(row, 2)
    assert counts.arrays[1].sum() == 20
    assert counts._arrays is None
    for row in range(10, 20):
        counts.add(row, 1)
    assert counts.arrays is counts.arrays
    counts.add(0, -2)
    assert (0 in counts, len(counts.arrays[0])) == (False, 19)


def test_nothing_sums_up_to_nothing():
    assert [array.tolist() for array in weighted_sum([])] == [[], []]
