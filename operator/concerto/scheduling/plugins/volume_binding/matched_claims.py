"""The claims of one pod and what they mean on each row, for the filter and the score alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from concerto.scheduling.framework import Query
from concerto.scheduling.plugins.volume_binding.claims import SortedClaims, sort_claims
from concerto.scheduling.plugins.volume_binding.matching import ClaimMatch


@dataclass
class _Latest:
    """What the claims mean, for all that ask for one pod: it takes long where a class has many volumes.

    Attributes:
        claims: the pod's.
        match: what they mean.
        version: of the reservations that it was made with.
    """

    claims: SortedClaims
    match: ClaimMatch
    version: int


@dataclass
class MatchedClaims:
    """The pod's claims, and what they mean on each row.

    Attributes:
        query: the pod and its cluster.
        claims: the pod's.
        match: what they mean; made again when a decision has reserved volumes.
        version: of the reservations that it was made with.
        latest: the same for filter and score.
    """

    query: Query
    claims: SortedClaims
    match: ClaimMatch
    version: int
    latest: _Latest

    @classmethod
    def of(cls, query: Query) -> Self:
        """As it is now."""
        volumes = query.cluster.volumes
        claims = sort_claims(volumes, query.pod)
        latest = _Latest(claims, ClaimMatch(volumes, query.cluster.rows, claims), volumes.reservations.version)
        query.found[cls] = latest  # without the query, or both would be in a cycle
        return cls._by(query, latest)

    @classmethod
    def found(cls, query: Query) -> Self:
        """As it was found for the filter of this query just now, if it was."""
        latest: _Latest | None = query.found.pop(cls, None)
        return cls.of(query) if latest is None else cls._by(query, latest)

    @classmethod
    def _by(cls, query: Query, latest: _Latest) -> Self:
        return cls(query, latest.claims, latest.match, latest.version, latest)

    def refresh(self) -> bool:
        """Match again, if decisions have reserved volumes since; returns whether that was so."""
        cluster, latest = self.query.cluster, self.latest
        version = cluster.volumes.reservations.version
        if version == self.version or not self.claims.waiting:
            return False
        if latest.version != version:
            latest.match, latest.version = ClaimMatch(cluster.volumes, cluster.rows, self.claims), version
        self.match, self.version = latest.match, version
        return True
