"""Bounds that docs state: each is the number that the code has, and those that no other test reaches hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from concerto.api import pod_shape, pod_trimming, selector_text
from concerto.capacity.kinds import cluster_kinds, table
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import answers, prometheus
from concerto.controllers.autoscaling.state import State
from concerto.controllers.autoscaling.status import selector_status
from concerto.controllers.autoscaling.tracked import ObjectEvents, TrackedObject
from concerto.controllers.runtime import reconciler
from concerto.controllers.scheduling.binding_load import PipelineSettings
from concerto.controllers.scheduling.eviction import EvictionSettings
from concerto.controllers.scheduling.pod_group_status import PodGroupStatusSettings
from concerto.controllers.scheduling.preemption import PreemptionSettings
from concerto.controllers.scheduling.unschedulable import ReporterSettings
from concerto.kube import SessionSettings, place_shares, transport
from concerto.kube.access_review import MAX_TOKEN_BYTES
from concerto.kube.events import EventSettings
from concerto.kube.fair_places import FairPlaces
from concerto.kube.lease import LeaseSettings
from concerto.scheduling.gangs import gang
from concerto.scheduling.plugins.volume_binding import claims
from concerto.scheduling.state import namespaces, pod_counts, pod_terms
from concerto.serving.connection_limiter import ConnectionLimits
from concerto.serving.http_server import _LIMITS as WITHOUT_TLS
from concerto_agent.pod_metrics_server import _LIMITS as POD_METRICS

DOCS = Path(__file__).resolve().parents[1] / "docs"
TLS, LEASE, PIPELINE, AUTOSCALER = ConnectionLimits(), LeaseSettings(), PipelineSettings(), PredictiveHPASettings()
PREEMPTION, REPORTER = PreemptionSettings(), ReporterSettings()

# A phrase whose N stands for the number
STATED: dict[tuple[str, str], float] = {
    ("security", "N without TLS"): WITHOUT_TLS.connections,
    ("security", "N with TLS"): TLS.connections,
    ("security", "N handshakes of"): TLS.handshakes,
    ("security", "handshakes of N s"): TLS.handshake_seconds,
    ("security", "time without a request | N s"): TLS.keep_alive_seconds,
    ("security", "requests | N a second"): TLS.turns.per_second,
    ("security", "and N more after a pause"): TLS.turns.burst,
    ("security", "have no answer yet | N KiB"): TLS.requests.max_bytes / 1024,
    ("security", "bytes of a bearer token | N;"): MAX_TOKEN_BYTES,
    ("security", "has read its answer | N s"): TLS.requests.send_seconds,
    ("architecture", "constraints take more than N KiB"): pod_shape.MAX_BYTES / 1024,
    ("architecture", "N comparisons with pods"): pod_counts.MAX_COMPARISONS,
    ("architecture", "N with namespaces for its required"): namespaces.MAX_COMPARISONS,
    ("architecture", "N with volumes, where"): claims.MAX_COMPARISONS,
    ("architecture", "where N volumes or nodes count as one comparison"): claims.VOLUMES_AT_ONCE,
    ("architecture", "up to N requirements and values"): pod_terms.MAX_PARTS_OF_A_NAMESPACE,
    ("architecture", "up to N rows"): cluster_kinds.ROWS_A_LOOK,
    ("architecture", "it writes nothing from N s after"): LEASE.renew_deadline_seconds,
    ("architecture", "A successor waits N s"): LEASE.lease_duration_seconds,
    ("architecture", "A binding times out after N s"): PIPELINE.binding_timeout_seconds,
    ("architecture", "is not acknowledged within N s"): transport._UNACKNOWLEDGED_MILLISECONDS / 1000,
    ("architecture", "come before them, N are in flight"): PIPELINE.max_concurrent_bindings,
    ("architecture", "bindings, and writes that come before them | N |"): PIPELINE.max_concurrent_bindings,
    ("architecture", "that others are evicted for | N |"): EvictionSettings().max_at_a_time,
    ("architecture", "to pods that are evicted | N each"): EvictionSettings().max_concurrent,
    ("architecture", "conditions of pods; of PodGroups | N each"): REPORTER.pace.max_concurrent,
    ("architecture", "| events | N |"): EventSettings().concurrency,
    ("architecture", "of a kind, with their statuses | N |"): reconciler._PLACES,
    ("architecture", "It *lasts* once it goes on for N s"): FairPlaces.LASTS_AFTER_SECONDS,
    ("architecture", "that lasts N times as long"): place_shares._TIMES_AS_LONG,
    ("architecture", "starts while more than N bindings wait"): PIPELINE.max_waiting_bindings,
    ("architecture", "of which none has ended for N s"): PIPELINE.stalled_seconds,
    ("architecture", "of the N, at least"): PIPELINE.max_waiting_bindings,
    ("architecture", "has an equal part of N"): PIPELINE.max_waiting_bindings_of_all,
    ("architecture", "An event is given up after N s"): 2 * SessionSettings.request_timeout_seconds,
    ("architecture", "finishes bindings for up to N s"): PIPELINE.shutdown_grace_seconds,
    ("capacity-control", "A SubspaceSnapshot holds N kinds"): table.MAX_ENTRIES,
    ("capacity-control", "decides by up to N of all nodes"): cluster_kinds.MAX_KNOWN,
    ("priority", "in the next N s, and each"): PREEMPTION.remember_seconds,
    ("priority", "room is made for more than N pods"): PIPELINE.max_preemptions_beside_events,
    ("priority", "evicted for N pods at a time"): EvictionSettings().max_at_a_time,
    ("priority", "that are nominated, N each"): EvictionSettings().max_concurrent,
    ("priority", "chosen every N ms"): 1000 * PIPELINE.min_cycle_interval_beside_preemptions_seconds,
    ("priority", "instead of every N ms"): 1000 * PIPELINE.min_cycle_interval_seconds,
    ("priority", "with its nomination, or after N s"): REPORTER.patience_beside_preemptions_seconds,
    ("priority", "s instead of N s"): REPORTER.patience_seconds,
    ("scheduling", "event `FailedScheduling` after N s"): REPORTER.patience_seconds,
    ("scheduling", "have changed, at most every N s"): REPORTER.repeat_seconds,
    ("scheduling", "are written: at least N a second"): REPORTER.pace.min_per_second,
    ("scheduling", "a second and at most N,"): REPORTER.pace.max_per_second,
    ("scheduling", "for their turn, N a second are written"): REPORTER.pace.min_per_second,
    ("scheduling", "it is written again after N s"): REPORTER.retry_seconds,
    ("scheduling", "same rules, at least N times a second"): PodGroupStatusSettings().pace.min_per_second,
    ("gangs", "Concerto places at most N at once"): gang.MAX_PODS,
    ("autoscaling", "garbage, or more than N MiB"): answers.LARGEST_BYTES / 2**20,
    ("autoscaling", "Prometheus: N KiB for a value"): prometheus._MAX_BYTES["query"] / 1024,
    ("autoscaling", "for a value, N MiB for a history"): prometheus._MAX_BYTES["query_range"] / 2**20,
    ("autoscaling", "a namespace has more than N PredictiveHPAs"): AUTOSCALER.max_syncs_per_namespace,
    ("autoscaling", "Up to N objects have series"): AUTOSCALER.max_series,
    ("autoscaling", "beyond N it is refused"): selector_text.MAX_LENGTH,
    ("autoscaling", "a pod has more than N KiB of labels"): pod_trimming.MAX_LABEL_BYTES / 1024,
    ("autoscaling", "a pod has more than N containers"): pod_trimming._MAX_CONTAINERS,
    ("autoscaling", "containers, or N resources in one"): pod_trimming._MAX_RESOURCES,
}  # fmt: skip


@pytest.mark.parametrize(("page", "phrase"), STATED, ids=" ".join)
def test_a_page_states_the_bound_that_the_code_has(page, phrase):
    text = " ".join((DOCS / f"{page}.md").read_text().split())
    found = set(re.findall(re.escape(phrase).replace("N", r"(\d[\d,.]*)", 1), text))
    assert {float(number.replace(",", "")) for number in found} == {STATED[page, phrase]}


def test_the_port_of_pod_metrics_keeps_a_connection_for_an_hour():
    assert 3600 <= POD_METRICS.keep_alive_seconds <= 3660


def labelled(size: int) -> dict[str, Any]:
    """A pod whose labels take so many bytes as JSON."""
    labels = {f"{i:03}": "x" * 63 for i in range(200)}
    labels["last"] = ""
    missing = size - len(str(labels).encode())
    assert missing >= 0
    labels["last"] = "x" * missing
    return {"metadata": {"labels": labels}, "spec": {}, "status": {}}


@pytest.mark.parametrize(("more", "kept"), [(0, True), (1, False)])
def test_labels_count_up_to_16_kib(more, kept):
    pod = labelled(pod_trimming.MAX_LABEL_BYTES + more)
    assert bool(pod_trimming.trim_pod(pod)["metadata"]["labels"]) is kept


def test_a_selector_of_4096_characters_is_shown_and_a_longer_one_is_not():
    assert selector_status("a" * 4096) == {"selector": "a" * 4096}
    assert selector_status("a" * 4097) == {}


class Recorder:
    """Keeps the notes of events."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def record(self, regarding: object, *, note: str, **_: object) -> None:
        self.notes.append(note)


def test_at_most_four_different_messages_of_one_reason_are_recorded_in_five_minutes():
    recorder, now = Recorder(), [1000.0]
    events = ObjectEvents(recorder, lambda: now[0])  # type: ignore[arg-type]
    tracked = TrackedObject({"metadata": {"namespace": "n", "name": "x"}}, None, State(), 0.0)
    for number in range(50):
        events.warning(tracked, "FailedRescale", "Rescaling", f"number {number}")
        events.warning(tracked, "InvalidPause", "Pausing", "the same")
    assert sorted(set(recorder.notes)) == ["number 0", "number 1", "number 2", "number 3", "the same"]
    now[0] += 301
    events.warning(tracked, "FailedRescale", "Rescaling", "number 50")
    assert recorder.notes[-1] == "number 50"
