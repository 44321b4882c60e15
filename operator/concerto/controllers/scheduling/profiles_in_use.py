"""The profiles by which pods are placed now, by scheduler name, and what holds over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from concerto.api.schedulingprofile import ProfileSettings
from concerto.scheduling.profile import Profile


class ProfilesInUse(Mapping[str, Profile]):
    """Profiles by scheduler name."""

    def __init__(self) -> None:
        """No profile is in use."""
        self._profiles: dict[str, Profile] = {}

    def __getitem__(self, scheduler_name: str) -> Profile:
        """The profile for pods of that scheduler name."""
        return self._profiles[scheduler_name]

    def __iter__(self) -> Iterator[str]:
        """Scheduler names."""
        return iter(self._profiles)

    def __len__(self) -> int:
        """How many profiles are in use."""
        return len(self._profiles)

    def use(self, scheduler_name: str, profile: Profile | None) -> None:
        """Pods of that scheduler name are placed by this profile from now on (None: no longer by the operator)."""
        if profile is None:
            self._profiles.pop(scheduler_name, None)
        else:
            self._profiles[scheduler_name] = profile

    def reservation_limits(self) -> tuple[int, float]:
        """Maximal units of reservations in a namespace, and the age up to which telemetry is good for them, seconds.

        Reservations belong to no profile, so the strictest of all profiles in use holds.
        """
        return (
            min((s.max_units_per_namespace for s in self._settings()), default=0),
            self.stale_after_seconds(),
        )

    def stale_after_seconds(self) -> float:
        """The age up to which an agent's status is used; 0 where no profile is in use."""
        return min((s.stale_after_seconds for s in self._settings()), default=0.0)

    def unbound_ttl_seconds(self) -> float:
        """After how long a bound pod that no agent has counted is reported; 0 where no profile is in use."""
        return min((s.unbound_ttl_seconds for s in self._settings()), default=0.0)

    def failed_start_wait_seconds(self) -> float:
        """How long a pod whose start fails keeps its measured capacity; the default where no profile is in use."""
        return min(
            (s.failed_start_wait_seconds for s in self._settings()), default=ProfileSettings.failed_start_wait_seconds
        )

    def heartbeats_missed(self) -> int:
        """After how many missed heartbeats an agent is reported; 0 where no profile is in use."""
        return min((s.heartbeats_missed for s in self._settings()), default=0)

    def _settings(self) -> list[ProfileSettings]:
        return [profile.settings for profile in self._profiles.values()]
