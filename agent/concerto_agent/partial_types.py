"""Types of the parts of API objects that an agent reads: msgspec passes over all else, and makes no objects of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import GenericAlias
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Raw


def struct(name: str, *texts: str, rename: Mapping[str, str] | None = None, **fields: Any) -> Any:
    """A type of objects of which these fields are decoded. What is not there stays so.

    Args:
        name: of the type.
        texts: fields with a text, or null.
        rename: names in JSON of the fields that are not called so.
        fields: types of all other fields. Any may be null; what is `Raw` is decoded later.
    """
    kinds = dict.fromkeys(texts, str) | fields
    typed = [(field, kind if kind is Raw else kind | None, UNSET) for field, kind in kinds.items()]
    return msgspec.defstruct(name, typed, rename=rename, gc=False)


def many(kind: Any) -> Any:
    """The type of a list."""
    return GenericAlias(list, (kind,))


def documents_of(kind: Any, read_parts: Callable[[Any], None]) -> Callable[[bytes], Any]:
    """What decodes Lists and events of watches to maps and lists, with no more of each object than its type has.

    Args:
        kind: of the objects, from `struct`.
        read_parts: puts something else in the place of what is `Raw` in an object.

    Returns:
        Takes JSON, and raises a ValueError where it is not valid. Objects that the type does not fit are decoded whole:
        no API server sends such.
    """
    metadata = struct("DocumentMetadata", "resourceVersion", "continue")
    document = struct("Document", "type", metadata=metadata, items=many(kind), object=kind)
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(document)

    def decode(text: bytes) -> Any:
        try:
            found = decoder.decode(text)
            for each in (*(found.items or ()), found.object):
                if each:
                    read_parts(each)
        except msgspec.MsgspecError:
            return orjson.loads(text)
        return msgspec.to_builtins(found)

    return decode
