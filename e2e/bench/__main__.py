"""`python -m e2e.bench [--quick]`: all measurements, or only the short ones."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from e2e.bench import perf_results, running, scale, scale_results, scheduler_perf, throughput
from e2e.testbed.clusters import LocalControlPlane, find_binaries
from e2e.testbed.hollow.settings import CONTROLLER_MANAGER_FLAGS
from e2e.testbed.system import REPOSITORY, install

RESULTS = REPOSITORY / "build" / "bench.json"
_began = time.monotonic()


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - _began:6.1f} s  {text}", flush=True)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    return {"cpus": os.cpu_count(), "cpu": model, "kernel": platform.release(), "python": platform.python_version()}


def pytest_benchmarks() -> None:
    """The pure code's decisions per second, a batch's maths, the agent's cost."""
    say("pure code and agent: pytest-benchmark and a 60 s run of a real agent (3 min)")
    output = REPOSITORY / "build" / "pytest-benchmark.json"
    subprocess.run(
        [sys.executable, "-m", "pytest", "e2e/bench", "-m", "bench", "-q", "-s", f"--benchmark-json={output}"],
        cwd=REPOSITORY,
        check=True,
    )


def cpusets() -> None:
    """Time to a cpuset by files, and programs that begin outside of theirs, with NRI and with files."""
    say("cpusets of new containers (40 min: 1,000 of each case)")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(REPOSITORY / "tests")])}
    for module in ("cpuset_latency", "container_cpusets"):
        subprocess.run([sys.executable, "-m", f"e2e.bench.{module}"], cwd=REPOSITORY, env=environment, check=True)


def at_scale(nodes: int, pods: int, *, profiles: bool) -> None:
    """A cluster full of running pods; stored, and compared with the goals."""
    size = scale.Size.of(nodes, pods)
    say(f"at scale: {nodes} nodes, {pods} pods (5 min at 500 and 15000, 1 h at 5000 and 150000)")
    figures: dict[str, object] = {}
    try:
        scale.measure(size, say, figures, profiles=profiles)
    finally:
        scale_results.keep(size, figures, machine())
    for line in scale_results.verdicts(figures):
        say(f"  {line}")


def main() -> int:
    """Run and write build/bench.json."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 nodes only")
    parts = ["scale", "throughput", "scheduler_perf", "through", "arrivals", "steady", "busy", "python", "cpusets"]
    parser.add_argument("--only", choices=parts, help="just one part")
    parser.add_argument("--workloads", default="", help="of scheduler_perf, comma-separated; all by default")
    parser.add_argument(
        "--nodes", type=int, help="of scheduler_perf (default: 1000), busy (default: 1000 and 5000) and scale (500)"
    )
    parser.add_argument("--pods", type=int, help="of scale: pods that run on the nodes (default: 30 a node)")
    parser.add_argument("--profile", action="store_true", help="of scale: sample where the operator's time goes")
    parser.add_argument(
        "--docs",
        action="store_true",
        help="put all rows of build/scheduler_perf.json into docs/scheduling.md, and of build/scale.json into "
        "docs/architecture.md",
    )
    arguments = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    results: dict[str, object] = {"machine": machine()}
    say(f"machine: {results['machine']}")
    if arguments.docs and arguments.only is None:
        perf_results.write_docs(perf_results.load())
        scale_results.write_docs(scale_results.load())
        return 0
    if arguments.only == "scale":
        nodes = arguments.nodes or 500
        at_scale(nodes, arguments.pods or 30 * nodes, profiles=arguments.profile)
        if arguments.docs:
            scale_results.write_docs(scale_results.load())
        return 0
    if arguments.only in (None, "python"):
        pytest_benchmarks()
    if arguments.only == "cpusets":
        cpusets()
        return 0
    if arguments.only != "python":
        sizes = [(100, 1000), (1000, 3000)] + ([] if arguments.quick else [(5000, 3000)])
        with LocalControlPlane(find_binaries(say), controller_manager_flags=CONTROLLER_MANAGER_FLAGS) as control_plane:
            install(control_plane)
            if arguments.only in (None, "throughput"):
                results["throughput"] = {
                    f"{nodes} nodes": throughput.compare(control_plane, nodes, pods, say) for nodes, pods in sizes
                }
            if arguments.only in (None, "scheduler_perf"):
                names = [name for name in arguments.workloads.split(",") if name]
                nodes = arguments.nodes or 1000
                found = scheduler_perf.compare(control_plane, nodes, names, say)
                results[f"scheduler_perf, {nodes} nodes"] = found
            if arguments.only in (None, "through"):
                results["run through, 100 nodes"] = running.run_through(control_plane, 100, 1000, say)
            if arguments.only in (None, "arrivals"):
                results["arrivals, 1000 nodes"] = running.arrivals(control_plane, 1000, 50.0, 1500, say)
            if arguments.only in (None, "steady"):
                for nodes in (1000,) if arguments.quick else (1000, 5000):
                    results[f"steady, {nodes} nodes"] = running.steady(control_plane, nodes, 60.0, say)
            if arguments.only in (None, "busy"):
                by_kind = (1000,) if arguments.quick else (1000, 5000)
                for nodes in (arguments.nodes,) if arguments.nodes else by_kind:
                    results[f"busy, {nodes} nodes"] = running.busy(control_plane, nodes, 60.0, say)
                nodes = arguments.nodes or 1000
                results[f"busy, {nodes} nodes, by units"] = running.busy(control_plane, nodes, 60.0, say, by_kind=False)
    if arguments.docs:
        perf_results.write_docs(perf_results.load())
    RESULTS.write_text(json.dumps(results, indent=2))
    say(f"written: {RESULTS.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
