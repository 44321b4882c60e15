"""The claims of one pod and what they mean on each row, for the filter and the score alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from concerto.scheduling.framework import Query
from concerto.scheduling.plugins.volume_binding.claims import SortedClaims, sort_claims
from concerto.scheduling.plugins.volume_binding.matching import ClaimMatch


@dataclass
class MatchedClaims:
    """The pod's claims, and what they mean on each row.

    Attributes:
        query: the pod and its cluster.
        claims: the pod's.
        match: what they mean; made again when a decision has reserved volumes.
        version: of the reservations that it was made with.
    """

    query: Query
    claims: SortedClaims
    match: ClaimMatch
    version: int

    @classmethod
    def of(cls, query: Query) -> Self:
        """As it is now."""
        volumes = query.cluster.volumes
        claims = sort_claims(volumes, query.pod)
        return cls(query, claims, ClaimMatch(volumes, query.cluster.rows, claims), volumes.reservations.version)

    def refresh(self) -> bool:
        """Match again, if decisions have reserved volumes since; returns whether that was so."""
        cluster = self.query.cluster
        if cluster.volumes.reservations.version == self.version or not self.claims.waiting:
            return False
        self.version = cluster.volumes.reservations.version
        self.match = ClaimMatch(cluster.volumes, cluster.rows, self.claims)
        return True
