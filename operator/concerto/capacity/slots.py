"""How many pods a node should run, and how fast it may start them: the control law (docs/capacity-control.md).

A node is a queue: pods wait, compute, and are gone. By Little's law a node whose CPUs just do not idle runs

    N = X T0,    X = pods it completes in a second of full work,  T0 = a pod's life when nothing holds it up.

Neither needs to be known apart. Over any stretch of time, ∫n/D dt (D: runnable threads per CPU, at least 1) counts the
time that pods lived less what they lost to each other, ∫u dt the time the CPUs worked, and N is one over the other,
whatever n was meanwhile. An overloaded node (n/D small, u = 1) and an idle one (D = 1, u small) name the same N.

- *Window*: a node takes pods up to N and some head room, as pods are not on time: more where CPUs were seen to idle
  with the window filled, and never more than a few times what it has run of late: errors show while they are small.
- *Pace*: pods that start together wait together and then contend together. Starts are paced at the rate at which pods
  end, so that a wave is spread over a pod's life; part of a window may be filled at once.
- *Blind start*: until pods have lived through, their waiting would pass for thrift. Until one has completed, a
  node starts with a few and adds slowly while its CPUs have room.

Sources: Little's law; Kleinrock's operating point as in TCP BBR (window and pacing from rate and round trip); slow
start and restart after idle of TCP (RFC 5681, RFC 2861). Carico, section 3.5, has no rate and reads saturation as
evidence (docs/references.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from concerto.api.capacity_settings import SlotSettings
from concerto.capacity.large_pods import LargePods

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

_CONTENDED = (2.0, 3.0)
"""Mean runnable threads per CPU over a pod's life between which head room is taken back."""
_LEAST_BUSY_SECONDS = 1e-3
_SEEN = 0.5
"""Completions, faded, from which a node has seen pods through."""
_MOST_OF_A_LIFE = 0.7
"""Part of a pod's life that may pass for the time until its load shows."""
_HALF_A_LIFE = 0.5
_LEAST_SPAN_SECONDS = 2.5
_NOW_SECONDS = 2.5
_ROUNDED = 1.5
"""A window is filled if no more than this is missing: fractions can't be filled, and ends come between batches."""
_MOST_ROOM = 2.0


@dataclass(frozen=True)
class CPUBatch:
    """What the samples of one batch show of the CPUs of N nodes.

    Attributes:
        demand: (N, b) runnable threads per CPU, D; NaN where no sample shows it.
        used: (N, b) CPU utilisation, u; NaN with ``demand``.
        own_share: (N,) share of ``used`` that pods cause.
        measured: (N,) whether the batch has a usable sample.
    """

    demand: Floats
    used: Floats
    own_share: Floats
    measured: Bools


@dataclass(frozen=True)
class PodsByAge:
    """The pods of N nodes.

    Attributes:
        present: (N,) pods now.
        settled: (N,) of them, those that have been there for long.
        certain: (N,) of them, those that are surely older than ``SlotLaw.show_seconds``.
        shown: (N, b) pods at least ``shown_age`` old, by sample.
        shown_age: (N,) an age up to ``SlotLaw.show_seconds``, by the clock that counts pods by age.
    """

    present: Floats
    settled: Floats
    certain: Floats
    shown: Floats
    shown_age: Floats

    def without(self, apart: Floats) -> PodsByAge:
        """The same without (N,) pods that are old."""
        return replace(
            self,
            present=self.present - apart,
            settled=np.maximum(self.settled - apart, 0.0),
            certain=np.maximum(self.certain - apart, 0.0),
            shown=np.maximum(self.shown - apart[:, None], 0.0),
        )


@dataclass(frozen=True)
class FirstGuess:
    """What a pod is taken to cost while none has completed.

    Attributes:
        cost: (N,) fraction of a node.
        idle_growth: by how much it rises in a second without pods, fraction of a node.
    """

    cost: Floats
    idle_growth: float


class SlotLaw:
    """Window and pace of N nodes.

    Attributes:
        window: (N,) pods the node should run, in-flight ones included.
        room: (N,) the same, as far as is believed of a node that has been filled with care only: at least the window.
        spare: (N,) share of the node's CPUs that is left for ordinary pods.
        load_now: (N,) runnable threads per CPU of late.
        tokens: (N,) pods that may start now; negative after more have started than the pace allows.
    """

    def __init__(self, n_nodes: int) -> None:
        """Nothing measured yet."""
        self.window: Floats = np.ones(n_nodes)
        self.room: Floats = np.ones(n_nodes)
        self.tokens: Floats = np.full(n_nodes, np.nan)
        self._lived: Floats = np.zeros(n_nodes)  # ∫ n/D dt, forgetting
        self._worked: Floats = np.zeros(n_nodes)  # ∫ u dt, forgetting
        self.spare: Floats = np.ones(n_nodes)
        self._load: Floats = np.zeros(n_nodes)  # over a pod's life
        self.load_now: Floats = np.zeros(n_nodes)
        self._share_now: Floats = np.ones(n_nodes)
        self._room: Floats = np.ones(n_nodes)  # learned part of the head room
        self._mean_pods: Floats = np.zeros(n_nodes)
        self._completed: Floats = np.zeros(n_nodes)
        self._lifetimes: Floats = np.zeros(n_nodes)
        self._busy_seconds: Floats = np.zeros(n_nodes)  # since the node was last without pods
        self._idle_seconds: Floats = np.zeros(n_nodes)
        self._shown_at: Floats = np.full(n_nodes, np.nan)  # of busy_seconds: when load first showed

    def started(self, node: int, age_seconds: float) -> None:
        """A pod has started; one that was found running (an agent's restart) has used no token."""
        if age_seconds < 1.0:
            self.tokens[node] -= 1.0

    def ended(self, node: int, lifetime_seconds: float) -> None:
        """A pod of that age has ended."""
        self._completed[node] += 1.0
        self._lifetimes[node] += lifetime_seconds

    def update(
        self,
        settings: SlotSettings,
        cpu: CPUBatch,
        pods: PodsByAge,
        large: LargePods,
        guess: FirstGuess,
        elapsed_seconds: float,
    ) -> None:
        """Take one batch.

        Args:
            settings: of the law.
            cpu: what its samples show of the CPUs.
            pods: the pods of the nodes.
            large: the large ones among them: only the CPU that they use counts here.
            guess: of a pod's cost, while none has completed.
            elapsed_seconds: time since the batch before.
        """
        demand, used, own_share, measured = cpu.demand, cpu.used, cpu.own_share, cpu.measured
        initial_cost, present = guess.cost, pods.present
        known = ~np.isnan(demand)
        count = np.maximum(known.sum(axis=1), 1)
        load = np.where(known, demand, 0.0).sum(axis=1) / count
        work = np.where(known, used, 0.0).sum(axis=1) / count
        spare = 1.0 - work * (1.0 - own_share) - large.wanted
        apart = np.minimum(large.count, present)
        pods = pods.without(apart)
        present, settled = pods.present, pods.settled
        own_share = np.maximum(own_share - large.share / np.maximum(work, 1e-9), 0.0)
        lived = np.where(known, pods.shown / np.maximum(np.where(known, demand, 1.0), 1.0), 0.0).sum(axis=1) / count

        self._forget(settings, present, apart, guess, elapsed_seconds)
        gained = measured * elapsed_seconds
        life = self._life()
        # Pods whose load has not shown yet would count as thrift; those that have stand for them
        self._lived += lived * gained * np.where(life > 0.0, life / np.maximum(life - pods.shown_age, 1e-9), 1.0)
        self._worked += work * own_share * gained
        self.spare += (
            np.minimum(1.0, elapsed_seconds / settings.memory_seconds)
            * measured
            * (np.maximum(spare, 0.0) - self.spare)
        )

        proven = self._completed >= _SEEN
        slots = self.spare * self._lived / np.maximum(self._worked, _LEAST_BUSY_SECONDS)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = np.where(life > 0.0, slots / life, 0.0)
        self._seen_pods(life, present, elapsed_seconds)
        named = slots
        slots = np.minimum(slots, settings.growth * self._mean_pods + 1.0)
        # Busy by demand and not by utilisation: CPUs that tasks wait for do not idle, whatever their ticks add up to
        busy = np.where(known, np.minimum(demand, 1.0), 0.0).sum(axis=1) / count
        filled = present + apart >= self.window - _ROUNDED
        self._adapt(settings, proven & measured & filled, busy, life, elapsed_seconds)
        self._load += (
            np.minimum(1.0, elapsed_seconds / np.maximum(life, settings.memory_seconds))
            * measured
            * (load - self._load)
        )
        learned = slots * (1.0 + (settings.head_room * self._room - 1.0) * self._calm())
        learned += ends * settings.turnaround_seconds + settings.extra_pods
        new = np.maximum(present - settled, 0.0)
        now = np.minimum(work * own_share + new * initial_cost, present * initial_cost) / np.maximum(present, 1.0)
        self._share_now = np.where(measured & (present > 0.0), now, initial_cost)
        first, blind, least = self._blind(settings, load, load * own_share, pods, initial_cost)
        # A node always runs one pod, and it may be a large one unless that is there to stay
        window = np.maximum(np.where(large.passing, 0.0, 1.0), np.where(proven, learned, blind))
        # What is held for later is not filled at once: neither the care of a blind start nor growth bounds it
        believed = np.minimum(np.where(proven, named, np.inf), settled + 1.0 / initial_cost)
        room = np.where((load < settings.full) & (apart == 0.0), np.maximum(window, believed), window)
        self.window, self.room = window + apart, room + apart

        # Lives lag behind: where pods contend more than those that have ended did, ends come later than theirs
        self.load_now += np.minimum(1.0, elapsed_seconds / _NOW_SECONDS) * measured * (load - self.load_now)
        slower = np.maximum(1.0, self.load_now / np.maximum(1.0, self._load))
        pace = np.maximum(np.where(proven, settings.pace * ends / slower, 0.0), settings.blind_per_second)
        tokens = np.where(np.isnan(self.tokens), first, self.tokens + pace * elapsed_seconds)
        # Pods on their way are not seen here, but are taken off what is published: leave room for them
        most = np.where(present > 0.0, 1.0, first) + np.where(proven, pace * settings.turnaround_seconds, 0.0)
        tokens = np.minimum(tokens, most)
        self.tokens = np.maximum(tokens, np.where(proven, settings.burst * window - present, least))

    def show_seconds(self) -> Floats:
        """(N,) age at which pods' load shows, as it did of the first pods of an empty node; at most most of a life."""
        life = self._life()
        most = np.where(life > 0.0, _MOST_OF_A_LIFE * life, np.inf)
        return np.minimum(np.nan_to_num(self._shown_at), most)

    def share(self) -> Floats:
        """(N,) share of the node's CPUs that an ordinary pod takes while it lives, 1/N.

        Until one has ended, it is what those that have been there for long take now, and a guess of the others.
        """
        measured = np.clip(self._worked / np.maximum(self._lived, _LEAST_BUSY_SECONDS), 0.0, 1.0)
        return np.where(self._completed >= _SEEN, measured, self._share_now)

    def mature_seconds(self) -> Floats:
        """(N,) age at which pods have taken what they take: most of a life; infinity while none has been seen."""
        return np.where(self._completed >= _SEEN, _MOST_OF_A_LIFE * self._life(), np.inf)

    def _calm(self) -> Floats:
        """1 where the CPUs keep up with their tasks, 0 where they have been overloaded for a pod's life.

        Head room on top of an overload (by others' load, say) would let a node creep up pod by pod; the more so where
        demand is only known up to 2, beyond which n/D grows with n.
        """
        return np.clip((_CONTENDED[1] - self._load) / (_CONTENDED[1] - _CONTENDED[0]), 0.0, 1.0)

    def _life(self) -> Floats:
        return self._lifetimes / np.maximum(self._completed, 1e-9)

    def _forget(
        self,
        settings: SlotSettings,
        present: Floats,
        apart: Floats,
        guess: FirstGuess,
        elapsed: float,
    ) -> None:
        """Old evidence fades over a life; while a node idles, the cost creeps up to the first guess."""
        alone = (present == 0.0) & (apart > 0.0)  # with large pods: no evidence comes, and none grows old
        busy = (present > 0.0) | alone
        self._busy_seconds = np.where(busy, self._busy_seconds + elapsed, 0.0)
        self._shown_at = np.where(busy, self._shown_at, np.nan)
        keep = np.exp(-elapsed / np.maximum(settings.memory_seconds, settings.memory_lives * self._life()))
        # What comes next may be another workload: a restart after idling, as TCP's (RFC 2861)
        slots = np.maximum(self.spare * self._lived / np.maximum(self._worked, _LEAST_BUSY_SECONDS), 1e-9)
        cost = 1.0 / slots
        risen = np.minimum(cost + guess.idle_growth * elapsed, np.maximum(cost, guess.cost))
        self._idle_seconds = np.where(busy, 0.0, self._idle_seconds + elapsed)
        forgotten = self._idle_seconds * guess.idle_growth >= guess.cost
        self._lived *= np.where(busy, 1.0, cost / risen)
        self._mean_pods = np.where(busy, self._mean_pods, np.minimum(self._mean_pods, 1.0 / risen))
        keep = np.where(alone, 1.0, np.where(forgotten, 0.0, keep))
        for sums in (self._lived, self._worked, self._completed, self._lifetimes):
            sums *= keep

    def _seen_pods(self, life: Floats, present: Floats, elapsed: float) -> None:
        """Pods that the node has run of late, over half a life."""
        span = np.maximum(_HALF_A_LIFE * life, _LEAST_SPAN_SECONDS)
        self._mean_pods += np.minimum(1.0, elapsed / span) * (present - self._mean_pods)

    def _adapt(self, settings: SlotSettings, filled: Bools, work: Floats, life: Floats, elapsed: float) -> None:
        """More head room for a node that idles with its window filled (unsteady pods), less for one that never does."""
        step = settings.adaptation * (1.0 - work - settings.idle) * np.minimum(1.0, elapsed / np.maximum(life, 1.0))
        self._room = np.clip(np.where(filled, self._room + step, self._room), 1.0, _MOST_ROOM)

    def _blind(
        self,
        settings: SlotSettings,
        load: Floats,
        by_pods: Floats,
        pods: PodsByAge,
        initial_cost: Floats,
    ) -> tuple[Floats, Floats, Floats]:
        """First wave, window and least tokens of nodes on which nothing has completed yet."""
        present, settled = pods.present, pods.settled
        first = np.maximum(1.0, settings.first_share / initial_cost)
        most = 1.0 / initial_cost
        # Pods that have been there for long are no more a risk; others may be added beside them
        window = settled + np.minimum(first + settings.blind_per_second * self._busy_seconds, most)
        # Pods old enough make the load that is seen: so many like them would fill the node, the others left as they are
        seen = np.where(np.isnan(self._shown_at) | (load >= settings.full), 0.0, pods.certain)
        by_load = np.minimum(present - seen + seen / np.maximum(by_pods, settings.shows), settled + most)
        window = np.where(seen > 0.0, np.maximum(window, by_load), window)
        least = np.where(seen > 0.0, np.minimum(by_load - present, 1.0 + present / 2.0), -np.inf)
        shows = (by_pods > settings.shows) & (present > 0.0) & np.isnan(self._shown_at)
        self._shown_at = np.where(shows, self._busy_seconds, self._shown_at)
        return first, np.where(load < settings.full, window, np.minimum(window, present)), least
