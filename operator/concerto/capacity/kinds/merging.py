"""What many nodes say of one kind, as one: rows of ``sums.FIELDS``, each bounded by its node and by what others say.

All functions take (N, F) arrays, a row for each kind or node, F being the number of fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from concerto.api.subspacesnapshot import KindEntry
from concerto.capacity.kinds.cost import PRIOR_SHARE
from concerto.capacity.kinds.settings import KindSettings
from concerto.capacity.kinds.sums import FIELDS, MAX_SUM, PEAK_WORK, PUBLISHED, KindSums

Floats = NDArray[np.float64]

_MAX_NODE_WEIGHT = 3.0
"""Evidence of one node that counts, in times of the median node's."""
_MAX_NODE_MEAN = 4.0
"""What one node may say that a pod takes or holds, in times of what the median node says."""
_ENOUGH_NODES = 3
"""Nodes that have to know a kind before the median of them bounds what one says."""
_SHOWN_SECONDS = 60.0
"""Mean time for which a node's pods have held their places, after which one that never computed is known to idle."""
_FADING = FIELDS.index("running")

_INDEX = {name: index for index, name in enumerate(FIELDS)}
_ENDED, _HELD, _WORK, _STARTED, _MEMORY = (_INDEX[n] for n in ("ended", "held", "work", "started", "memory"))
_MEMORY_SQUARED, _MAX_MEMORY = _INDEX["memory_squared"], _INDEX["max_memory"]
_RUNNING, _RUNNING_WORK, _RUNNING_HELD = (_INDEX[n] for n in ("running", "running_work", "running_held"))
_RUNNING_MEMORY, _MAX_RUNNING_WORK = _INDEX["running_memory"], _INDEX["max_running_work"]
_MAX_RUNNING_HELD, _MAX_RUNNING_RECENT = _INDEX["max_running_held"], _INDEX["max_running_recent"]
_MEANS = [_INDEX[name] for name in ("work", "peak_work", "started", "held", "life", "memory")]
_SQUARES = ((_MEANS.index(_MEMORY), _MEMORY_SQUARED),)
_MAXIMA = (_MAX_MEMORY, _MAX_RUNNING_WORK, _MAX_RUNNING_HELD, _MAX_RUNNING_RECENT)
_SUMMED = [index for index in range(len(FIELDS)) if index not in _MAXIMA]
_ZEROS = (0.0,) * PUBLISHED


def read_rows(entries: Sequence[KindEntry]) -> tuple[list[str], Floats] | None:
    """Keys and sums of a published table; None if something in it is odd, so that it has to be read entry by entry."""
    keys = [key for key, _ in entries]
    try:
        sums = np.array([(*numbers, *_ZEROS[len(numbers) :]) for _, numbers in entries])
        is_odd = sums.shape != (len(keys), PUBLISHED) or sums.dtype.kind not in "fi"
        is_odd |= "" in keys or len({*keys}) != len(keys)
    except (TypeError, ValueError):
        return None
    if is_odd or not ((sums >= 0.0) & (sums <= MAX_SUM)).all():
        return None
    sums = sums.astype(np.float64, copy=False)
    sums[:, PEAK_WORK] = sums[:, -1]
    return keys, sums[:, :-1]


def possible(sums: Floats, cores: float, memory: float) -> Floats:
    """The sums with what one node can give: CPU time in the time that the pods held their places, and memory.

    Args:
        sums: a row for each kind; it is not changed.
        cores: CPUs of the node.
        memory: its bytes; infinity where that is unknown.
    """
    sums = sums.copy()
    for amount, pods, limit in (
        (_MEMORY, _ENDED, memory),
        (_MEMORY_SQUARED, _ENDED, memory * memory),
        (_RUNNING_MEMORY, _RUNNING, memory),
    ):
        there = sums[:, pods] > 0.0
        sums[there, amount] = np.minimum(sums[there, amount], limit * sums[there, pods])
        sums[~there, amount] = 0.0
    sums[:, _MAX_MEMORY] = np.minimum(sums[:, _MAX_MEMORY], memory)
    if not math.isfinite(cores):
        return sums
    sums[:, _RUNNING_WORK] = np.minimum(sums[:, _RUNNING_WORK], cores * sums[:, _RUNNING_HELD])
    sums[:, _MAX_RUNNING_WORK] = np.minimum(sums[:, _MAX_RUNNING_WORK], cores * sums[:, _MAX_RUNNING_HELD])
    sums[:, _MAX_RUNNING_RECENT] = np.minimum(sums[:, _MAX_RUNNING_RECENT], cores)
    most = np.maximum(cores * sums[:, _HELD], 1e-9)
    _scale_work(sums, 1.0 / np.maximum(1.0, (sums[:, _WORK] + sums[:, _STARTED]) / most))
    sums[:, PEAK_WORK] = np.minimum(sums[:, PEAK_WORK], cores * sums[:, _WORK])
    return sums


def _scale_work(sums: Floats, factor: Floats) -> None:
    """Change the CPU time of pods that have ended by a factor for each row."""
    sums[:, _WORK] *= factor
    sums[:, _STARTED] *= factor
    sums[:, PEAK_WORK] *= factor


def weights(sums: Floats) -> Floats:
    """(N,) how much each kind matters."""
    weight: Floats = sums[:, _WORK] + sums[:, _RUNNING_WORK] + 1e-3 * (sums[:, _ENDED] + sums[:, _RUNNING])
    return weight


def merged(sums: Floats) -> KindSums:
    """What nodes say of one kind, together; the order of the nodes makes no difference, not even by rounding.

    Args:
        sums: a row for each node, at least one; it may be changed.
    """
    if len(sums) == 1:
        return KindSums(*sums[0].tolist())
    _even(sums)
    total = [0.0] * len(FIELDS)
    for index in _SUMMED:
        if (column := sums[:, index]).any():
            total[index] = math.fsum(column.tolist())
    total[_MAX_MEMORY], total[_MAX_RUNNING_RECENT] = sums[:, [_MAX_MEMORY, _MAX_RUNNING_RECENT]].max(axis=0).tolist()
    work = sums[:, _MAX_RUNNING_WORK]
    total[_MAX_RUNNING_WORK] = most = float(work.max())
    total[_MAX_RUNNING_HELD] = float(sums[work == most, _MAX_RUNNING_HELD].max())
    return KindSums(*total)


@np.errstate(over="ignore")
def _even(sums: Floats) -> None:
    """Bound what each node says by what the median node says, where three know the kind."""
    if len(sums) < _ENOUGH_NODES:
        return
    ended = np.flatnonzero(sums[:, _ENDED] > 0.0)
    few = ended
    if len(ended) >= _ENOUGH_NODES:
        _even_ended(sums, ended)
        if len(ended) == len(sums) and not sums[:, _RUNNING].any():
            return
        few = ended[:0]
    _even_weight(sums, few)
    _even_share(sums, few)
    _even_memory(sums, few)


def _median(numbers: Floats) -> Floats:
    """The median of (N, ...) numbers along their first axis; numpy's own takes ten times as long for a few."""
    ordered = np.sort(numbers, axis=0)
    last = len(ordered) - 1
    median: Floats = (ordered[last // 2] + ordered[(last + 1) // 2]) / 2.0
    return median


def _even_ended(sums: Floats, rows: NDArray[np.intp]) -> None:
    """Bound what nodes say of pods that have ended, by what the median of them says."""
    known = sums[rows]
    ended = known[:, _ENDED]
    limits = _MAX_NODE_MEAN * _median(known[:, _MEANS] / ended[:, None])
    allowed = limits * ended[:, None]
    over = known[:, _MEANS] > np.maximum(allowed, 1e-300)
    known[:, _MEANS] = np.where(over, allowed, known[:, _MEANS])
    for mean, square in _SQUARES:
        bounded = np.minimum(known[:, square], limits[mean] ** 2 * ended)
        known[:, square] = np.where(over[:, mean], bounded, known[:, square])
    known[:, _MAX_MEMORY] = np.minimum(known[:, _MAX_MEMORY], _MAX_NODE_MEAN * _median(known[:, _MAX_MEMORY]))
    most = _MAX_NODE_WEIGHT * _median(ended)
    known[:, :_FADING] *= np.where(ended > most, most / ended, 1.0)[:, None]
    sums[rows] = known


def _even_weight(sums: Floats, few: NDArray[np.intp]) -> None:
    """Bound how much a node counts by pods that run, and by pods that have ended where fewer than three know such.

    Args:
        sums: a row for each node; changed.
        few: rows that know pods that have ended, if they are fewer than three.
    """
    runs = np.flatnonzero(sums[:, _RUNNING] > 0.0)
    if len(runs) >= _ENOUGH_NODES:
        for weight, others in ((_RUNNING, (_RUNNING_MEMORY,)), (_RUNNING_HELD, (_RUNNING_WORK,))):
            given = sums[runs, weight]
            most = _MAX_NODE_WEIGHT * _median(given)
            factor = np.where(given > most, most / np.maximum(given, 1e-300), 1.0)
            for index in (weight, *others):
                sums[runs, index] *= factor
    pods = sums[:, _ENDED] + sums[:, _RUNNING]
    if np.count_nonzero(pods) >= _ENOUGH_NODES and len(few):
        most = _MAX_NODE_WEIGHT * _median(pods[pods > 0.0])
        sums[few, :_FADING] *= np.minimum(1.0, most / sums[few, _ENDED])[:, None]


def _even_share(sums: Floats, few: NDArray[np.intp]) -> None:
    """Bound the cores that a node says a pod takes, by what all nodes say that know what one takes.

    A kind of which nothing is known is taken to use ``PRIOR_SHARE``: no node can make it dearer than that where the
    others find it cheap. The arguments are those of `_even_weight`.
    """
    worked, is_known = sums[:, _WORK] + sums[:, _STARTED], sums[:, _ENDED] > 0.0
    ended = np.where(is_known, worked / np.maximum(sums[:, _HELD], 1e-9), np.nan)
    recent, held = sums[:, _MAX_RUNNING_RECENT], sums[:, _RUNNING_HELD]
    shown = (sums[:, _RUNNING] > 0.0) & ((recent > 0.0) | (held >= _SHOWN_SECONDS * sums[:, _RUNNING]))
    so_far = np.where(shown, sums[:, _RUNNING_WORK] / np.maximum(held, 1e-9), np.nan)
    known = is_known | shown
    if np.count_nonzero(known) < _ENOUGH_NODES:
        return
    least, most = np.fmin(ended, so_far)[known], np.fmax(ended, np.fmax(so_far, np.where(shown, recent, np.nan)))[known]
    low = float(_median(least)) / _MAX_NODE_MEAN
    high = max(_MAX_NODE_MEAN * float(_median(most)), PRIOR_SHARE)
    sums[:, _RUNNING_WORK] = np.minimum(sums[:, _RUNNING_WORK], high * held)
    sums[:, _MAX_RUNNING_WORK] = np.minimum(sums[:, _MAX_RUNNING_WORK], high * sums[:, _MAX_RUNNING_HELD])
    sums[:, _MAX_RUNNING_RECENT] = np.minimum(recent, high)
    if len(few):
        rows = sums[few]
        amount = rows[:, _WORK] + rows[:, _STARTED]
        rows[:, _WORK] += np.maximum(low * rows[:, _HELD] - amount, 0.0)
        over = amount > high * rows[:, _HELD]
        _scale_work(rows, np.where(over, high * rows[:, _HELD] / np.maximum(amount, 1e-300), 1.0))
        sums[few] = rows


def _even_memory(sums: Floats, few: NDArray[np.intp]) -> None:
    """Bound the memory that a node says a pod holds, by what all nodes say. The arguments are those of `_even_weight`.

    A kind of which nothing is known is taken to hold the default: no node can make it dearer than that where the others
    find that it holds little.
    """
    mean = sums[:, _MEMORY] / np.maximum(sums[:, _ENDED], 1e-9)
    said = np.maximum(sums[:, _MAX_MEMORY], mean)
    if np.count_nonzero(said) < _ENOUGH_NODES:
        return
    median = float(_median(said[said > 0.0]))
    low, high = median / _MAX_NODE_MEAN, max(_MAX_NODE_MEAN * median, KindSettings.default_memory)
    sums[:, _MAX_MEMORY] = np.minimum(sums[:, _MAX_MEMORY], high)
    sums[:, _RUNNING_MEMORY] = np.minimum(sums[:, _RUNNING_MEMORY], high * sums[:, _RUNNING])
    if len(few):
        rows = sums[few]
        pods = rows[:, _ENDED]
        rows[:, _MEMORY] = np.clip(rows[:, _MEMORY], low * pods, high * pods)
        rows[:, _MEMORY_SQUARED] = np.clip(rows[:, _MEMORY_SQUARED], low**2 * pods, high**2 * pods)
        sums[few] = rows
