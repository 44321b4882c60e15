"""Objects that a Node owns, and that the garbage collector takes some time after it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from concerto.kube import Conflict, NotFound, OutcomeUnknown, Resource, Session
from e2e.testbed.hollow.objects import Object

_PAUSE_SECONDS = 0.05


async def create_owned(session: Session, resource: Resource, body: Object) -> Object:
    """Create an object that a Node owns, unless this very Node owns one of that name already.

    One of an earlier Node of the same name is replaced: the garbage collector would take it at any moment.

    Returns:
        the object as the API server has it.
    """
    metadata = body["metadata"]
    (owner,) = metadata["ownerReferences"]
    namespace = (metadata["namespace"],) if "namespace" in metadata else ()
    path = resource.path(*namespace, name=metadata["name"])
    while True:
        with suppress(Conflict, OutcomeUnknown):  # if it was carried out, the object is found below
            return await session.create(resource.path(*namespace), body)
        with suppress(NotFound, Conflict):  # it may go, or be made anew, at any moment
            found = await session.get(path)
            if owner["uid"] in (reference["uid"] for reference in found["metadata"].get("ownerReferences", ())):
                return found
            await session.delete(path, uid=found["metadata"]["uid"])
        await asyncio.sleep(_PAUSE_SECONDS)
