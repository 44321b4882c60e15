"""Which CPUs kubelet's static CPU manager has given to pods, by its state file ``cpu_manager_state``.

Source: Kubernetes 1.37, pkg/kubelet/cm/cpumanager/state/checkpoint.go, formats 2 to 4.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from concerto.api.cpulist import parse_cpu_list


def assigned_sets(state: Mapping[str, Any]) -> dict[str, frozenset[frozenset[int]]]:
    """The sets that were given to containers and to whole pods, by pod UID.

    A pod that was given CPUs as a whole (feature PodLevelResourceManagers) may have some that none of its containers
    has, and keeps the CPUs of containers that have ended. Format 4 has these in a document of its own.

    Args:
        state: the file's document.

    Raises:
        ValueError: it is not of any of these formats.
    """
    found: dict[str, frozenset[frozenset[int]]] = {}
    try:
        for document in _documents(state):
            for uid, containers in (document.get("entries") or {}).items():
                found[uid] = found.get(uid, frozenset()) | {parse_cpu_list(cpus) for cpus in containers.values()}
            for uid, pod in (document.get("podEntries") or {}).items():
                found[uid] = found.get(uid, frozenset()) | {parse_cpu_list(pod["cpuSet"])}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it has another form than kubelets up to 1.37 write: {error!r}") from error
    return found


def _documents(state: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield state
    if data := state.get("data"):
        yield json.loads(data)
