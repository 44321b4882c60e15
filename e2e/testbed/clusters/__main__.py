"""``python -m e2e.testbed.clusters up|down|build``: a local control plane to try things on."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from e2e.testbed import REPOSITORY
from e2e.testbed.clusters.cluster import ClusterError
from e2e.testbed.clusters.local import LocalControlPlane, stop_left
from e2e.testbed.clusters.providers import NoCluster, find_binaries

DEFAULT_DIRECTORY = REPOSITORY / "build" / "cluster"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m e2e.testbed.clusters", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "build"), help="start one, stop it, or only get its programs")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIRECTORY, help="where its data, keys and logs are")
    parser.add_argument("--scheduler", action="store_true", help="run kube-scheduler, too")
    arguments = parser.parse_args()
    work_dir = arguments.dir.resolve()
    if arguments.action == "down":
        print(f"stopped {work_dir}" if stop_left(work_dir) else f"nothing runs in {work_dir}")
        return 0
    try:
        binaries = find_binaries(_say)
        _say(f"programs: {binaries.origin}")
        if arguments.action == "up":
            stop_left(work_dir)
            began = time.monotonic()
            plane = LocalControlPlane(binaries, work_dir=work_dir, scheduler=arguments.scheduler, outlives_us=True)
            plane.start()
            _say(f"up in {time.monotonic() - began:.1f} s; logs in {plane.logs}")
            _say(f"stop it with: python -m e2e.testbed.clusters down --dir {work_dir}")
            print(f"export KUBECONFIG={plane.kubeconfig}")
    except (ClusterError, NoCluster) as error:
        _say(str(error))
        return 1
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
