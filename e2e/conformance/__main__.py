"""`make conformance`: Kubernetes' own tests of schedulers, with Concerto as default-scheduler on two real nodes.

No kube-scheduler runs, unless --scheduler=kube-scheduler runs the same tests with it: what fails then is the machine's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence

from e2e.bench.__main__ import machine
from e2e.conformance.cluster import CONCERTO, KUBE_SCHEDULER, cluster_with
from e2e.conformance.program import SchedulerTests
from e2e.conformance.report import GROUP, Outcome, reason_to_leave_out, summary, table
from e2e.testbed import REPOSITORY
from e2e.testbed.clusters import LocalControlPlane, find_binaries
from e2e.testbed.clusters.binaries import find_or_build_conformance
from e2e.testbed.waiting import eventually

RESULTS = REPOSITORY / "build" / "conformance"
_began = time.monotonic()


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - _began:7.1f} s  {text}", flush=True)


def wait_until_gone(control_plane: LocalControlPlane) -> None:
    """Return once the last test's namespaces are gone: the suite itself waits for those of the same process only."""
    find = ("get", "namespaces", "-l", "e2e-framework", "-o", "name")
    eventually("namespaces of tests are gone", lambda: not control_plane.kubectl(*find).strip())


def run_all(tests: SchedulerTests, names: Sequence[str], scheduler: str, every: bool) -> list[Outcome]:
    """Run the tests one after the other; those that are left out have outcomes, too."""
    outcomes = []
    images = tests.build_images()
    with cluster_with(scheduler, find_binaries(say), images, say) as control_plane:
        for index, name in enumerate(names, start=1):
            reason = "" if every or scheduler != CONCERTO else reason_to_leave_out(name)
            if reason:
                outcome = Outcome(name, "left out", why=reason)
            else:
                say(f"[{index}/{len(names)}] {name.removeprefix(GROUP)}")
                outcome = tests.run(name, control_plane.kubeconfig)
                wait_until_gone(control_plane)
                say(f"    {outcome.state} in {outcome.seconds:.0f} s {outcome.why[:300]}")
            outcomes.append(outcome)
        logs = RESULTS / f"logs-{scheduler}"
        shutil.rmtree(logs, ignore_errors=True)
        shutil.copytree(control_plane.logs, logs)
    return outcomes


def main() -> int:
    """Run and print; 1 if a test has failed."""
    parser = argparse.ArgumentParser(prog="python -m e2e.conformance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scheduler", choices=[CONCERTO, KUBE_SCHEDULER], default=CONCERTO)
    parser.add_argument("--only", action="append", help="only tests whose names contain this (or another --only)")
    parser.add_argument("--all", action="store_true", help="also those that are left out with Concerto")
    parser.add_argument("--list", action="store_true", help="print the names of the tests, and run nothing")
    arguments = parser.parse_args()
    tests = SchedulerTests(find_or_build_conformance(say), RESULTS)
    names = [name for name in tests.names() if any(part in name for part in arguments.only or [""])]
    if arguments.list:
        print("\n".join(names))
        return 0
    outcomes = run_all(tests, names, arguments.scheduler, arguments.all)
    seconds = time.monotonic() - _began
    document = {"machine": machine(), "seconds": seconds, "tests": [outcome.to_raw() for outcome in outcomes]}
    (RESULTS / f"{arguments.scheduler}.json").write_text(json.dumps(document, indent=1))
    print("\n".join(["", *table(outcomes), "", summary(outcomes, seconds)]))
    return 1 if any(outcome.state == "failed" for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
