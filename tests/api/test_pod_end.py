"""Pods whose containers have all ended, and which kubelet has still to take down: they use nothing any more."""

import orjson
import pytest

from concerto.api.pod import PodView
from concerto.api.pod_decoding import PodDecoder
from concerto.api.pod_trimming import trim_pod
from concerto.api.shared_parts import SharedParts
from concerto_agent.pod_census import trim_pod as trim_for_agent
from support.scheduling_builders import raw_pod


def ended(name="main", code=0):
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": "Completed"}}, "restartCount": 0}


def runs(name="main"):
    return {"name": name, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "restartCount": 0}


def bound(statuses, *, deleted=False, init=(), init_statuses=(), ephemeral=(), containers=None, **spec):
    status = {"phase": "Running", "containerStatuses": list(statuses), "initContainerStatuses": list(init_statuses)}
    status["ephemeralContainerStatuses"] = list(ephemeral)
    containers = containers or [{"name": each["name"]} for each in statuses]
    pod = raw_pod("p", nodeName="n", status=status, containers=containers, initContainers=list(init), **spec)
    pod["metadata"]["resourceVersion"] = "1"
    if deleted:
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return pod


SIDECAR, INIT = {"name": "side", "restartPolicy": "Always"}, {"name": "init"}
RULES = [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]
CASES = {
    "its only container": (bound([ended()], restartPolicy="Never"), True),
    "one that failed, and is not started again": (bound([ended(code=1)], restartPolicy="Never"), True),
    "one that has succeeded": (bound([ended()], restartPolicy="OnFailure"), True),
    "one that failed, and is started again": (bound([ended(code=1)], restartPolicy="OnFailure"), False),
    "one that is always started again": (bound([ended()]), False),
    "one of a pod that is being deleted": (bound([ended(code=137)], deleted=True), True),
    "one of two": (bound([ended(), runs("other")], restartPolicy="Never"), False),
    "one of two, of which the other has no status": (
        bound([ended()], containers=[{"name": "main"}, {"name": "other"}], restartPolicy="Never"),
        False,
    ),
    "all but a sidecar": (bound([ended()], init=[SIDECAR], init_statuses=[runs("side")], restartPolicy="Never"), False),
    "its sidecar, too": (
        bound([ended()], init=[SIDECAR], init_statuses=[ended("side", 143)], restartPolicy="Never"),
        True,
    ),
    "none but an init container": (
        bound([runs()], init=[INIT], init_statuses=[ended("init")], restartPolicy="Never"),
        False,
    ),
    "its container after an init container": (bound([ended()], init=[INIT], restartPolicy="Never"), True),
    "one with rules of its own": (
        bound([ended()], containers=[{"name": "main", "restartPolicyRules": RULES}], restartPolicy="Never"),
        False,
    ),
    "one that alone is not started again": (
        bound([ended(code=1)], containers=[{"name": "main", "restartPolicy": "Never"}]),
        True,
    ),
    "one that alone is started again": (
        bound([ended()], containers=[{"name": "main", "restartPolicy": "Always"}], restartPolicy="Never"),
        False,
    ),
    "one with so many rules of its own that few are held": (
        bound([ended()], containers=[{"name": "main", "restartPolicyRules": RULES * 2000}], restartPolicy="Never"),
        False,
    ),
    "all, and a sidecar has rules by which all are started again": (
        bound(
            [ended()],
            init=[SIDECAR | {"restartPolicyRules": [RULES[0] | {"action": "RestartAllContainers"}]}],
            init_statuses=[ended("side", 42)],
            restartPolicy="Never",
        ),
        False,
    ),
    "all but one that was added to look into the pod": (
        bound([ended()], ephemeral=[runs("debug")], restartPolicy="Never"),
        False,
    ),
    "one that was added to look into the pod, too": (
        bound([ended()], ephemeral=[ended("debug")], restartPolicy="Never"),
        True,
    ),
    "those of a pod that is being deleted while an init container runs again": (
        bound([ended()], init=[INIT], init_statuses=[runs("init")], deleted=True),
        False,
    ),
    "no status at all": (bound([], containers=[{"name": "main"}], restartPolicy="Never"), False),
}


@pytest.mark.parametrize(("raw", "over"), CASES.values(), ids=CASES)
def test_a_pod_uses_nothing_once_all_its_containers_have_ended_for_good(raw, over):
    decoded = PodDecoder(SharedParts()).event(orjson.dumps({"type": "MODIFIED", "object": raw}))["object"]
    assert decoded == trim_pod(raw)
    for read in (raw, decoded):
        view = PodView.from_raw(read)
        assert (view.uses_nothing, view.counted, view.terminal) == (over, not over, False)
    assert trim_for_agent(raw)["status"]["finished"] is over


def test_a_status_frees_nothing_of_a_pod_that_is_on_no_node():
    raw = bound([ended()], restartPolicy="Never")
    del raw["spec"]["nodeName"]
    view = PodView.from_raw(raw)
    assert (view.waiting, view.counted, view.uses_nothing) == (True, True, False)
