"""Constants of placement by kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KindSettings:
    """Constants of the law.

    Attributes:
        head_room: shares that a node is filled to, in parts of its cores, while it is not known how unsteady its pods
            are: some are always about to begin or to end.
        unsteadiness: what a node is filled to beyond its cores otherwise, in times of how unsteady they are
            (``HeadRoom``).
        steady: pods count as steady that are so unsteady, in the same measure.
        max_head_room: what a node is filled to at most, also where it is filled and seen to idle.
        pace: core-seconds of work that a node is given in a second, in parts of the cores that pods may use, less what
            those take of them that are not paced: pods without end, and of unknown kinds.
        crowded: pods that compute, or wait for a core altogether, per core. With more, a node is given work slower.
        slower: by how much, in parts of the pace, for each pod per core beyond.
        slowest: part of the pace that is left in any case: pods may wait for what is no pod, too.
        burst: work that a node may be given at once, in parts of what it does in a pod's life.
        min_burst_seconds: a lower bound of the same, in seconds of its cores. Pods that are placed together do not all
            compute at once: runtimes start them one after the other, and kubelet checks once a second what has started
            or ended. With less, CPUs would idle at the beginning and the end of a burst of very short pods. With more,
            longer pods would wait for each other throughout their Job: as much work is on its way as was given at once.
        light_share: cores that a light pod takes at most. It does not wait until the work of heavier pods is done: that
            takes as long as many light ones live, and a light pod hardly adds to that work.
        light_burst: ``burst`` for light pods, whose work is short beside their lives even if they all compute at once.
        max_paced_seconds: of longer pods only the work of so many seconds is paced: they would else keep a node from
            being filled for as long as one lives, and no pods compute in step for that long.
        last_pods: how far a node may be filled beyond its head room, in parts of its cores, if all waiting pods fit
            then. Otherwise they would wait until others have ended, while CPUs idle. ``max_head_room`` bounds both. If
            all fit, and at least half of them within the head room, they are not paced: no others wait that would
            compute at the same time. 0: they wait as others do.
        overhang: part of a pod's share that has to fit: the last pod of a node may stand over by the rest. Light pods
            of at most half the mean share of those on the node are placed as if it did not.
        memory: part of the memory that is filled.
        default_memory: bytes that a pod is taken to use while nothing is known.
        default_life_seconds: a pod's life while nothing is known.
        blind_cores: cores for each pod of which nothing is known yet.
        larger_first: whether, of pods that were created in the same second, those come first that take most.
    """

    head_room: float = 1.15
    unsteadiness: float = 1.05
    steady: float = 0.13
    max_head_room: float = 2.0
    pace: float = 1.0
    crowded: float = 1.0
    slower: float = 0.25
    slowest: float = 0.75
    burst: float = 0.15
    min_burst_seconds: float = 0.6
    light_share: float = 0.125
    light_burst: float = 0.3
    max_paced_seconds: float = 30.0
    last_pods: float = 0.4
    overhang: float = 0.3
    memory: float = 0.95
    default_memory: float = 64 * 2.0**20
    default_life_seconds: float = 2.0
    blind_cores: float = 4.0
    larger_first: bool = True
