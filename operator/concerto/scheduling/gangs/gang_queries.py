"""What filters are asked about the pods of one gang. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass

from concerto.api.pod import PodView
from concerto.scheduling.framework import Query, Reach
from concerto.scheduling.gangs.gang import Gang
from concerto.scheduling.nominated_room import Prepared
from concerto.scheduling.profile import Profile
from concerto.scheduling.queries import Request, query_for, request_of
from concerto.scheduling.state.cluster import ClusterState


@dataclass(frozen=True)
class GangQueries:
    """A gang, and the queries of its pods.

    Attributes:
        cluster: the cluster.
        gang: the gang.
        profile: of its pods.
        now: seconds since the epoch.
        alike: by UID of its pods, a key that is equal for those with equal queries.
    """

    cluster: ClusterState
    gang: Gang
    profile: Profile
    now: float
    alike: Mapping[str, Hashable]

    def query(self, pod: PodView) -> Query:
        """What filters are asked about the pod."""
        return query_for(self.cluster, pod, self.profile, self.now, self.request(pod))

    def request(self, pod: PodView) -> Request:
        """What the pod asks for beyond its shape."""
        return request_of(self.cluster, pod, self.profile, self.now, starts_together=True)

    def one_of_each(self) -> Collection[PodView]:
        """One pod of the gang for each `alike`."""
        return {self.alike[pod.uid]: pod for pod in self.gang.members}.values()

    def prepared(self, pod: PodView, reach: Callable[[Reach], bool]) -> Prepared:
        """The filters of such a reach that concern the pod, with what they prepared for it."""
        query = self.query(pod)
        plugins = (plugin for plugin in self.profile.filters if reach(plugin.reach))
        return [(plugin, state) for plugin in plugins if (state := plugin.prepare(query)) is not None]
