from decimal import Decimal

import pytest

from concerto.pinning.classification import WORKLOAD_TYPES, Slowdowns, classify

# Stefanakis, table 8.1
TABLE = """
canneal-2 0.78 1.59 PackedFriendly
canneal-4 0.83 1.04 PackedFriendly
canneal-8 0.90 0.96 PackedFriendly
ferret-2 0.87 0.96 PackedFriendly
ferret-4 0.87 0.92 PackedFriendly
ferret-8 1.09 0.84 SpreadFriendly
fluidanimate-2 0.80 0.98 PackedFriendly
fluidanimate-4 0.98 1.00 Agnostic
fluidanimate-8 1.15 0.88 SpreadFriendly
freqmine-2 0.88 0.94 PackedFriendly
freqmine-4 0.96 0.95 Agnostic
freqmine-8 1.35 1.00 SpreadFriendly
ga-2 0.98 0.98 Agnostic
ga-4 1.01 0.98 Agnostic
ga-8 1.68 0.91 SpreadFriendly
in-mem-2 0.98 1.02 Agnostic
in-mem-4 0.98 1.01 Agnostic
in-mem-8 1.31 0.96 SpreadFriendly
stream-2 0.83 0.94 PackedFriendly
stream-4 1.44 0.94 SpreadFriendly
stream-8 1.16 0.97 SpreadFriendly
streamcluster-2 0.79 0.98 PackedFriendly
streamcluster-4 0.86 0.98 PackedFriendly
streamcluster-8 0.91 0.85 SpreadFriendly
"""
ROWS = [line.split() for line in TABLE.strip().splitlines()]


def outcome(packed: str, spread: str, threshold: str = "0.05") -> str:
    return classify(Slowdowns(Decimal(packed), Decimal(spread)), Decimal(threshold))


@pytest.mark.parametrize(("workload", "packed", "spread", "expected"), ROWS, ids=[row[0] for row in ROWS])
def test_the_seeds_table_is_reproduced(workload, packed, spread, expected):
    assert outcome(packed, spread) == expected


def test_only_two_thresholds_do_and_the_seeds_is_the_smaller():
    fits = [e for e in range(1, 21) if all(outcome(p, s, str(Decimal(e) / 100)) == tag for _, p, s, tag in ROWS)]
    assert fits == [5, 9]


# packed, spread, class
BRANCHES = {
    "both faster than vanilla, by much the same": ("0.90", "0.92", "IsolationFriendly"),
    "only the better one faster": ("0.93", "0.96", "PackedFriendly"),
    "both as fast as vanilla": ("1.00", "1.00", "Agnostic"),
    "both slower, by much the same": ("1.20", "1.22", "Vanilla"),
    "a difference of just the threshold counts": ("1.00", "1.05", "PackedFriendly"),
    "a gain of just the threshold does not": ("0.95", "0.96", "Agnostic"),
    "a loss of just the threshold is no longer the same": ("1.02", "1.05", "Vanilla"),
}


@pytest.mark.parametrize(("packed", "spread", "expected"), BRANCHES.values(), ids=BRANCHES)
def test_each_way_through_the_algorithm(packed, spread, expected):
    assert outcome(packed, spread) == expected


def test_every_class_but_vanilla_has_a_label():
    assert set(WORKLOAD_TYPES.values()) == {"cpu-bound", "memory-bound"}
    assert "Vanilla" not in WORKLOAD_TYPES
