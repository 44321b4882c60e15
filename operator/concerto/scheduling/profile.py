"""A SchedulingProfile with its plugins in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.plugin import Filter, Score
from concerto.scheduling.registry import FILTERS, SCORES


@dataclass(frozen=True)
class Profile:
    """How the pods of one scheduler name are placed. Profiles share no state.

    Attributes:
        settings: the SchedulingProfile's spec.
        filters: in the order in which they run.
        scores: (plugin, weight).
    """

    settings: ProfileSettings
    filters: tuple[Filter, ...]
    scores: tuple[tuple[Score, int], ...]

    @classmethod
    def build(cls, settings: ProfileSettings) -> Self:
        """The profile that a SchedulingProfile's spec describes.

        Raises:
            KeyError: a plugin of that name does not exist (the CRD's enum refuses it).
        """
        return cls(
            settings,
            tuple(FILTERS[name]() for name in settings.filters),
            tuple((SCORES[score.name](score), score.weight) for score in settings.scores),
        )
