"""The operator's part of a PodCPUBinding's status: its verdict, and what follows from the agent's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from concerto.api.conditions import Condition, find_condition, merge_conditions, with_progress
from concerto.api.cpulist import parse_cpu_list
from concerto.api.podcpubinding import ResourceStatus
from concerto.kube import Object
from concerto.pinning.validation import Verdict, brackets

OWN_CONDITIONS = frozenset({"Ready", "Validated", "Reconciling", "Stalled"})
_OWN_FIELDS = (
    "observedGeneration", "nodeName", "podUID", "resourceStatus", "cpus", "mems", "exclusivenessLevel", "cpuQuota",
    "containers",
    "conflictsWith",
)  # fmt: skip
_FINAL = frozenset({"InvalidCPUSet", "Failed"})
"""Statuses that only an edit changes; the others change with the pod, the node or another binding."""
NOT_ANSWERED = "AgentNotSupported"


@dataclass(frozen=True)
class Answer:
    """What the node's agent says about the present generation of a binding and its present pod.

    Attributes:
        prepared: it knows the CPUs and keeps others from them.
        applied: the pod's containers run on just the CPUs that were validated.
        waiting: nothing is wrong, but there is no container yet.
        reason: of what is in the way; empty if nothing is.
        message: the sentence that goes with it.
    """

    prepared: bool = False
    applied: bool = False
    waiting: bool = True
    reason: str = ""
    message: str = ""


def read_answer(obj: Mapping[str, Any], verdict: Verdict) -> Answer | None:
    """The agent's answer; None if it has given none about this generation of the spec and this very pod."""
    status = obj.get("status") or {}
    applied = status.get("applied") or {}
    conditions = status.get("conditions")
    prepared, condition = (find_condition(conditions, kind) for kind in ("Prepared", "Applied"))
    current = prepared is not None and prepared.get("observedGeneration") == obj["metadata"].get("generation", 0)
    if prepared is None or not current or applied.get("podUID") != verdict.pod_uid:
        return None
    if prepared["status"] != "True":
        return Answer(waiting=False, reason=prepared["reason"], message=prepared["message"])
    if condition is None or condition["status"] == "Unknown":
        return Answer(prepared=True)
    if condition["status"] == "True" and (granted := applied.get("cpus", "")) == verdict.cpus:
        # Memory nodes are the agent's to judge: kubelet may rule them, and some have no memory
        return Answer(prepared=True, applied=True, waiting=False)
    if condition["status"] == "True":
        text = f"The kernel grants CPUs {granted}, which differ from those that were validated."
        return Answer(prepared=True, waiting=False, reason="NotAsGranted", message=text)
    return Answer(prepared=True, waiting=False, reason=condition["reason"], message=condition["message"])


def is_stale(obj: Mapping[str, Any], verdict: Verdict) -> bool:
    """Whether the agent's answer is about another pod than the binding's, so that the operator has to remove it."""
    applied = (obj.get("status") or {}).get("applied")
    return applied is not None and applied.get("podUID") != verdict.pod_uid


def build_binding_status(obj: Object, verdict: Verdict, now: str, *, patient: bool = True) -> Object:
    """The operator's part of a PodCPUBinding's status; the agent's is its own.

    Args:
        obj: the object as it is, for its generation, conditions, and the agent's answer.
        verdict: how it stands.
        now: RFC 3339 time of this look.
        patient: whether the agent may still be expected to answer.
    """
    generation = obj["metadata"].get("generation", 0)
    valid = verdict.status == "Validated"
    answer = read_answer(obj, verdict) if valid else None
    resource_status: ResourceStatus = verdict.status
    if answer is not None and answer.applied:
        resource_status = "Applied"
    elif answer is not None and answer.reason:
        resource_status = "CPUSetAllocationFailed"
    conditions = [Condition("Validated", "True" if valid else "False", verdict.reason, verdict.message)]
    conditions += _progress(verdict, answer, patient) if valid else _refused(verdict)
    status: Object = {"observedGeneration": generation, "resourceStatus": resource_status}
    for name, value in (
        ("nodeName", verdict.node), ("podUID", verdict.pod_uid), ("cpus", verdict.cpus), ("mems", verdict.mems),
    ):  # fmt: skip
        if value:
            status[name] = value
    if valid:
        status["exclusivenessLevel"] = obj["spec"].get("exclusivenessLevel", "None")
        status["cpuQuota"] = obj["spec"].get("cpuQuota", "Kubelet")
        if containers := obj["spec"].get("containers"):
            status["containers"] = containers
    if verdict.loses_to is not None:
        status["conflictsWith"] = dict(zip(("namespace", "name"), verdict.loses_to, strict=True))
    mine = [c for c in (obj.get("status") or {}).get("conditions") or () if c["type"] in OWN_CONDITIONS]
    status["conditions"] = merge_conditions(mine, conditions, now=now, observed_generation=generation)
    return status


def _refused(verdict: Verdict) -> list[Condition]:
    final = verdict.status in _FINAL
    waiting = "Validated again with each change of the pod, the node or other bindings."
    if final:
        waiting = "Waiting for an edit, or for the conflict to end."
    return [
        Condition("Ready", "False", verdict.reason, verdict.message),
        Condition("Reconciling", "False" if final else "True", verdict.reason, waiting),
        Condition("Stalled", "True" if final else "False", verdict.reason, waiting),
    ]


def _progress(verdict: Verdict, answer: Answer | None, patient: bool) -> list[Condition]:
    if answer is None and not patient:
        text = (
            f"The agent of node {verdict.node} does not pin: it is not running, or runs without --pinning. "
            "The CPUs are held against other bindings, but the pod is not pinned."
        )
        return with_progress(Condition("Ready", "False", NOT_ANSWERED, text))
    if answer is None:
        return _waiting("NotApplied", f"Waiting for the agent of node {verdict.node}.")
    if answer.applied:
        return with_progress(Condition("Ready", "True", "Applied", f"The pod runs on CPUs {verdict.cpus}."))
    if answer.waiting:
        return _waiting("Prepared", f"The agent of node {verdict.node} waits for the pod's containers.")
    return with_progress(Condition("Ready", "False", answer.reason, answer.message))


def _waiting(reason: str, message: str) -> list[Condition]:
    return with_progress(Condition("Ready", "False", reason, message), message)


def own_part(status: Mapping[str, Any]) -> Object:
    """The operator's part of a status."""
    own = {name: status[name] for name in _OWN_FIELDS if name in status}
    return own | {"conditions": [c for c in status.get("conditions") or () if c["type"] in OWN_CONDITIONS]}


@dataclass(frozen=True)
class BindingEvent:
    """An event about a binding. Source: Stefanakis, listings 6.3 and 6.4 (docs/references.md).

    Attributes:
        type: Normal or Warning.
        reason: the ``resourceStatus`` that was reached.
        note: its text.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    note: str


def binding_event(before: Mapping[str, Any], after: Mapping[str, Any]) -> BindingEvent | None:
    """The event for a change of status; None if there is nothing to report."""
    event = _event_of(after)
    if event == _event_of(before) or event is None:
        return None
    same_pod = before.get("podUID") == after.get("podUID") and before.get("cpus") == after.get("cpus")
    if event.reason == "Validated" and same_pod and before.get("resourceStatus") == "Applied":
        return None  # it was reported before, and is being applied again
    return event


def _event_of(status: Mapping[str, Any]) -> BindingEvent | None:
    reached = status.get("resourceStatus")
    if reached in (None, "Pending"):
        return None
    kind = {"Applied": "Applied", "Validated": "Validated"}.get(str(reached), "Ready")
    message = (find_condition(status.get("conditions"), kind if kind != "Applied" else "Ready") or {}).get("message")
    if reached == "Applied":
        cpus, mems = (brackets(parse_cpu_list(status.get(name, ""))) for name in ("cpus", "mems"))
        message = f"Applied CPUSet {cpus}, MemSet {mems}"
    return BindingEvent("Normal" if reached in ("Validated", "Applied") else "Warning", str(reached), str(message))
