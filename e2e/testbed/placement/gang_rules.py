"""Which placements of a gang the API forbids, by the documentation alone, and whether one exists.

Slow and plain on purpose, and without any code of Concerto: it checks the placements of Concerto and kube-scheduler.
Source: kubernetes.io, "Gang Scheduling", and what `rules` cites.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from e2e.testbed.placement.rules import World

Object = Mapping[str, Any]
Placed = list[tuple[Object, str]]
"""Pods and the nodes that they are placed on."""


def faults(world: World, min_count: int, placed: Placed) -> list[str]:
    """What is wrong with the placement of a gang: too few of its pods, or no order in which each pod may be placed.

    Args:
        world: the cluster, in which no pod of the gang is on a node.
        min_count: how many pods have to be placed at once.
        placed: the pods that are placed.
    """
    if not placed:
        return []
    if len(placed) < min_count:
        return [f"half a gang: {len(placed)} of {min_count} pods are placed"]
    return [] if _has_order(world, placed) else [f"in no order may each pod be placed: {_in_words(world, placed)}"]


def _has_order(world: World, placed: Placed) -> bool:
    """Whether each pod may be placed beside those before it, in some order."""
    if not placed:
        return True
    for i, (pod, node) in enumerate(placed):
        if not world.broken_on(pod, node) and _has_order(_with(world, pod, node), placed[:i] + placed[i + 1 :]):
            return True
    return False


def _in_words(world: World, placed: Placed) -> str:
    """Which rules each pod would break beside all others."""
    texts = []
    for pod, node in placed:
        beside = world
        for other, place in placed:
            beside = beside if other is pod else _with(beside, other, place)
        texts.append(f"{pod['metadata']['name']} on {node}: {sorted(beside.broken_on(pod, node))}")
    return "; ".join(texts)


def placement(world: World, min_count: int, pods: Sequence[Object]) -> Placed | None:
    """A placement of that many of the pods that breaks no rule; None without one. Tries all of them.

    Pods that are alike are taken as one kind, and no arrangement is tried twice.
    """
    kinds: dict[str, list[Object]] = {}
    for pod in pods:
        kinds.setdefault(_kind(pod), []).append(pod)
    return _search(world, min_count, kinds, [], set())


def _search(
    world: World, needed: int, kinds: Mapping[str, Sequence[Object]], placed: Placed, seen: set[object]
) -> Placed | None:
    if len(placed) == needed:
        return placed
    arrangement = frozenset(Counter((_kind(pod), node) for pod, node in placed).items())
    if arrangement in seen:
        return None
    seen.add(arrangement)
    for kind, pods in kinds.items():
        if not pods:
            continue
        for node in world.nodes:
            if world.broken_on(pods[0], node):
                continue
            rest = {**kinds, kind: pods[1:]}
            if found := _search(_with(world, pods[0], node), needed, rest, [*placed, (pods[0], node)], seen):
                return found
    return None


def _with(world: World, pod: Object, node: str) -> World:
    return replace(world, pods=[*world.pods, {**pod, "spec": {**pod["spec"], "nodeName": node}}])


def _kind(pod: Object) -> str:
    return json.dumps([pod["metadata"]["namespace"], pod["metadata"]["labels"], pod["spec"]], sort_keys=True)
