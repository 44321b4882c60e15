"""What the removal leaves to kubectl, whatever a cluster serves; on a real cluster: e2e/suites/test_uninstall.py."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.crd_schemas import REPOSITORY

# Says what a cluster would, by the files beside it; what is to be deleted goes to one of them
KUBECTL = """#!/bin/sh
cd "$(dirname "$0")"
case "$1" in
  get) ;;
  kustomize) cat objects ;;
  api-resources) cat served; cat unserved >&2; exit $(wc -l <unserved) ;;
  delete) cat >deleted ;;
esac
"""
PROFILE = "apiVersion: concerto.dev/v1alpha1\nkind: SchedulingProfile\nmetadata:\n  name: concerto\n"
NAMESPACE = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: concerto-system\n"
# a key of a deeper level, and an end of a line, are no ends of documents
CONFIG = (
    "apiVersion: v1\ndata:\n  concerto.json: |\n    ---\n    kind: nothing\nkind: ConfigMap\nmetadata:\n  name: dash\n"
)
SERVED = "namespaces   ns   v1   false   Namespace\nconfigmaps   cm   v1   true   ConfigMap\n"
WITH_PROFILES = SERVED + "schedulingprofiles   sprof   concerto.dev/v1alpha1   false   SchedulingProfile\n"
DOWN = (
    "error: unable to retrieve the complete list of server APIs: metrics.k8s.io/v1beta1: stale GroupVersion discovery\n"
)


@pytest.mark.parametrize(
    ("served", "unserved", "deleted", "ends"),
    [
        (WITH_PROFILES, "", [NAMESPACE, CONFIG, PROFILE], 0),
        (SERVED, "", [NAMESPACE, CONFIG], 0),
        (WITH_PROFILES, DOWN, [NAMESPACE, CONFIG, PROFILE], 0),
        ("", "error: You must be logged in to the server (Unauthorized)\n", [], 1),
    ],
    ids=[
        "all kinds are there",
        "a kind has gone",
        "somebody else's part of the API does not answer",
        "nobody says what there is",
    ],
)
def test_what_a_cluster_serves_is_deleted_and_the_rest_passed_over(tmp_path: Path, served, unserved, deleted, ends):
    for name, text in (
        ("kubectl", KUBECTL),
        ("objects", "---\n".join([NAMESPACE, CONFIG, PROFILE])),
        ("served", served),
        ("unserved", unserved),
        ("deleted", ""),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "kubectl").chmod(0o755)
    done = subprocess.run(
        [REPOSITORY / "manifests" / "uninstall.sh", "mine"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == ends, done.stderr
    assert (tmp_path / "deleted").read_text().strip() == "".join(f"{each}---\n" for each in deleted).strip()
    assert ("nothing of mine is left" in done.stdout) == (ends == 0)
    passed_over = "passed over, as the cluster has no such kind: SchedulingProfile concerto" in done.stderr
    assert passed_over == (ends == 0 and PROFILE not in deleted)


NEWER_BASH = re.compile(
    r"\b(mapfile|readarray|coproc)\b|\bdeclare -[gnA]|\blocal -n|\$\{\w+(,|\^|@)|&>>|\|&|;;?&|\[\[? -v |EPOCH|%\("
)


def test_the_script_runs_in_the_bash_of_macos():
    """`make uninstall` runs on a person's own machine, and macOS has bash 3.2."""
    script = (REPOSITORY / "manifests" / "uninstall.sh").read_text()
    code = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in code if NEWER_BASH.search(line)] == []
