"""Kubernetes' program e2e.test: which tests it has, which images they want, and running one of them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.conformance.report import Outcome, names_of, outcome_of
from e2e.testbed.images import build_image

# Where tests look for images: what we have built and imported, and no registry
_REGISTRY = "localhost"
_REGISTRIES = ("gcRegistry", "promoterE2eRegistry")
_MINUTES = 20


class NoReport(Exception):
    """The program e2e.test did not report what it did."""


class SchedulerTests:
    """The tests of schedulers.

    Args:
        programs: folder of e2e.test and agnhost.
        results: folder for reports and logs.
    """

    def __init__(self, programs: Path, results: Path) -> None:
        self._programs = programs
        self._results = results
        results.mkdir(parents=True, exist_ok=True)
        self._registries = results / "registries.yaml"
        self._registries.write_text(yaml.safe_dump(dict.fromkeys(_REGISTRIES, _REGISTRY)))

    def names(self) -> list[str]:
        """All tests of [sig-scheduling], sorted."""
        return names_of(self._reported("list", r"\[sig-scheduling\]", ["--ginkgo.dry-run"]))

    def build_images(self) -> list[Path]:
        """Archives of the images that the tests' pods use, under the names that the tests ask for.

        Each has busybox. The image pause sleeps, and agnhost has Kubernetes' program of that name.
        """
        agnhost = self._programs / "agnhost"
        entrypoints: dict[str, list[str]] = {
            "pause": ["/bin/busybox", "sleep", "2147483647"],
            "agnhost": [f"/{agnhost.name}"],
            "busybox": [],
        }
        archives = []
        for image in self._wanted_images():
            name = image.removeprefix(f"{_REGISTRY}/").partition(":")[0]
            if name in entrypoints and image.startswith(f"{_REGISTRY}/"):
                archive = self._results / f"{image.replace('/', '-').replace(':', '-')}.tar"
                programs = [agnhost] if name == "agnhost" else []
                archives.append(build_image(archive, image, entrypoints[name], programs=programs))
        return archives

    def _wanted_images(self) -> list[str]:
        command = [self._programs / "e2e.test", "--list-images", f"--kube-test-repo-list={self._registries}"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=self._results)
        return sorted(set(done.stdout.split()))

    def run(self, name: str, kubeconfig: Path) -> Outcome:
        """Run one test against a cluster, as its administrator."""
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--kube-test-repo-list={self._registries}",
            "--provider=skeleton",
            f"--ginkgo.timeout={_MINUTES}m",
            "--ginkgo.v",
        ]
        label = re.sub(r"[^a-zA-Z0-9]+", "-", name).strip("-")
        try:
            report = self._reported(label, f"{re.escape(name)}$", flags)
        except NoReport as error:
            return Outcome(name, "failed", why=str(error))
        return outcome_of(report, name)

    def _reported(self, label: str, focus: str, flags: Sequence[str]) -> list[dict[str, Any]]:
        """Run what ``focus`` selects; its report.

        Raises:
            NoReport: there is no report.
        """
        report, log = self._results / f"{label}.json", self._results / f"{label}.log"
        report.unlink(missing_ok=True)
        command = [self._programs / "e2e.test", f"--ginkgo.focus={focus}", f"--ginkgo.json-report={report}", *flags]
        with log.open("wb") as output:
            try:
                subprocess.run(
                    command, stdout=output, stderr=output, cwd=self._results, check=False, timeout=60 * (_MINUTES + 2)
                )
            except subprocess.TimeoutExpired as error:
                raise NoReport(f"no end after {_MINUTES + 2} min: {log}") from error
        if not report.exists():
            raise NoReport(f"no report; the end of {log}: {log.read_text(errors='replace')[-500:]}")
        return list(json.loads(report.read_text()))
