"""Any process may die between any two lines: a Job on real nodes, with the operator, agents and API server killed.

An independent recorder watches: no pod is lost, none is bound twice, none was placed without measured room for it, and
no reservation is left behind. Where real nodes can't run, simulated ones take their place, and the output says so.

By default few kills, as test_failpoints.py has one at each point that matters; ``CONCERTO_KILLS=20`` (`make chaos`).
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from e2e.testbed.processes import QUICK_LEASE, Process
from e2e.testbed.recorder import Recorder
from e2e.testbed.requirements import require_local_plane
from e2e.testbed.system import System, busybox_job, can_run_real_nodes, hollow_system, real_system
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

KILLS = int(os.environ.get("CONCERTO_KILLS", "6"))
PODS = 3 * KILLS
LONG_SECONDS = 5 * PATIENCE_SECONDS


@pytest.fixture(scope="module")
def system(concerto_cluster, say: Callable[[str], None]) -> Iterator[System]:
    plane = require_local_plane(concerto_cluster)
    possible, reason = can_run_real_nodes(plane)
    if possible:
        with real_system(plane, say, operator_flags=QUICK_LEASE, operator_restarts=True) as found:
            yield found
    else:
        say(f"survival: simulated nodes instead of real ones: {reason}")
        with hollow_system(plane, say, 4, operator_flags=QUICK_LEASE, operator_restarts=True) as found:
            yield found


class Chaos:
    """Kills processes at random moments from a thread of its own, and starts them again."""

    def __init__(self, act: Callable[[random.Random], None], times: int, between: tuple[float, float]) -> None:
        self._act, self._times, self._between = act, times, between
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stop = threading.Event()
        self._chance = random.Random(7)
        self.done = 0
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            while self.done < self._times and not self._stop.wait(self._chance.uniform(*self._between)):
                self._act(self._chance)
                self.done += 1
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Chaos:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error


def job(name: str, namespace: str, loops: int) -> dict[str, Any]:
    command = ["sh", "-c", f"sleep 1; i=0; while [ $i -lt {loops} ]; do i=$((i+1)); done"]
    return busybox_job(name, namespace, "job", command, pods=PODS, parallelism=PODS)


def wait_complete(system: System, name: str, namespace: str, chaos: Chaos) -> None:
    done = -1

    def look() -> bool:
        nonlocal done
        text = system.cluster.kubectl("get", "job", "-n", namespace, name, "-o", "json", check=False)
        done = json.loads(text)["status"].get("succeeded", 0) if text.startswith("{") else -1
        assert chaos.error is None, chaos.error
        return done == PODS and chaos.done >= chaos._times

    # The Job has to go on between all the kills
    eventually(lambda: f"{PODS} pods and {chaos._times} kills are done: {done}, {chaos.done}", look, LONG_SECONDS)


def judge(system: System, recorder: Recorder, say: Callable[[str], None], what: str) -> None:
    left = system.wait_no_batches()
    recorder.stop()
    verdict = recorder.verify()
    say(
        f"survival: {what}: {verdict.assignments} assignments for {verdict.pods_bound} pods, "
        f"{len(verdict.violations)} not allowed, {len(verdict.rebound)} bound twice, {len(left)} reservations left"
    )
    assert not left, f"reservations are left behind: {left}"
    assert not verdict.rebound
    assert not verdict.late, "\n".join(verdict.late)
    assert not verdict.violations, "\n".join(verdict.violations)
    if recorder.gaps:
        # A restarted API server has forgotten what happened before; the recorder lists again, as everyone has to
        say(f"survival: the recorder had to list again: {len(recorder.gaps)} times")
    assert verdict.pods_bound >= PODS


@pytest.mark.timeout(1200)
def test_the_operator_is_killed_again_and_again_during_a_job(system, namespace, say):
    def kill_operator(chance: random.Random) -> None:
        system.operator.kill()
        system.operator.start()
        # The lease of the one that was killed has to run out; then kill at any moment of whatever comes next
        system.operator.wait_ready()

    with Recorder(str(system.cluster.kubeconfig)) as recorder:
        with Chaos(kill_operator, KILLS, (0.2, 4.0)) as chaos:
            system.cluster.apply(job("killed-operator", namespace, 700_000))
            wait_complete(system, "killed-operator", namespace, chaos)
        judge(system, recorder, say, f"operator killed {chaos.done} times")


@pytest.mark.timeout(1200)
def test_agents_are_killed_and_the_api_server_restarts_during_a_job(system, namespace, say):
    agents: list[Process] = list(system.agents.values())

    def disturb(chance: random.Random) -> None:
        if agents and chance.random() < 0.7:
            agent = chance.choice(agents)
            agent.kill()
            agent.start()
        else:
            # The operator, cut off for longer than its renew deadline, ends itself, as it must, and is started again
            system.cluster.restart_apiserver()

    with Recorder(str(system.cluster.kubeconfig)) as recorder:
        with Chaos(disturb, max(KILLS // 2, 4), (2.0, 6.0)) as chaos:
            system.cluster.apply(job("disturbed", namespace, 700_000))
            wait_complete(system, "disturbed", namespace, chaos)
        judge(system, recorder, say, f"agents and API server disturbed {chaos.done} times")
