"""Decoding of objects that anybody may make as large as the API server takes them: only what an agent reads is held.

A pod may have 1.5 MiB of environment or arguments, and anything as many labels and annotations. Decoded whole, that
takes 60 MiB, half of what an agent may have, and not less where it is one text of characters that JSON escapes.
"""

from __future__ import annotations

from typing import Any

import orjson

_SMALL_BYTES = 256 * 1024
"""Text up to this length is decoded whole, and takes 4 MiB at most."""


# Few nodes ever have such an object: other agents don't hold the modules


def decode_pods(text: bytes) -> Any:
    """A PodList, or an event of a watch, as the API server sends it; of a large one, only what `trim_pod` reads.

    Raises:
        ValueError: it is not JSON.
    """
    if len(text) <= _SMALL_BYTES:
        return orjson.loads(text)
    from concerto_agent.large_pods import decode

    return decode(text)


def decode_bindings(text: bytes) -> Any:
    """The same of PodCPUBindings.

    Raises:
        ValueError: it is not JSON.
    """
    if len(text) <= _SMALL_BYTES:
        return orjson.loads(text)
    from concerto_agent.large_bindings import decode

    return decode(text)


def decode_binding(text: bytes) -> Any:
    """The same of one PodCPUBinding, as a write of its status is answered.

    Raises:
        ValueError: it is not JSON.
    """
    return orjson.loads(text) if len(text) <= _SMALL_BYTES else decode_bindings(b'{"object":%b}' % text)["object"]
