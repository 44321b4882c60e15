"""A model of programs that share a node's cores, memory bandwidth and caches, fitted to Stefanakis, table 8.1.

Time of a thread, in units of one that nothing disturbs::

    compute x sibling + memory x bandwidth x cache + remote

with compute = 1 - memory; sibling = `SIBLING` if the core's other thread is busy, else 1; bandwidth = the socket's
demand for memory bandwidth over what it has, at least 1; cache = 1 + the part of the working sets on the socket that
does not fit its last-level cache; remote = the program's sharing times the part of its other threads that are on
another socket. A program takes as long as its slowest thread. Unpinned, threads go to idle cores first and else
anywhere, and take `MIGRATION` more of memory time for caches that they leave behind; times are means over placements.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

SIBLING = 1.6
"""What a thread's computing takes beside a busy sibling (two together do 1.25 times the work of one)."""
MIGRATION = 0.15
"""Share of memory time that an unpinned thread takes more."""
PLACEMENTS = 24
"""Placements of unpinned threads that a mean is taken over."""

SOCKETS, CORES, THREADS = 2, 5, 2
"""Stefanakis' node-4; CPU n and n+10 share a core."""
SIZES = (2, 4, 8)
"""Threads of the programs of table 8.1."""


@dataclass(frozen=True)
class Program:
    """What the model knows of a program.

    Attributes:
        memory: part of its time that it waits for memory, 0 to 1.
        cache: working set of one thread, in parts of a socket's last-level cache.
        sharing: time that a thread takes more if all its peers are on another socket.
    """

    memory: float
    cache: float
    sharing: float

    @property
    def bandwidth(self) -> float:
        """A thread's demand, in parts of what a socket has: three threads that do nothing else saturate one."""
        return self.memory / 3


def _core(cpu: int) -> int:
    return cpu % (SOCKETS * CORES)


def _socket(cpu: int) -> int:
    return _core(cpu) // CORES


def times(running: Sequence[tuple[Program, Sequence[int]]], *, pinned: bool = True) -> list[float]:
    """Time of each program, in units of a thread that nothing disturbs; each with the CPUs of its threads."""
    load = [0] * (SOCKETS * CORES)
    demand, cache = [0.0] * SOCKETS, [0.0] * SOCKETS
    for program, cpus in running:
        for cpu in cpus:
            load[_core(cpu)] += 1
            demand[_socket(cpu)] += program.bandwidth
            cache[_socket(cpu)] += program.cache
    found = []
    for program, cpus in running:
        slowest = 0.0
        for cpu in cpus:
            socket = _socket(cpu)
            compute = (1 - program.memory) * (SIBLING if load[_core(cpu)] > 1 else 1.0)
            spilt = max(0.0, 1 - 1 / cache[socket]) if cache[socket] > 0 else 0.0
            memory = program.memory * max(1.0, demand[socket]) * (1 + spilt) * (1.0 if pinned else 1 + MIGRATION)
            away = sum(_socket(other) != socket for other in cpus) / max(1, len(cpus) - 1)
            slowest = max(slowest, compute + memory + program.sharing * away)
        found.append(slowest)
    return found


def packed(threads: int) -> list[int]:
    """Stefanakis' packed: one socket, a core each, siblings once the cores are out; then the other socket.

    For two programs, *both packed* is the static policy of this order: the first takes the first CPUs of it and the
    second goes on where the first ends, whatever their classes.
    """
    order = [s * CORES + c + t * SOCKETS * CORES for s in range(SOCKETS) for t in range(THREADS) for c in range(CORES)]
    return order[:threads]


def spread(threads: int) -> list[int]:
    """Stefanakis' spread: sockets in turn, a core each."""
    order = [s * CORES + c + t * SOCKETS * CORES for t in range(THREADS) for c in range(CORES) for s in range(SOCKETS)]
    return order[:threads]


def unpinned(sizes: Sequence[int]) -> Iterator[list[list[int]]]:
    """Placements that the kernel might choose for programs of these sizes: idle cores first, in any order."""
    chance = random.Random(4)
    for _ in range(PLACEMENTS):
        cores = list(range(SOCKETS * CORES))
        chance.shuffle(cores)
        order = cores + [core + SOCKETS * CORES for core in chance.sample(cores, len(cores))]
        slots = [number for number, size in enumerate(sizes) for _ in range(size)]
        chance.shuffle(slots)
        yield [[cpu for cpu, owner in zip(order, slots) if owner == number] for number in range(len(sizes))]


def vanilla(programs: Sequence[tuple[Program, int]]) -> list[float]:
    """Mean times of unpinned programs of these sizes."""
    sizes = [size for _, size in programs]
    runs = [
        times([(p, cpus) for (p, _), cpus in zip(programs, placement)], pinned=False) for placement in unpinned(sizes)
    ]
    return [mean(each) for each in zip(*runs)]


def alone(program: Program, threads: int) -> tuple[float, float]:
    """Slowdowns packed and spread, against unpinned (table 8.1)."""
    (base,) = vanilla([(program, threads)])
    return times([(program, packed(threads))])[0] / base, times([(program, spread(threads))])[0] / base


def fit(rows: Sequence[tuple[str, str]]) -> Program:
    """The program whose slowdowns alone are nearest to the six of the table (least squares of logarithms)."""

    def error(program: Program) -> float:
        modelled = [value for size in SIZES for value in alone(program, size)]
        return sum((math.log(m) - math.log(float(t))) ** 2 for m, t in zip(modelled, itertools.chain(*rows)))

    grid = itertools.product([i / 10 for i in range(10)], [0, 0.1, 0.2, 0.4, 0.8], [0, 0.02, 0.05, 0.1, 0.2, 0.4])
    return min((Program(*numbers) for numbers in grid), key=error)
