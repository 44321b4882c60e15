"""`make compare` on real nodes, as small as can be: both schedulers, one workload of two kinds of pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from e2e.compare.measure import Bench
from e2e.compare.workloads import CONCERTO, Part, Workload
from e2e.testbed.clusters import LocalControlPlane
from e2e.testbed.requirements import require_binaries, require_kubelet
from e2e.testbed.system import install, real_system

pytestmark = pytest.mark.realnode

SMALL = Workload("burst", "two kinds", [Part("compare-short", 0.0, 20_000, 0.5), Part("compare-waits", 1.0, 1, 0.5)])
PODS = 6


@pytest.fixture(scope="module")
def bench(say: Callable[[str], None]) -> Iterator[Bench]:
    binaries = require_binaries(say)
    require_kubelet(binaries)
    with LocalControlPlane(binaries, scheduler=True) as plane:
        install(plane)
        with real_system(plane, say, ["compare-1", "compare-2"]) as system:
            yield Bench(system, say, settle_seconds=0.0)


@pytest.mark.parametrize("scheduler", [CONCERTO, "200m", CONCERTO])
def test_a_run_is_measured_whole_and_leaves_nothing_behind(bench: Bench, scheduler: str) -> None:
    run = bench.run(SMALL, PODS, scheduler, 1)
    assert run.job_seconds is not None, str(run)
    assert len(run.pod_seconds) == PODS
    # PodScheduled and the end of a container are written in whole seconds; half of the pods sleep for one
    assert max(run.pod_seconds) >= 1
    assert 1 <= run.max_on_node <= PODS
    assert run.core_seconds_per_pod > 0
    assert run.wrong == []
    cluster = bench.system.cluster
    assert cluster.get("pods", "-n", "default")["items"] == []
    assert cluster.get("jobs", "-n", "default")["items"] == []
    assert bench.system.batches() == []
