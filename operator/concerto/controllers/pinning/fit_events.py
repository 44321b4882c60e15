"""Events on pods whose workload type does not fit what their node's agent has seen of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concerto.api.conditions import find_condition
from concerto.api.podcpubinding import BindingKey
from concerto.kube import Object
from concerto.kube.events import EventRecorder
from concerto.kube.references import build_event_subject
from concerto.kube.resources import PODS

CONDITION = "WorkloadTypeFits"


class FitEvents:
    """Records an event when the condition WorkloadTypeFits of a binding becomes False, or changes its reason."""

    def __init__(self, recorder: EventRecorder) -> None:
        """Records nothing before `seen`."""
        self._recorder = recorder
        self._known: dict[BindingKey, tuple[str, str] | None] = {}  # UID of the pod and reason; None: it fits

    def seen(self, key: BindingKey, obj: Object | None) -> None:
        """The binding is like this now; None: it is gone. What was so when the process started has been reported."""
        if obj is None:
            self._known.pop(key, None)
            return
        status: Mapping[str, Any] = obj.get("status") or {}
        condition = find_condition(status.get("conditions"), CONDITION) or {}
        uid = str((status.get("applied") or {}).get("podUID", ""))
        now = (uid, str(condition["reason"])) if condition.get("status") == "False" else None
        if key in self._known and now is not None and self._known[key] != now:
            self._recorder.record(
                build_event_subject(PODS, obj["spec"]["podName"], namespace=key[0], uid=uid),
                reason="WorkloadTypeSuggested",
                action="Measuring",
                note=str(condition["message"]),
                related=obj,
            )
        self._known[key] = now
