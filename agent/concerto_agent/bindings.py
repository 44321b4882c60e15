"""What an agent reads from PodCPUBindings, and what it says about them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from concerto.api.conditions import Condition, find_condition, merge_conditions
from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.api.podcpubinding import WORKLOAD_TYPE_LABEL, Level, PodCPUBinding
from concerto_agent.cpusets import Claim, Grant, Numbers, Refusal
from concerto_agent.workload_fit import CONDITION

Object = dict[str, Any]

OWN_CONDITIONS = ("Prepared", "Applied", "KubeletConflict", CONDITION)


def read_claim(obj: Mapping[str, Any], node: str, before: Claim | None) -> Claim | None:
    """What a binding asks of this node; None if the operator grants it nothing here.

    An edit that the operator has not judged yet changes nothing: what was claimed before it is claimed on.

    Args:
        obj: the PodCPUBinding.
        node: this node's name.
        before: what it claimed up to now.

    Raises:
        Exception: it cannot be read.
    """
    status = obj.get("status") or {}
    validated = find_condition(status.get("conditions"), "Validated") or {}
    uid, cpus = status.get("podUID", ""), status.get("cpus", "")
    if validated.get("status") != "True" or status.get("nodeName") != node or not uid or not cpus:
        return None
    binding = PodCPUBinding.from_raw(obj)
    generation = validated.get("observedGeneration", 0)
    if generation != obj["metadata"].get("generation", 0) and before is not None and before.pod_uid == uid:
        return before
    # An agent that has just started has no claim from before an edit, so it uses what was validated
    level = status.get("exclusivenessLevel", binding.level)
    if level not in get_args(Level):
        raise ValueError(f"exclusivenessLevel {level!r} is not supported by this agent: update it")
    return Claim(
        key=binding.key,
        created=binding.created,
        generation=generation,
        pod_uid=uid,
        cpus=parse_cpu_list(cpus),
        mems=parse_cpu_list(status.get("mems", "")),
        level=level,
        unlimited=status.get("cpuQuota", obj["spec"].get("cpuQuota")) == "Unlimited",
        containers=frozenset(status.get("containers") or ()),
        workload_type=(obj["metadata"].get("labels") or {}).get(WORKLOAD_TYPE_LABEL, ""),
    )


@dataclass(frozen=True)
class Outcome:
    """How a grant stands on the node.

    Attributes:
        cpus: what the kernel lets the pod's containers use, its sandbox among them; None while it has none of these.
        mems: likewise.
        exact: all containers have just what was granted.
        intruder: what still has CPUs of the grant; empty if nothing has.
        error: what the kernel refused; empty if it refused nothing.
        fit: whether the pod uses its CPUs as its workload type says; None as long as that is not known.
        started: whether one of the containers that the CPUs are for is known to run: a sandbox alone runs no program.
    """

    cpus: Numbers | None = None
    mems: Numbers = frozenset()
    exact: bool = False
    intruder: str = ""
    error: str = ""
    fit: Condition | None = None
    started: bool = True


def build_agent_status(
    obj: Mapping[str, Any], claim: Claim, grant: Grant | None, said: Refusal | Outcome, at: str | None, now: str
) -> Object:
    """The agent's part of a binding's status.

    Args:
        obj: the object as it is, for its conditions.
        claim: what it asks for.
        grant: what it got; None if it was refused.
        said: why it was refused, or how it stands.
        at: RFC 3339 time of the last write to the pod's cgroups; None if there was none.
        now: RFC 3339 time of this look.
    """
    before = obj.get("status") or {}
    same_pod = (before.get("applied") or {}).get("podUID") == claim.pod_uid
    applied: Object = {"podUID": claim.pod_uid}
    if isinstance(said, Refusal) or grant is None:
        assert isinstance(said, Refusal)
        conditions = [
            Condition("Prepared", "False", said.reason, said.message),
            Condition("Applied", "False", said.reason, said.message),
            _kubelet(said),
        ]
    else:
        # Between the end of a container and its next start the pod is pinned as before
        started = said.started or (same_pod and _was_applied(before, claim))
        conditions = [_prepared(claim, grant, said), _applied(claim, said, started), _kubelet(None)]
        if said.cpus is not None and started:
            applied |= {"cpus": format_cpu_list(said.cpus), "mems": format_cpu_list(said.mems)}
            if at is not None:
                applied["at"] = at
        if said.fit is not None:
            conditions.append(said.fit)
    # What was seen of the pod stays until more is seen; an agent that has just started has seen nothing
    stay = OWN_CONDITIONS if same_pod and claim.workload_type else OWN_CONDITIONS[:-1]
    mine = [c for c in before.get("conditions") or () if c["type"] in stay]
    merged = merge_conditions(mine, conditions, now=now, observed_generation=claim.generation)
    return {"applied": applied, "conditions": merged}


def own_part(status: Mapping[str, Any]) -> Object:
    """What of a status agents say; empty if none has said anything."""
    conditions = [c for c in status.get("conditions") or () if c["type"] in OWN_CONDITIONS]
    own: Object = {"applied": status["applied"]} if "applied" in status else {}
    return own | ({"conditions": conditions} if conditions else {})


def _kubelet(refusal: Refusal | None) -> Condition:
    if refusal is not None and refusal.reason == "KubeletConflict":
        return Condition("KubeletConflict", "True", "StaticPolicy", refusal.message)
    return Condition("KubeletConflict", "False", "AsExpected", "kubelet leaves the pod's CPUs to the binding.")


def _prepared(claim: Claim, grant: Grant, said: Outcome) -> Condition:
    cpus = format_cpu_list(claim.cpus)
    if said.intruder:
        text = (
            f"CPUs {cpus} can't be held for the pod: {said.intruder} still runs on some of CPUs "
            f"{format_cpu_list(grant.kept)}."
        )
        return Condition("Prepared", "False", "SharedPoolNotShrunk", text)
    kept = f"; other pods are kept off CPUs {format_cpu_list(grant.kept)}" if grant.kept else ""
    return Condition("Prepared", "True", "Held", f"CPUs {cpus} are held for pod {claim.pod_uid}{kept}.")


def _was_applied(status: Mapping[str, Any], claim: Claim) -> bool:
    applied = find_condition(status.get("conditions"), "Applied") or {}
    return applied.get("status") == "True" and applied.get("observedGeneration") == claim.generation


def _applied(claim: Claim, said: Outcome, started: bool) -> Condition:
    if said.error:
        return Condition("Applied", "False", "Refused", f"The kernel refuses the CPUs: {said.error}.")
    if said.intruder:
        return Condition(
            "Applied", "False", "SharedPoolNotShrunk", f"Other pods can't be moved off the CPUs: {said.intruder}."
        )
    if said.cpus is None:
        return Condition("Applied", "Unknown", "NoContainers", "The pod has no container on the node yet.")
    if not said.exact:
        wanted, has = format_cpu_list(claim.cpus), format_cpu_list(said.cpus)
        text = f"The containers have CPUs {has} and memory nodes {format_cpu_list(said.mems)}, not CPUs {wanted}"
        mems = f" and memory nodes {format_cpu_list(claim.mems)}" if claim.mems else ""
        return Condition("Applied", "False", "NotAsGranted", f"{text}{mems}.")
    if not started:
        return Condition("Applied", "Unknown", "NoContainers", "None of the pod's containers runs on the node yet.")
    return Condition("Applied", "True", "Applied", f"All containers run on CPUs {format_cpu_list(said.cpus)}.")
