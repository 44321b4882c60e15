"""`make e2e-argocd`: Concerto and its users' objects in the hands of the real Argo CD, on a real node.

SOAK=600 soaks for ten minutes instead of one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from e2e.argocd import NAMESPACE, AppState, ArgoCD, repository
from e2e.testbed.clusters import Cluster, ClusterError, LocalControlPlane, find_binaries
from e2e.testbed.clusters.binaries import find_or_build_argocd
from e2e.testbed.images import BUSYBOX_IMAGE, build_image
from e2e.testbed.nodes import RealNode, RealNodes
from e2e.testbed.processes import autoscaler_process, operator_process
from e2e.testbed.system import REPOSITORY, SAMPLES, agent_on
from e2e.testbed.waiting import PATIENCE_SECONDS, eventually

SOAK_SECONDS = float(os.environ.get("SOAK") or 60)
LOGS = REPOSITORY / "build" / "argocd-logs"
APPS = Path(__file__).parent / "apps"
KINDS_THAT_MOVE = {
    "events", "events.events.k8s.io", "leases.coordination.k8s.io", "nodes", "pods", "nodes.metrics.k8s.io",
    "pods.metrics.k8s.io",
}  # fmt: skip
Objects = dict[str, str]
# pods' first seconds count, so that a soak of a minute sees replicas move
AUTOSCALING = [
    "--autoscaling-sync-period=5s", "--autoscaling-cpu-initialization-period=1s",
    "--autoscaling-initial-readiness-delay=1s", "--autoscaling-downscale-stabilization=10s",
]  # fmt: skip
_began = time.monotonic()


def say(text: str) -> None:
    """A line with the time since the start."""
    print(f"{time.monotonic() - _began:6.1f} s  {text}", flush=True)


def applications(url: str) -> list[dict[str, Any]]:
    """Concerto's project and Application from manifests/argocd, on another repository and without the two workloads."""
    objects = list(yaml.safe_load_all((REPOSITORY / "manifests" / "argocd" / "application.yaml").read_text()))
    project, application = objects
    project["spec"]["sourceRepos"] = [url]
    application["spec"]["source"] |= {"repoURL": url, "path": "manifests/overlays/e2e"}
    return objects


def users_application(name: str, url: str, *, heals: bool) -> dict[str, Any]:
    """An Application of a team of users."""
    automated = {"prune": True, "selfHeal": True} if heals else {}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "finalizers": ["resources-finalizer.argocd.argoproj.io"],
        },
        "spec": {
            "project": "default",
            "source": {"repoURL": url, "targetRevision": "HEAD", "path": f"apps/{name}"},
            "destination": {"server": "https://kubernetes.default.svc", "namespace": "default"},
            # an Application can't be deleted while what was refused is tried again and again
            "syncPolicy": {"automated": automated, "retry": {"limit": 0}},
        },
    }


def workload_pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that sleeps."""
    container = {
        "name": "app", "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "2147483647"],
    }  # fmt: skip
    usual = {"dnsPolicy": "Default", "terminationGracePeriodSeconds": 1, "containers": [container]}
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": usual | spec}


def everything(cluster: Cluster) -> Objects:
    """Every object but those that come and go by themselves: what is asked for in it, by its type and name."""
    types = set(cluster.kubectl("api-resources", "--verbs=list", "-o", "name").split()) - KINDS_THAT_MOVE
    found = {}
    for item in cluster.get(",".join(sorted(types)), "-A")["items"]:
        metadata = item.pop("metadata")
        item.pop("status", None)
        kept = {k: metadata.get(k) for k in ("uid", "labels", "annotations", "finalizers", "ownerReferences")}
        found[f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"] = json.dumps([kept, item])
    return found


def cpusets(node: RealNode) -> dict[str, str]:
    """CPUs and memory nodes of every cgroup of the node's pods, by its path."""
    root = node.cgroup_path("cpuset") / "kubepods"
    found = {}
    for folder in (root, *(d for d in root.rglob("*") if d.is_dir())):
        name = str(folder.relative_to(root))
        found[name] = " ".join((folder / f"cpuset.{what}").read_text().strip() for what in ("cpus", "mems"))
    return found


def replicas(cluster: Cluster) -> int:
    """What the Deployment of web is scaled to."""
    return int(cluster.get("deployment", "web", "-n", "default")["spec"]["replicas"])


def make_busy(cluster: Cluster, busy: bool) -> None:
    """Have a pod of web compute, or all of them stop; the autoscaler reads it from the node's agent."""
    pods = cluster.get("pods", "-n", "default", "-l", "app=web", "--field-selector=status.phase=Running")["items"]
    names = sorted(p["metadata"]["name"] for p in pods)
    for name in names[:1] if busy else names:
        do = ["touch", "/busy"] if busy else ["rm", "-f", "/busy"]
        cluster.kubectl("exec", name, "-n", "default", "--", *do, check=busy)  # one may be ending already


def soak(cluster: Cluster, argo: ArgoCD, names: tuple[str, ...]) -> list[str]:
    """Jobs, scaling and pinning for a while; returns what Argo CD had against it."""
    said_before = {name: len(argo.events(name)) for name in names}
    operations = {name: operation_of(cluster, name) for name in names}
    wrong: list[str] = []
    scaled = [replicas(cluster)]
    ends = time.monotonic() + SOAK_SECONDS
    round_number = 0
    while time.monotonic() < ends:
        round_number += 1
        make_busy(cluster, round_number % 2 == 1)
        cluster.kubectl("apply", "-f", str(SAMPLES / "burn.yaml"))
        cluster.apply(workload_pod("pin-me", schedulerName="concerto"), pin("pin-me", 0))
        # as long as a Job takes, and within the soak
        round_ends = min(ends, time.monotonic() + 40)
        while time.monotonic() < round_ends:
            for name in names:
                state = argo.application(name)
                if state.sync != "Synced":
                    wrong.append(f"Application {name} is {state}")
            if (now := replicas(cluster)) not in scaled[-1:]:
                scaled.append(now)
            time.sleep(1)
        cluster.kubectl("delete", "pcb", "pin-me", "-n", "default")
        # A pod that is still ending would be applied in the place of the next one
        delete(cluster, "pod", "pin-me", "-n", "default")
        done = cluster.get("job", "burn", "-n", "default").get("status", {}).get("succeeded", 0)
        say(
            f"soak: {done} of 60 pods of the Job have ended, as many as {room(cluster)} let in; "
            f"web has been scaled {' to '.join(map(str, scaled))}"
        )
        if done == 60:
            cluster.kubectl("delete", "job", "burn", "-n", "default")
    cluster.kubectl("delete", "job", "burn", "-n", "default", "--ignore-not-found")
    for name in names:
        news = argo.events(name)[said_before[name] :]
        wrong += [f"Application {name}: {event}" for event in news if "OutOfSync" in event or "Operation" in event]
        if operation_of(cluster, name) != operations[name]:
            wrong.append(f"Application {name} was synced again: {argo.application(name)}")
    if len(set(scaled)) < 2:
        decided = (cluster.get("phpa", "web", "-n", "default").get("status") or {}).get("lastDecision")
        wrong.append(f"web was not scaled: {decided}")
    return wrong


def room(cluster: Cluster) -> str:
    """What the node says that it can take."""
    status = cluster.get("ncap", "n1").get("status") or {}
    cpu = next((r["usage"] for r in status.get("resources") or () if r["name"] == "cpu"), 0.0)
    return f"node n1 ({status.get('podCount')} pods, CPU {100 * cpu:.0f} %, {status.get('capacity', 0):.1f} more)"


def delete(cluster: Cluster, *what: str) -> None:
    """Delete an object, and return once it is gone."""
    timeout = f"--timeout={PATIENCE_SECONDS:.0f}s"
    cluster.kubectl("delete", *what, timeout, timeout_seconds=PATIENCE_SECONDS + 10)


def operation_of(cluster: Cluster, name: str) -> str:
    """When the last operation on an Application began."""
    status = cluster.get("applications.argoproj.io", name, "-n", NAMESPACE).get("status") or {}
    return str((status.get("operationState") or {}).get("startedAt"))


def pin(pod: str, cpu: int) -> dict[str, Any]:
    """A binding of a pod to one CPU."""
    return {
        "apiVersion": "concerto.dev/v1alpha1",
        "kind": "PodCPUBinding",
        "metadata": {"name": pod, "namespace": "default"},
        "spec": {"podName": pod, "cpuSet": [{"cpuID": cpu}]},
    }


MISTAKES = {
    ("SchedulingProfile", "no-secret"): ("Degraded", "there is no Secret concerto-system/concerto-prometheus"),
    ("PodCPUBinding", "no-such-cpus"): (
        "Degraded",
        "CPUs [62 63] are not in NodeCPUTopology n1: bind the pod to CPUs that are.",
    ),
    ("PredictiveHPA", "claimant-a"): ("Degraded", "are controlled by multiple PredictiveHPAs"),
    ("PredictiveHPA", "claimant-b"): ("Degraded", "are controlled by multiple PredictiveHPAs"),
    ("PodCPUBinding", "later"): ("Progressing", "There is no pod default/not-there-yet"),
}


def shows_mistakes(state: AppState) -> bool:
    """Whether all of it is applied, and each mistake is seen, with the sentence of its condition."""
    return state.sync == "Synced" and all(
        (got := state.resources.get(key, ("", "")))[0] == health and sentence in got[1]
        for key, (health, sentence) in MISTAKES.items()
    )


def scenario(stack: ExitStack) -> list[str]:
    """All of it; returns what was not as it should be."""
    programs = find_or_build_argocd(say)
    cluster = stack.enter_context(LocalControlPlane(find_binaries(say)))
    stack.callback(shutil.copytree, cluster.logs, LOGS, dirs_exist_ok=True)
    say(f"control plane: {cluster.origin}; logs at the end: {LOGS}")
    # One node with all CPUs, so that there are some to pin a pod to and some to keep it from
    nodes = stack.enter_context(RealNodes(cluster, ["n1"], cpus=[f"0-{(os.cpu_count() or 1) - 1}"]))
    nodes.wait_ready()
    node = nodes["n1"]
    node.import_image(build_image(cluster.work_dir / "busybox.tar", BUSYBOX_IMAGE))
    argo = stack.enter_context(ArgoCD(cluster, programs, cluster.logs))
    cluster.apply(workload_pod("bystander", nodeName="n1"))
    cluster.wait("--for=condition=Ready", "pod/bystander", "-n", "default")
    url = repository(
        cluster.work_dir / "repository",
        {
            "crds": REPOSITORY / "crds",
            "manifests": REPOSITORY / "manifests",
            "apps": APPS,
            "manifests/overlays/e2e/kustomization.yaml": (
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
                "resources: [../local]\ncomponents: [../../argocd/waves]\n"
            ),
        },
    )
    before, cpusets_before = everything(cluster), cpusets(node)
    say(f"before: {len(before)} objects, {len(cpusets_before)} cgroups of pods; applying the Application")
    applied_at = time.monotonic()
    cluster.apply(*applications(url))
    for account in ("operator", "autoscaler", "agent"):
        try:
            cluster.wait("--for=create", f"serviceaccount/concerto-{account}", "-n", "concerto-system")
        except ClusterError as error:
            raise ClusterError(f"{error}; Application concerto: {argo.application('concerto')}") from error
    operator = operator_process(cluster, cluster.logs).start()
    stack.callback(operator.stop)
    autoscaler = autoscaler_process(cluster, cluster.logs, AUTOSCALING).start()
    stack.callback(autoscaler.stop)
    agent = agent_on(cluster, node, cluster.logs, ["--pinning", "--daemon-set=concerto-system/concerto-agent"]).start()
    stack.callback(agent.stop)
    argo.wait("concerto", lambda s: s.is_good, "Synced and Healthy")
    say(f"Application concerto: Synced and Healthy {time.monotonic() - applied_at:.0f} s after apply")
    applied_at = time.monotonic()
    cluster.apply(users_application("web", url, heals=True))
    # its pods are placed by what the node can take, which is little where others work on this machine, too
    argo.wait("web", lambda s: s.is_good, "Synced and Healthy")
    say(f"Application web: Synced and Healthy {time.monotonic() - applied_at:.0f} s after apply")

    cluster.apply(users_application("mistakes", url, heals=True), users_application("refused", url, heals=False))
    state = argo.wait("mistakes", shows_mistakes, "Degraded as it should be")
    for key in MISTAKES:
        say(f"{' '.join(key)}: {': '.join(state.resources[key])}")
    key = ("PodReservation", "torn")
    state = argo.wait("refused", lambda s: s.results.get(key, ("",))[0] == "SyncFailed", "refused")
    say(f"{' '.join(key)}: {': '.join(state.results[key])}")
    wrong = [] if "set spec.nodeName for one node, or spec.nodeSelector" in state.results[key][1] else [str(state)]

    say(f"soak: {SOAK_SECONDS:.0f} s of Jobs, scaling and pinning")
    wrong += soak(cluster, argo, ("concerto", "web"))
    argo.wait("web", lambda s: s.is_good, "Synced and Healthy")

    # What is pinned when Concerto goes must not stay pinned
    cluster.apply(workload_pod("pin-me", schedulerName="concerto"), pin("pin-me", 0))
    cluster.wait("--for=condition=Ready", "pod/pin-me", "-n", "default")
    for name in ("mistakes", "refused", "web", "concerto"):
        began = time.monotonic()
        delete(cluster, "application", name, "-n", NAMESPACE)
        say(f"Application {name}: deleted in {time.monotonic() - began:.0f} s")
    # Their Deployment and DaemonSet would have gone with the Application, and kubelet would do this:
    for process in (operator, autoscaler, agent):
        process.stop()
    # Argo CD never deletes a CustomResourceDefinition; docs/argocd.md says how
    cluster.kubectl("delete", "-k", str(REPOSITORY / "crds"))
    cluster.kubectl("delete", "appproject", "concerto", "-n", NAMESPACE)
    return wrong + judge_removal(cluster, node, before, cpusets_before)


def judge_removal(
    cluster: Cluster, node: RealNode, before: dict[str, str], cpusets_before: dict[str, str]
) -> list[str]:
    """What the removal has left behind, or taken along."""
    wrong = []
    running = {p["metadata"]["name"] for p in cluster.get("pods", "-n", "default")["items"]}
    if not {"bystander", "pin-me"} <= running:
        wrong.append(f"pods are gone that should run on: only {running} are left")

    def difference() -> list[str]:
        after = everything(cluster)
        return [
            f"{key}: {'is left' if key not in before else 'is gone' if key not in after else 'has changed'}"
            for key in sorted(before.keys() | after.keys())
            if before.get(key) != after.get(key)
        ]

    def pinned() -> list[str]:
        free = cpusets_before["."]
        return [
            f"cgroup {name}: {now}, not {cpusets_before.get(name, free)}"
            for name, now in cpusets(node).items()
            if now != cpusets_before.get(name, free)
        ]

    for look in (difference, pinned):
        try:
            eventually("nothing is left behind", lambda look=look: not look())
        except AssertionError:
            wrong += look()
    if not wrong:
        say(f"after: the same {len(before)} objects, cgroups as before, and the workload's pods run on")
    return wrong


def main() -> int:
    """Run it; the exit status."""
    with ExitStack() as stack:
        wrong = scenario(stack)
    for text in wrong:
        print(f"not as it should be: {text}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
