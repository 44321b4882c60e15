"""Pods as autoscaling sees them, with little said of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from concerto.api.pod import PodView
from concerto.api.pod_requests import ContainerResources
from concerto.api.pod_shape import shape_of


def target_pod(
    name: str = "p",
    phase: str = "Running",
    *,
    containers: Iterable[ContainerResources] = (),
    pod_level_requests: Mapping[str, int] | None = None,
    pod_level_limits: Mapping[str, int] | None = None,
    revision: str = "",
    **fields: Any,
) -> PodView:
    """A pod that is Ready since time 0, unless the fields say otherwise."""
    shape = replace(
        shape_of({"containers": []}),
        containers=tuple(containers),
        pod_level_requests=pod_level_requests,
        pod_level_limits=pod_level_limits or {},
    )
    defaults = {
        "namespace": "n",
        "uid": "",
        "labels": {"pod-template-hash": revision} if revision else {},
        "shape": shape,
        "requests": {},
        "node_name": "",
        "scheduler_name": "default-scheduler",
        "priority": 0,
        "created": 0.0,
        "deleting": False,
        "counted": True,
        "gates": (),
        "started": 0.0,
        "ready": "True",
    }
    return PodView(name=name, phase=phase, **(defaults | fields))
