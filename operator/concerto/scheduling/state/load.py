"""How loaded nodes are, for load-aware scores: what agents have measured, and what they cannot have measured yet.

A mean over a window contains a pod only from the moment at which the pod began: one that is 60 s old is in a mean over
5 minutes with a fifth of its use. Its predicted use is added with the share of the window that does not contain it
(docs/references.md, "Load-aware scores"), all of it while no agent has counted the pod. A pod that has ended is in the
mean still. Its predicted use is taken off with the share of the window that contains it. Where more has ended than
begun, load is below the mean. There a prediction counts for no more than what was measured of it: predictions that
exceed the use would make a busy node look idle. A restart finds the young pods again, since they come from pods and
NodeCapacities alone; of those that have ended it knows nothing, so that load is overestimated until no window contains
them.

A profile may have its load from a metric provider instead (``provided.py``). Its metrics contain a pod from the moment
at which the node's agent counted it, if there is an agent, and else from its start time: then nobody can say how long
its image took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacityStatus
from concerto.api.pod import PodView
from concerto.api.pod_requests import CpuPrediction
from concerto.api.prometheus_queries import Statistic
from concerto.api.schedulingprofile import LoadSettings
from concerto.scheduling.state.changes import Change
from concerto.scheduling.state.ended_pods import EndedPods
from concerto.scheduling.state.pod_index import PodIndex
from concerto.scheduling.state.provided_load import INDEX, RESOURCES, Floats, Ints, Joined, Provided, Rows, Series

_WINDOWS = {"5m": 0, "10m": 1, "15m": 2}
_COVERED = 3
_LONGEST_SECONDS = 900.0
_AGENT_LIVES_SECONDS = 90.0
"""An agent that reported so shortly before a provider's window ended would have counted any pod in the window."""
_TERMS = 5  # of a prediction: known, requested, unspecified and best effort of the cpu; bytes of memory
_NO_TERMS: Floats = np.zeros(_TERMS)


class Load(PodIndex):
    """Windows of every node, and the pods that they do not wholly contain. Rows are the cluster's.

    Attributes:
        rejected: metrics that were no numbers from 0 to 1, and so were taken as missing, since the start.
    """

    def __init__(self) -> None:
        """No nodes yet."""
        self.rejected = 0
        self._windows: Floats = np.full((len(RESOURCES), len(_WINDOWS), 4, 0), np.nan)
        self._ends: Floats = np.zeros(0)
        self._observed: dict[int, frozenset[str]] = {}
        self._slot_of: dict[str, int] = {}
        self._uncounted: set[str] = set()  # agents report no UIDs of static and DaemonSet pods
        self._free: list[int] = []
        self._row: Ints = np.zeros(0, dtype=np.int64)
        self._since: Floats = np.zeros(0)  # +inf: not begun, as far as is known
        self._started: Floats = np.zeros(0)  # by its kubelet, else created
        self._taken: Floats = np.zeros(0)  # by its kubelet; +inf: not yet
        self._terms: Floats = np.zeros((_TERMS, 0))
        self._on_rows: Floats = np.zeros((_TERMS, 0))  # of all pods there, also of those without a slot
        self._ended = EndedPods(_TERMS)
        self._latest = -np.inf  # when something was last observed
        self._recent: dict[LoadSettings, Floats] = {}
        self._provided: dict[str, Provided] = {}

    # --- what scores ask

    def measured(
        self, resource: str, statistic: Statistic, settings: LoadSettings, rows: Rows, oldest: float = -np.inf
    ) -> Floats:
        """Fractions of the machine, 0 to 1; NaN where nothing usable was published, or a provider's is older."""
        if settings.provider:
            return self._of(settings.provider).measured(resource, statistic, rows, oldest)
        index, window = RESOURCES.index(resource), _WINDOWS[settings.window]
        measured: Floats = self._windows[index, window, INDEX[statistic]][rows]
        return measured

    def recent(self, resource: str, settings: LoadSettings, rows: Rows) -> Floats:
        """Predicted use of young pods that the window lacks, less that of ended pods that it contains.

        In millicores for cpu, bytes for memory; below 0 where more has ended than begun.
        """
        recent: Floats = self._sums(resource, settings, rows)[0]
        return recent

    def contained(self, resource: str, settings: LoadSettings, rows: Rows) -> Floats:
        """Predicted use of all pods, with the share of the window that contains each. The same units; 0 or more."""
        contained: Floats = self._sums(resource, settings, rows)[1]
        return contained

    def measured_at(self, provider: str, rows: Rows) -> Floats:
        """When a provider's usable metrics of nodes were measured, seconds; -inf without any."""
        return self._of(provider).measured_at(rows)

    # --- what is observed

    def provide(
        self, provider: str, answer: Sequence[Series], row_of: Mapping[str, int], machine: Ints, now: float
    ) -> Joined:
        """A provider has answered; see `Provided.take`."""
        joined = self._of(provider).take(answer, row_of, machine, now)
        self.time_is(now)
        self._recent = {s: r for s, r in self._recent.items() if s.provider != provider}
        return joined

    def forget_provider(self, provider: str) -> None:
        """What it said counts no longer: it is gone, or asked for something else from now on."""
        self._provided.pop(provider, None)
        self._recent.clear()

    def time_is(self, now: float) -> None:
        """It is that late; pods that are removed from now on end then."""
        self._latest = max(self._latest, now)

    def node_changed(self, row: int, node: NodeView | None) -> None:
        """The row's Node is gone: what providers say of it does not hold for another."""
        if node is None:
            for provided in self._provided.values():
                provided.vacate(row)

    def grow(self, width: int) -> None:
        """There are rows up to that number."""
        before = self._windows.shape[-1]
        self._windows = np.pad(self._windows, [(0, 0)] * 3 + [(0, width - before)], constant_values=np.nan)
        self._ends = np.pad(self._ends, (0, width - before), constant_values=-np.inf)
        self._on_rows = np.pad(self._on_rows, [(0, 0), (0, width - before)])
        for provided in self._provided.values():
            provided.grow(width)
        self._recent.clear()

    def measure(self, row: int, status: NodeCapacityStatus | None, last_status_at: float | None) -> Change:
        """A node's status, which came at that time (the end of its windows); None if it is gone.

        Returns:
            LOAD if something is measured that was not before.
        """
        windows = self._windows[..., row]
        unknown = np.isnan(windows)
        windows[...] = np.nan
        for window in status.windows if status is not None else ():
            if window.resource not in RESOURCES or window.window not in _WINDOWS:
                continue
            values = (window.average, window.standard_deviation, window.latest)
            usable = [v if 0.0 <= v <= 1.0 else np.nan for v in values]  # NaN fails, too
            self.rejected += sum(u != u for u in usable)
            at = (RESOURCES.index(window.resource), _WINDOWS[window.window])
            if window.covered_seconds > 0:
                windows[at] = (*usable, window.covered_seconds)
        self._ends[row] = -np.inf if last_status_at is None else last_status_at
        self.time_is(self._ends[row])
        self._see(row, status, last_status_at)
        self._recent.clear()
        return Change.LOAD if (unknown & ~np.isnan(windows)).any() else Change.NOTHING

    def pod_added(self, pod: PodView, row: int) -> None:
        """The pod is on that node, bound or assumed."""
        if not pod.uses_nothing:
            self._ended.withdraw(pod.uid)
        slot = self._slot_of.get(pod.uid)
        if slot is None:
            slot = self._slot_of[pod.uid] = self._free.pop() if self._free else self._more()
        self._row[slot] = row
        self._terms[:, slot] = terms = _terms_of(pod)
        self._on_rows[:, row] += terms
        if not (pod.counted or pod.uses_nothing):
            self._uncounted.add(pod.uid)
        self._since[slot] = np.inf
        self._started[slot] = pod.created if pod.started is None else pod.started
        self._taken[slot] = np.inf if pod.started is None else pod.started
        if self._is_seen(pod, row):
            self._since[slot] = self._started[slot]
        for settings, recent in self._recent.items():
            share = self._share(np.array([slot]), settings)[..., 0]
            predicted = _predict(self._terms[:, slot], settings)
            recent[:, :, row] += predicted * (1.0 - share), predicted * share

    def pod_updated(self, before: PodView, after: PodView, row: int) -> None:
        """The kubelet may have accepted the pod since, or its containers may have ended or started again."""
        slot = self._slot_of.get(after.uid)
        if before.uses_nothing != after.uses_nothing:
            if before.uses_nothing:
                self._ended.withdraw(after.uid)
            elif not after.start_fails:
                self._ends_using(before, row)
            self._on_rows[:, row] += _terms_of(after) - _terms_of(before)
            if slot is not None:
                self._terms[:, slot] = _terms_of(after)
            self._recent.clear()
        if slot is None or after.started is None or self._taken[slot] == after.started:
            return
        self._started[slot] = self._taken[slot] = after.started
        if after.uid in self._uncounted:
            self._since[slot] = after.started
        if after.uid in self._uncounted or self._provided:
            self._recent.clear()

    def pod_removed(self, pod: PodView, row: int) -> None:
        """The pod is not on that node any more."""
        self._on_rows[:, row] -= _terms_of(pod)
        self._ends_using(pod, row)
        self._forget_pod(pod.uid)

    def row_assigned(self, row: int) -> None:
        """Pods that ended on the row's last node are in no window of its next one."""
        self._ended.vacate(row)

    # --- inside

    def _ends_using(self, pod: PodView, row: int) -> None:
        """The pod uses nothing of the row's node from now on. Windows go on containing what it has used, if it has."""
        if pod.uses_nothing or pod.start_fails:
            return
        slot = self._slot_of.get(pod.uid)
        # A pod without an entry is in every window as a whole
        since = -np.inf if slot is None else self._begun(slot, row)
        if since < self._latest:
            self._ended.add(pod.uid, row, (since, self._latest), _terms_of(pod))
            self._recent.clear()

    def _begun(self, slot: int, row: int) -> float:
        """From when on windows contain the pod, seconds; +inf if none does, as far as is known."""
        has_agent = self._ends[row] >= self._latest - _AGENT_LIVES_SECONDS
        since, taken = float(self._since[slot]), float(self._taken[slot])
        return taken if np.isinf(since) and not has_agent else since

    def _of(self, provider: str) -> Provided:
        if provider not in self._provided:
            self._provided[provider] = Provided(self._windows.shape[-1])
        return self._provided[provider]

    def _is_seen(self, pod: PodView, row: int) -> bool:
        """Whether its use is being measured."""
        belongs_to_node = not (pod.counted or pod.uses_nothing)
        return pod.uid in self._observed.get(row, ()) or (belongs_to_node and pod.started is not None)

    def _see(self, row: int, status: NodeCapacityStatus | None, last_status_at: float | None) -> None:
        """Pods begin for us with the first status that counts them; those counted by the first one, when they started.

        A pod that pulled its image for ten minutes has begun just now, whatever its start time says.
        """
        before = self._observed.get(row)
        now_seen: Iterable[str]
        if status is None:
            self._observed.pop(row, None)
            return
        observed = self._observed[row] = frozenset(status.observed_pod_uids)
        now_seen = observed if before is None else observed - before
        for uid in now_seen:
            slot = self._slot_of.get(uid)
            # An agent has no say about pods of other nodes
            if slot is not None and self._row[slot] == row and self._since[slot] == np.inf:
                self._since[slot] = self._started[slot] if before is None or last_status_at is None else last_status_at

    def _sums(self, resource: str, settings: LoadSettings, rows: Rows) -> Floats:
        if settings not in self._recent:
            self._recent[settings] = self._sum_up(settings)
        sums: Floats = self._recent[settings][:, RESOURCES.index(resource)][:, rows]
        return sums

    def _sum_up(self, settings: LoadSettings) -> Floats:
        """`recent` and `contained`; shape (2, resources, rows)."""
        self._forget_the_old()
        rows, ended, width = self._row, self._ended, self._windows.shape[-1]
        young = _predict(self._terms, settings) * (1.0 - self._share(slice(0, len(rows)), settings))
        gone = _predict(ended.terms, settings) * ended.share(*self._window(ended.row, settings))
        sums = (np.bincount(rows, y, width) - np.bincount(ended.row, g, width) for y, g in zip(young, gone))
        recent: Floats = np.array(list(sums), dtype=np.float64)
        return np.stack([recent, np.maximum(_predict(self._on_rows, settings) - recent, 0.0)])

    def _window(self, rows: Ints, settings: LoadSettings) -> tuple[Floats, Floats]:
        """When the windows end and how long they are, by row; of a provider by resource and row."""
        if settings.provider:
            return self._of(settings.provider).span(rows)
        return self._ends[rows], self._windows[0, _WINDOWS[settings.window], _COVERED][rows]

    def _share(self, slots: Rows, settings: LoadSettings) -> Floats:
        """The part of its node's window that contains a pod, 0 to 1; the window is as long as what it covers.

        By slot; of a provider by resource and slot.
        """
        rows, since = self._row[slots], self._since[slots]
        ends, covered = self._window(rows, settings)
        if settings.provider:
            would_show = self._ends[rows] >= ends - _AGENT_LIVES_SECONDS
            since = np.where(np.isinf(since) & ~would_show, self._taken[slots], since)
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Floats = np.clip((ends - since) / covered, 0.0, 1.0)
        return np.nan_to_num(share)

    def _forget_pod(self, uid: str) -> None:
        slot = self._slot_of.pop(uid, None)
        if slot is None:
            return
        self._uncounted.discard(uid)
        self._free.append(slot)
        self._terms[:, slot] = 0.0
        self._recent.clear()

    def _forget_the_old(self) -> None:
        """Pods that every window contains: they need no entry, and a status never takes one out of a window again.

        And those that have ended, and that no window contains any more.
        """
        self._ended.forget_ended_before(self._latest - _LONGEST_SECONDS)
        if self._provided:
            return  # whose windows may lag behind the agents'
        with np.errstate(invalid="ignore"):
            old = self._ends[self._row] - self._since >= _LONGEST_SECONDS
        if np.count_nonzero(old) > len(old) // 2:
            for uid in [u for u, slot in self._slot_of.items() if old[slot]]:
                self._forget_pod(uid)

    def _more(self) -> int:
        size = len(self._row)
        more = max(256, size)
        self._row = np.pad(self._row, (0, more))
        self._since = np.pad(self._since, (0, more))
        self._started = np.pad(self._started, (0, more))
        self._taken = np.pad(self._taken, (0, more))
        self._terms = np.pad(self._terms, [(0, 0), (0, more)])
        self._free.extend(range(size + more - 1, size, -1))
        return size


def _terms_of(pod: PodView) -> Floats:
    """Of its prediction; shape (5,)."""
    if pod.uses_nothing:
        return _NO_TERMS
    return _terms(pod.shape.predicted_cpu, pod.requests.get("memory", 0))


@lru_cache(maxsize=1024)
def _terms(cpu: CpuPrediction, memory_bytes: int) -> Floats:
    terms = np.array([*cpu, memory_bytes], dtype=np.float64)
    terms.setflags(write=False)
    return terms


def _predict(terms: Floats, settings: LoadSettings) -> Floats:
    """Millicores and bytes from the terms of predictions; shape (2, ...) from (5, ...)."""
    cpu = (
        terms[0]
        + terms[1] * settings.request_multiplier
        + terms[2] * settings.default_cpu_millicores
        + terms[3] * settings.best_effort_cpu_millicores
    )
    return np.stack([cpu, terms[4]])


def predicted_cpu_millicores(pod: PodView, settings: LoadSettings) -> float:
    """Cpu that the pod will use: limits, else requests times a factor, else a default (Trimaran: B and variants)."""
    return float(_predict(np.array([*pod.shape.predicted_cpu, 0.0]), settings)[0])
