"""`concerto explain pod NAMESPACE/NAME`: what every filter and score says of every node, and what was decided.

`concerto explain phpa NAMESPACE/NAME` is in `explain_phpa`.

What was decided, and the best nodes then, is in the pod's events. The table is computed from the API server's objects
as they are now, by the code that schedules, so it needs neither the operator nor anything that it would have to keep.
Of a pod that runs it says how things would stand were it to be placed again. A profile's metric provider is asked once,
with the rights of the user, on the user's machine.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from concerto.api.node import NodeView
from concerto.api.nodecapacity import NodeCapacity
from concerto.api.nodecputopology import NodeCPUTopology
from concerto.api.pod import PodView
from concerto.api.pod_trimming import trim_pod
from concerto.api.pod_volumes import NO_VOLUMES
from concerto.api.poddisruptionbudget import DisruptionBudget
from concerto.api.podreservation import Reservation
from concerto.api.schedulingprofile import ProfileSettings
from concerto.api.subspacesnapshot import CLUSTER_NAME, SubspaceSnapshot
from concerto.api.timestamps import read_timestamp
from concerto.capacity.kinds.cluster_kinds import MAX_KNOWN
from concerto.capacity.kinds.table import MAX_ENTRIES, Table, from_entries
from concerto.cli.cluster_reading import complain, list_all, printable, put_all, shortened
from concerto.cli.explain_devices import read_devices
from concerto.cli.explain_gang import read_gang
from concerto.cli.explain_phpa import explain_phpa, fetch
from concerto.cli.explain_volumes import read_storage, waits_for
from concerto.controllers.scheduling.load_providers import SourceError, build_source
from concerto.kube import ClusterConfig, ConfigError, KubeError, NotFound, Object, Session
from concerto.kube.kubeconfig import add_cluster_arguments, load_config
from concerto.kube.resources import (
    EVENTS,
    NAMESPACES,
    NODE_CAPACITIES,
    NODE_CPU_TOPOLOGIES,
    NODES,
    POD_CPU_BINDINGS,
    POD_DISRUPTION_BUDGETS,
    POD_RESERVATIONS,
    PODS,
    SCHEDULING_PROFILES,
    SUBSPACE_SNAPSHOTS,
)
from concerto.scheduling.explanation import NodeVerdict, cost_in_words, explain
from concerto.scheduling.profile import Profile
from concerto.scheduling.state.cluster import ClusterState

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `concerto explain`."""
    parser.add_argument(
        "kind",
        choices=["pod", "phpa"],
        help="pod: what filters and scores say of each node; phpa: where replicas come from",
    )
    parser.add_argument("object", metavar="NAMESPACE/NAME", help="the pod or the PredictiveHPA")
    add_cluster_arguments(parser)
    parser.add_argument(
        "--operator-namespace",
        default="concerto-system",
        help="where the Secret of a profile's metric provider is (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation; returns the exit status, 1 if the object cannot be explained."""
    named = split_name(args.object)
    kind = {"pod": "pod", "phpa": "PredictiveHPA"}[args.kind]
    if named is None:
        complain("explain", f"{args.object!r} is not the name of a {kind}: give NAMESPACE/NAME")
        return 2
    namespace, name = named
    try:
        config = load_config(args.kubeconfig, args.context)
        if args.kind == "phpa":
            text = explain_phpa(asyncio.run(fetch(config, namespace, name)), time.time())
        else:
            text = asyncio.run(_explain(config, namespace, name, args.operator_namespace))
    except NotFound:
        complain("explain", f"there is no {kind} {namespace}/{name}")
        return 1
    except (ConfigError, KubeError, ValueError) as error:
        complain("explain", error)
        return 1
    except KeyError as error:
        complain("explain", f"an object of the cluster has no field {error}")
        return 1
    except LookupError as error:
        complain("explain", error.args[0])
        return 1
    print(printable(text))
    return 0


def split_name(text: str) -> tuple[str, str] | None:
    """Namespace and name of NAMESPACE/NAME, or of NAME in namespace default; None if it is neither."""
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = "default", text
    return (namespace, name) if _NAME.fullmatch(namespace) and _NAME.fullmatch(name) else None


async def _explain(config: ClusterConfig, namespace: str, name: str, operator_namespace: str) -> str:
    async with await Session.open(config) as session:
        raw = await session.get(PODS.path(namespace, name))
        kinds = (
            NODES, PODS, NODE_CAPACITIES, POD_RESERVATIONS, SCHEDULING_PROFILES, NODE_CPU_TOPOLOGIES, POD_CPU_BINDINGS,
            POD_DISRUPTION_BUDGETS, NAMESPACES,
        )  # fmt: skip
        items = await asyncio.gather(*(list_all(session, kind) for kind in kinds))
        table = await read_kinds(session)
        events = await session.list(EVENTS.path(namespace), field_selector=f"regarding.uid={raw['metadata']['uid']}")
        nodes, pods, capacities, reservations, profiles, topologies, bindings, budgets, namespaces = items
        try:
            pod = PodView.from_raw(trim_pod(raw))
        except Exception as error:
            raise LookupError(f"pod {namespace}/{name} cannot be read: {type(error).__name__}: {error}") from error
        now, left_out = time.time(), list[str]()
        # Without the pod, and without its own CPUs: it is asked where it would go
        cluster = build_snapshot(
            nodes,
            [p for p in pods if p["metadata"]["uid"] != pod.uid],
            capacities,
            reservations,
            now,
            topologies=topologies,
            bindings=[b for b in bindings if (b.get("status") or {}).get("podUID") != pod.uid],
            kinds=table,
            namespaces=namespaces,
            problems=left_out,
        )
        put_all(
            "PodDisruptionBudget", budgets, lambda raw: cluster.budgets.set(DisruptionBudget.from_raw(raw)), left_out
        )
        profile = find_profile(profiles, pod.scheduler_name)
        problem = await _measure(session, operator_namespace, cluster, profile, now)
        problem += await read_gang(session, cluster, pod)
        problem += await read_devices(session, cluster, pod)
        if pod.volumes:
            try:
                await read_storage(session, cluster.volumes)
                problem += waits_for(cluster.volumes, pod)
            except KubeError as error:
                problem.append(f"The pod's volumes are left out, as storage cannot be read: {error}")
                pod = replace(pod, volumes=NO_VOLUMES)
    verdicts = explain(cluster, replace(pod, node_name=""), profile, now)
    if any(verdict.by_allocation for verdict in verdicts):
        problem.append("Metrics of too few nodes are known now, so requests are used instead of load")
    known = [text] if (text := cost_in_words(cluster, pod)) else []
    known += full_table_note(table)
    problem += shortened(left_out)
    return render(pod, [*events_of(pod, events["items"]), *known, *problem], verdicts)


async def read_kinds(session: Session) -> Table:
    """What SubspaceSnapshot ``cluster`` shows of kinds of pods; nothing while agents have measured none."""
    try:
        raw = await session.get(SUBSPACE_SNAPSHOTS.path(name=CLUSTER_NAME))
    except NotFound:
        return {}
    try:
        status = SubspaceSnapshot.from_raw(raw).status
    except Exception:  # the operator writes it anew; until then nothing is known
        return {}
    return {} if status is None else from_entries(status.kinds)


def full_table_note(table: Table) -> list[str]:
    """What to say of numbers by a table that may lack kinds; empty where it holds all that were measured."""
    if len(table) < MAX_ENTRIES:
        return []
    return [
        f"SubspaceSnapshot {CLUSTER_NAME} shows {len(table)} kinds and groups of pods, as many as it can hold. The "
        f"operator decides by up to {MAX_KNOWN:,}, so costs and what nodes have left may differ from these"
    ]


def events_of(pod: PodView, events: Sequence[Object]) -> list[str]:
    """Events about its placement, oldest first; of a bound pod only those of the successful attempt."""
    reasons = ("Scheduled",) if pod.node_name else ("Scheduled", "FailedScheduling")
    found = [e for e in events if e.get("reason") in reasons]
    return [note for e in sorted(found, key=_last_seen) if (note := e.get("note"))]


def _last_seen(event: Object) -> float:
    series = event.get("series") or {}
    at = series.get("lastObservedTime") or event.get("eventTime") or event.get("deprecatedLastTimestamp")
    return read_timestamp(at, 0.0)


async def _measure(
    session: Session, operator_namespace: str, cluster: ClusterState, profile: Profile, now: float
) -> list[str]:
    """Have the profile's provider, if it has one, say how loaded nodes are; what to say of it if it does not."""
    if not profile.settings.load.provider:
        return []
    source = build_source(session, operator_namespace, profile.settings, time.monotonic)
    try:
        answer = await source.fetch()
    except SourceError as error:
        return [
            f"The metric provider gives no answer here ({error.reason}: {error}), so requests are used instead of load"
        ]
    finally:
        await source.close()
    cluster.provide(profile.settings.load.provider, answer.series, now)
    return []


def build_snapshot(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    capacities: Sequence[Object],
    reservations: Sequence[Object],
    now: float,
    *,
    topologies: Sequence[Object] = (),
    bindings: Sequence[Object] = (),
    kinds: Table | None = None,
    namespaces: Sequence[Object] = (),
    problems: list[str] | None = None,
) -> ClusterState:
    """The cluster as the operator sees it when it has just started; in-flight batches say nothing that pods do not.

    Objects that cannot be read are left out; a sentence about each is added to ``problems``.
    """
    problems = [] if problems is None else problems
    cluster = ClusterState()
    if kinds:
        cluster.kinds.set_table(kinds)
    for raw in namespaces:
        cluster.namespaces.set(raw["metadata"]["name"], raw["metadata"].get("labels") or {})
    standing = [raw for raw in reservations if "podSelector" in (raw.get("spec") or {})]
    put_all("Node", nodes, lambda raw: cluster.set_node(NodeView.from_raw(raw)), problems)
    put_all("Pod", pods, lambda raw: cluster.set_pod(PodView.from_raw(trim_pod(raw)), now), problems)
    put_all("NodeCapacity", capacities, lambda raw: cluster.set_capacity(NodeCapacity.from_raw(raw), now), problems)
    put_all("PodReservation", standing, lambda raw: cluster.set_reservation(Reservation.from_raw(raw)), problems)
    put_all("NodeCPUTopology", topologies, lambda raw: cluster.set_topology(NodeCPUTopology.from_raw(raw)), problems)
    put_all("PodCPUBinding", bindings, cluster.set_cpu_binding, problems)
    return cluster


def find_profile(profiles: Sequence[Object], scheduler_name: str) -> Profile:
    """The profile in use for a scheduler name.

    Raises:
        LookupError: there is no such profile, or it cannot be used.
    """
    rivals = [p for p in profiles if p["spec"].get("schedulerName") == scheduler_name]
    if not rivals:
        raise LookupError(
            f"no SchedulingProfile has spec.schedulerName {scheduler_name}, the pod's: Concerto does not place it"
        )
    oldest = min(rivals, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))
    name = oldest["metadata"]["name"]
    try:
        return Profile.build(ProfileSettings.from_raw(oldest["spec"]))
    except Exception as error:
        raise LookupError(
            f"SchedulingProfile {name} cannot be used: {error}. `kubectl describe sprof {name}` shows what is wrong"
        ) from error


def render(pod: PodView, events: Sequence[str], verdicts: Sequence[NodeVerdict]) -> str:
    """Text for a terminal: the pod, its events, and a table of nodes; - where a score gives no number."""
    where = f"on {pod.node_name}" if pod.node_name else "" if pod.terminal else "waiting"
    state = " ".join(filter(None, ("ended" if pod.terminal else "", where)))
    # Whoever may create events may have written them, and several lines as one
    notes = (printable(note.replace("\n", "\r")) for note in events)
    lines = [f"Pod {pod.key}, {state}, schedulerName {pod.scheduler_name}", *(f"  {note}" for note in notes), ""]
    if pod.node_name:
        lines.append("Were it placed now (*: where it is):")
    plugins = list(next((v.scores for v in verdicts if v.scores), {}))
    with_left = any(v.left for v in verdicts)
    rows = [["NODE", "BASIS", *(["LEFT"] if with_left else []), "TOTAL", *plugins, ""]]
    for v in verdicts:
        mark = "*" if v.node == pod.node_name else ""
        node = [v.node + mark, v.basis, *([v.left or "-"] if with_left else [])]
        if v.refused_by:
            rows.append([*node, "-", *("" for _ in plugins), _refusal(v)])
        else:
            scores = ["-" if (score := v.scores[p]) is None else f"{score:.0f}" for p in plugins]
            rows.append([*node, f"{v.total:.1f}", *scores, ""])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _refusal(verdict: NodeVerdict) -> str:
    text = f"{verdict.refused_by}: {verdict.reason}"
    if verdict.victims is None:
        return text
    pods = "1 pod" if verdict.victims == 1 else f"{verdict.victims} pods"
    return f"{text}; would fit after preempting {pods} of lower priority"
