"""Whether a pinned pod uses its CPUs as its workload type says."""

from __future__ import annotations

import pytest

from concerto_agent.cgroups import Hierarchies
from concerto_agent.pinning_settings import FitSettings
from concerto_agent.workload_fit import Use, UseMeter, judge_fit

SETTINGS = FitSettings()
# type, use of 4 CPUs, status, reason
FITS = {
    "it computes": ("cpu-bound", Use(3.9, 0.0, 0.0), "True", "AsLabelled"),
    "it streams: a CPU that waits for memory is busy": ("memory-bound", Use(3.9, 0.0, 0.0), "True", "AsLabelled"),
    "it computes a little": ("cpu-bound", Use(0.9, 0.0, 0.0), "True", "AsLabelled"),
    "it waits for I/O": ("cpu-bound", Use(0.9, 0.0, 0.5), "False", "WaitsForIO"),
    "it streams files": ("memory-bound", Use(0.1, 0.0, 0.5), "False", "WaitsForIO"),
    "it waits for I/O and computes meanwhile": ("cpu-bound", Use(2.0, 0.0, 0.5), "True", "AsLabelled"),
    "it does nothing": ("memory-bound", Use(0.1, 0.0, 0.0), "False", "MostlyIdle"),
    "it does nothing, without PSI": ("io-bound", Use(0.1), "False", "MostlyIdle"),
    "it waits for I/O as it is to": ("io-bound", Use(0.1, 0.0, 0.9), "True", "AsLabelled"),
    "it wants more CPUs": ("io-bound", Use(3.8, 0.6, 0.0), "False", "WaitsForCPU"),
    "it has all that it wants": ("io-bound", Use(3.8, 0.1, 0.0), "True", "AsLabelled"),
    "it is busy, and nobody knows whether it waits": ("best-effort", Use(3.9), "True", "AsLabelled"),
    "best effort may do nothing": ("best-effort", Use(0.0, 0.0, 0.0), "True", "AsLabelled"),
}


@pytest.mark.parametrize(("kind", "use", "status", "reason"), FITS.values(), ids=FITS)
def test_a_type_is_suggested_from_what_a_pod_used(kind, use, status, reason):
    found = judge_fit(kind, 4, use, SETTINGS)
    assert (found.status, found.reason) == (status, reason)


def test_the_message_says_what_was_seen_and_what_would_be_better():
    assert judge_fit("cpu-bound", 4, Use(0.9, 0.02, 0.5), SETTINGS).message == (
        "Type io-bound would suit the pod better than cpu-bound. Over 10 min it kept 0.9 of 4 CPUs busy and waited for "
        "a CPU 2% of the time and waited for I/O 50% of the time."
    )
    assert judge_fit("cpu-bound", 4, Use(3.9), SETTINGS).message == "Over 10 min it kept 3.9 of 4 CPUs busy."


def write(path, cpu_seconds: float, cpu_wait: float, io_wait: float | None) -> None:
    path.mkdir(exist_ok=True, parents=True)
    (path / "cpu.stat").write_text(f"usage_usec {cpu_seconds * 1e6:.0f}\n")
    for name, seconds in (("cpu", cpu_wait), ("io", io_wait)):
        if seconds is not None:
            (path / f"{name}.pressure").write_text(f"some avg10=0 avg60=0 avg300=0 total={seconds * 1e6:.0f}\n")


def test_pods_are_measured_over_whole_windows(tmp_path):
    root = tmp_path / "fs/cgroup"
    root.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu\n")
    meter = UseMeter(Hierarchies.detect(tmp_path), SETTINGS)
    pods = {"a": "pod-a", "b": "pod-b"}
    for name in pods.values():
        write(root / name, 100.0, 10.0, 50.0 if name == "pod-a" else None)
    assert meter.read(pods, 1000.0) == {}
    for name in pods.values():
        write(root / name, 1300.0, 70.0, 350.0 if name == "pod-a" else None)
    assert meter.read(pods, 1599.0) == {}, "the window is not over"
    assert meter.read(pods, 1600.0) == {"a": Use(2.0, 0.1, 0.5), "b": Use(2.0, 0.1, None)}
    assert meter.read(pods, 1700.0) == {}, "the next window has begun"
    assert meter.read({"a": "pod-a"}, 1800.0) == {}
    assert list(meter.read(pods, 2200.0)) == ["a"], "a pod that was away begins anew"
    (root / "pod-a/cpu.stat").unlink()
    assert meter.read(pods, 2800.0) == {"b": Use(0.0, 0.0, None)}
