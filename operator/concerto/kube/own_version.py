"""Which version of Concerto this is."""

from __future__ import annotations

import sys
from pathlib import Path

_PREFIX, _SUFFIX = "concerto_k8s-", ".dist-info"


def own_version() -> str | None:
    """The version that is installed; None if it is not.

    The name of the folder that pip makes has it. ``importlib.metadata`` reads the same with 0.8 MiB of modules, which
    every node would have to keep.
    """
    for folder in sys.path:
        try:
            names = [path.name for path in Path(folder).iterdir()]
        except OSError:
            continue
        for name in names:
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
                return name[len(_PREFIX) : -len(_SUFFIX)]
    return None
