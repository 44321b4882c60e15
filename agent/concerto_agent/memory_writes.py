"""Writes of ``cpuset.mems`` below running programs: the kernel moves their pages before such a write returns.

That can take seconds, in which containers start and have to be seen to. So an agent makes these writes in a thread, and
looks at the pod again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from concerto_agent.cpusets import Plan, PodCgroups, Write

Work = Callable[[], OSError | None]
Run = Callable[[Work, Callable[[OSError | None], None]], None]
"""Has the first function called elsewhere, and then the second with its result where everything else happens."""


class MemoryWrites:
    """The writes of this kind that are under way elsewhere; without `move_to` they are made at once, with the others.

    Attributes:
        run: calls a function elsewhere; None: writes are made at once.
        on_done: called with a pod's UID after its writes.
    """

    def __init__(self, apply: Callable[[Sequence[Write]], OSError | None]) -> None:
        """Nothing is under way.

        Args:
            apply: writes one after the other, and returns the first error.
        """
        self.run: Run | None = None
        self.on_done: Callable[[str], None] = lambda uid: None
        self._apply = apply
        self._under_way: set[str] = set()
        self._moved: set[str] = set()  # with those whose writes have ended since `retry`
        self._failed: dict[str, str] = {}

    def move_to(self, run: Run, on_done: Callable[[str], None]) -> None:
        """Make these writes elsewhere from now on; arguments as the attributes."""
        self.run, self.on_done = run, on_done

    def divert(self, uid: str, pod: PodCgroups, writes: Sequence[Write]) -> Sequence[Write]:
        """Begin what may take long of a pod's writes; the others are left to the caller, in order.

        Where there is no container yet there is nothing to move, and containers take over what is written now.
        """
        later = [write for write in writes if write.file == "cpuset.mems"]
        if self.run is None or not later or not pod.containers:
            return writes
        self._under_way.add(uid)
        self._moved.add(uid)

        def done(error: OSError | None) -> None:
            self._under_way.discard(uid)
            if error is not None:
                self._failed[uid] = f"{error.strerror} ({error.filename})"
            self.on_done(uid)

        self.run(lambda: self._apply(later), done)
        return [write for write in writes if write.file != "cpuset.mems"]

    def due(self, plan: Plan) -> Plan:
        """A plan without what is under way, or was refused since `retry`."""
        enter = {}
        for uid, writes in plan.enter.items():
            waits = uid in self._under_way or uid in self._failed
            if left := [write for write in writes if not (waits and write.file == "cpuset.mems")]:
                enter[uid] = left
        return Plan(plan.leave, enter)

    def is_under_way(self, uid: str) -> bool:
        """Whether memory of the pod is being moved, so that it is not known where it will be."""
        return uid in self._under_way

    def has_moved(self, uid: str) -> bool:
        """Whether writes of the pod are under way, or have ended since `retry`: they may be of claims that are gone."""
        return uid in self._moved

    def error(self, uid: str) -> str:
        """What the kernel refused since `retry`; empty if nothing."""
        return self._failed.get(uid, "")

    def retry(self) -> None:
        """Try again what was refused."""
        self._failed.clear()
        self._moved &= self._under_way
