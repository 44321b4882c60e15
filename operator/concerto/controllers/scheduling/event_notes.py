"""What events about placed pods say."""

from __future__ import annotations

from concerto.api.pod import PodView
from concerto.api.podreservation import Assignment
from concerto.kube import Object
from concerto.kube.references import build_event_subject
from concerto.kube.resources import PODS
from concerto.scheduling.cycle_result import Decision

_MAX_NOTE_BYTES = 1024
"""What the API server takes as an event's note."""


def pod_subject(pod: PodView | Assignment) -> Object:
    """The pod, or the pod of an assignment, as an event's subject."""
    return build_event_subject(PODS, pod.name, namespace=pod.namespace, uid=pod.uid)


def scheduled_note(decision: Decision) -> str:
    """The Scheduled event's note: kube-scheduler's words, what the decision was based on, and the best nodes."""
    assignment = decision.assignment
    text = f"Successfully assigned {assignment.namespace}/{assignment.name} to {assignment.node}"
    if assignment.basis == "Capacity":
        text += f", which could take {assignment.available:.1f} more pods by its measured capacity"
    else:
        text += ", by requests, because the node has no recent measurement"
    if assignment.pin is not None:
        text += f"; it has CPUs {assignment.pin.cpus}, exclusiveness {assignment.pin.level}"
    if decision.by_allocation:
        text += "; there were metrics of too few nodes, so requests were used instead of load"
    separator = ". Best nodes: "
    for ranked in decision.top:
        plugins = ", ".join(f"{name} {score:.0f}" for name, score in ranked.by_plugin) or "no score"
        more = f"{separator}{ranked.node} {ranked.score:.0f} ({plugins})"
        if len(text) + len(more) > _MAX_NOTE_BYTES:
            break
        text, separator = text + more, "; "
    return text
