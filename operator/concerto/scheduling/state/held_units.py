"""People's reservations that hold units, by the pods that may use them. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain

from concerto.api.pod import PodView
from concerto.api.podreservation import Reservation, ReservationKey

_Age = tuple[float, ReservationKey]
_Label = tuple[str, str]


class HeldUnits:
    """The reservations that hold units, by namespace and by a label that their pods need.

    So a pod is compared with few of them, however many reservations its namespace has.
    """

    def __init__(self) -> None:
        # Oldest first; None stands for the selectors that require no single label
        self._ages: dict[str, dict[_Label | None, list[_Age]]] = {}
        self._views: dict[ReservationKey, Reservation] = {}

    def __bool__(self) -> bool:
        """Whether any reservation holds units."""
        return bool(self._views)

    def add(self, view: Reservation) -> None:
        """The reservation holds units."""
        self._views[view.key] = view
        by_label = self._ages.setdefault(view.namespace, {})
        insort(by_label.setdefault(view.selector.required_label, []), age_of(view))

    def remove(self, view: Reservation) -> None:
        """The reservation, which is as it was added, holds no units any more."""
        del self._views[view.key]
        by_label, label = self._ages[view.namespace], view.selector.required_label
        ages = by_label[label]
        del ages[bisect_left(ages, age_of(view))]
        if not ages:
            del by_label[label]
            if not by_label:
                del self._ages[view.namespace]

    def oldest_for(self, pod: PodView) -> ReservationKey | None:
        """The oldest reservation of the pod's namespace that holds units and selects the pod; None without one."""
        if (by_label := self._ages.get(pod.namespace)) is None:
            return None
        oldest: _Age | None = None
        for label in chain((None,), pod.labels.items()):
            for age in by_label.get(label, ()):
                if oldest is not None and oldest < age:
                    break
                if self._views[age[1]].selector.matches(pod.labels):
                    oldest = age
                    break
        return None if oldest is None else oldest[1]


def age_of(view: Reservation) -> _Age:
    """Its place among reservations, the oldest of which come first."""
    return (view.created, view.key)
