"""What must be there before the operator can begin: its kinds, and the ServiceAccount that owns what it makes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from concerto.kube import Forbidden, KubeError, NotFound, Object, Session
from concerto.kube.references import build_owner_reference
from concerto.kube.resources import (
    NODE_CAPACITIES,
    NODE_CPU_TOPOLOGIES,
    POD_CPU_BINDINGS,
    POD_RESERVATIONS,
    PREDICTIVE_HPAS,
    SCHEDULING_PROFILES,
    SERVICE_ACCOUNTS,
    SUBSPACE_SNAPSHOTS,
)

logger = logging.getLogger(__name__)

KINDS = (
    NODE_CAPACITIES,
    NODE_CPU_TOPOLOGIES,
    POD_CPU_BINDINGS,
    POD_RESERVATIONS,
    PREDICTIVE_HPAS,
    SCHEDULING_PROFILES,
    SUBSPACE_SNAPSHOTS,
)
"""The kinds that the operator cannot do without."""


async def wait_for_kinds(session: Session, report: Callable[[str | None], None], pause_seconds: float = 1.0) -> None:
    """Return once the API server serves every kind.

    Args:
        session: the way to the API server.
        report: given what is missing, in words, whenever that changes; None at the end.
        pause_seconds: between two requests.
    """
    before: str | None = ""
    while before is not None:
        now = await missing_kinds(session)
        if now != before:
            report(now)
            if now is not None:
                logger.warning("waiting: %s", now)
        before = now
        if now is not None:
            await asyncio.sleep(pause_seconds)


async def missing_kinds(session: Session) -> str | None:
    """What is missing before the operator can begin, in words for a person; None when nothing is."""
    group, version = SCHEDULING_PROFILES.group, SCHEDULING_PROFILES.version
    try:
        served = await session.request("GET", f"/apis/{group}/{version}", attempts=1)
    except NotFound:
        served = {}
    except KubeError as error:
        return f"the API server does not answer: {error}"
    names = {item["name"] for item in served.get("resources") or ()}
    if missing := [f"{resource.plural}.{group}" for resource in KINDS if resource.plural not in names]:
        return f"the API server does not serve {', '.join(missing)} yet: kubectl apply -k crds"
    return None


async def read_owners(
    session: Session, namespace: str, service_account: str | None, pause_seconds: float = 1.0
) -> list[Object]:
    """Owner references that name the operator's ServiceAccount; none where it is not known, or does not exist.

    Not the Deployment: where that is replaced, its pods still write for their grace period, and without a Lease a new
    leader would not wait for them. When the ServiceAccount is deleted, the API server refuses its tokens.

    An API server that does not answer now is asked again: objects without an owner would stay after an uninstallation.
    """
    if service_account is None:
        return []
    while True:
        try:
            found = await session.get(SERVICE_ACCOUNTS.path(namespace, service_account))
            break
        except (NotFound, Forbidden) as error:
            logger.warning("nothing owns the Lease and the placement records: %s", error)
            return []
        except KubeError as error:
            logger.warning("waiting to start: %s", error)
            await asyncio.sleep(pause_seconds)
    return [build_owner_reference(SERVICE_ACCOUNTS, service_account, found["metadata"]["uid"])]
