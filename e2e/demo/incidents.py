"""`python -m e2e.demo.incidents`: brings five incidents about on simulated nodes, and writes docs/debugging.md of it.

With --print nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from e2e.testbed.clusters import Cluster, LocalControlPlane, find_binaries
from e2e.testbed.metrics_api import MetricsAPI
from e2e.testbed.processes import autoscaler_process, operator_process
from e2e.testbed.scripted_load import ScriptedLoad
from e2e.testbed.system import REPOSITORY, hollow_nodes, install
from e2e.testbed.waiting import eventually

PAGE = REPOSITORY / "docs" / "debugging.md"
# pods' first seconds count, so that nobody has to wait for half a minute of them
FAST = [f"--autoscaling-{what}=1s" for what in ("sync-period", "cpu-initialization-period", "initial-readiness-delay")]
IMAGE = "registry.example.com/app:1"

HEAD = """# Debugging

<!-- Written by `python -m e2e.demo.incidents` (about 3 minutes): edit e2e/demo/incidents.py, not this page. -->

Read this page to find out why a pod waits, why a node is passed over, why a pod is not pinned, or why replicas move.
Three commands answer nearly every question:

1. `kubectl describe` the object that is not as expected. Its condition Ready has the reason, and its events have the
   history.
2. `concerto explain pod NAMESPACE/NAME` shows what the pod takes, what each node has left, and what every filter and
   score says about every node at present.
3. `concerto top` shows what each node's pods use and take, and how old that is (LAST STATUS).

Five incidents follow, with the output of a real run on simulated nodes: the API server and the operator are real; the
nodes' pods and measurements are simulated by the production maths. Words are explained in the
[glossary](../CONTRIBUTING.md#glossary).
"""


def say(text: str) -> None:
    """Progress, apart from the page."""
    print(text, file=sys.stderr, flush=True)


class Page:
    """Markdown that grows: prose as given, and commands with what they print."""

    def __init__(self, cluster: Cluster) -> None:
        self._parts = [HEAD]
        programs = [str(cluster.kubectl_path.parent), str(Path(sys.executable).parent)]
        self._environment = {
            **os.environ,
            "PATH": ":".join([*programs, os.environ["PATH"]]),
            "KUBECONFIG": str(cluster.kubeconfig),
            "KUBECACHEDIR": str(cluster.work_dir / "kubectl-cache"),
            "COLUMNS": "120",
        }

    def write(self, text: str) -> None:
        """A paragraph, or a heading."""
        self._parts.append(text.strip("\n"))

    def run(self, command: str, until: Callable[[str], bool] = lambda printed: True) -> str:
        """A shell command as a person would type it, with what it printed; returns that.

        Args:
            command: the command.
            until: whether that is what the page is about; until then the command is run again.

        Raises:
            AssertionError: it never was.
        """
        printed = ""

        def fits() -> bool:
            nonlocal printed
            done = subprocess.run(["sh", "-c", command], env=self._environment, capture_output=True, text=True)
            printed = (done.stdout + done.stderr).rstrip()
            return until(printed)

        eventually(lambda: f"{command} prints what the page shows, but {printed}", fits)
        shown = re.sub(r"[ \t]+$", "", printed, flags=re.MULTILINE)
        self._parts.append(f"```console\n$ {command}\n{shown}\n```")
        return printed

    def text(self) -> str:
        """The page."""
        return "\n\n".join(self._parts) + "\n"


def condition(cluster: Cluster, kind: str, name: str, type_: str) -> dict[str, Any]:
    """A condition of an object of the namespace default, or of none; empty if it has none of that type."""
    status = cluster.get(kind, name, "-n", "default").get("status") or {}
    return next((c for c in status.get("conditions") or () if c["type"] == type_), {})


def has_event(cluster: Cluster, name: str, reason: str) -> bool:
    """Whether something was said of the object."""
    events = cluster.get("events", "-A", "--field-selector", f"involvedObject.name={name}")["items"]
    return any(event["reason"] == reason for event in events)


def pod_spec(**more: Any) -> dict[str, Any]:
    """The spec of a pod of one container."""
    return {"containers": [{"name": "app", "image": IMAGE}]} | more


def workload(kind: str, name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Job or a Deployment."""
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    body = {"template": template, **more}
    if kind == "Deployment":
        body["selector"] = {"matchLabels": {"app": name}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": body,
    }  # fmt: skip


def concerto(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """An object of one of our kinds."""
    metadata = {"name": name} | ({} if kind == "SchedulingProfile" else {"namespace": "default"})
    return {"apiVersion": "concerto.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def no_cpu_left(cluster: Cluster, page: Page) -> None:
    """More pods than the nodes have CPU for."""
    page.write("""
## 1. Pods stay Pending: no CPU left

A Job has 400 pods that burn CPU and have no requests. Most of them wait. The last event FailedScheduling of each counts
the nodes by the reason that excludes them:
""")
    spec = pod_spec(schedulerName="concerto", restartPolicy="Never")
    cluster.apply(workload("Job", "burn", spec, completions=400, parallelism=400))

    def waiting() -> str | None:
        """The youngest of the pods that no node has CPU for: it will wait for longest."""
        pods = cluster.get("pods", "-n", "default", "-l", "app=burn", "--field-selector", "spec.nodeName=")["items"]
        pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)
        conditions = [(p["metadata"]["name"], c) for p in pods for c in p["status"].get("conditions") or ()]
        # by what the kind was measured to take; other nodes may limit how fast pods start at that moment
        full = re.compile(r"node\(s\) had less CPU left than the \d+m ")
        return next((name for name, c in conditions if full.search(c.get("message", ""))), None)

    def ended() -> int:
        return int(cluster.get("job", "burn", "-n", "default").get("status", {}).get("succeeded", 0))

    eventually("pods that show what their kind takes", lambda: ended() >= 20)
    pod = eventually("a pod that waits for CPU", waiting)
    page.run(f"kubectl describe pod {pod} | sed -n '/^Events/,$p'")
    page.write("""
What follows `preemption:` says whether the eviction of pods of lower priority would help ([priority.md](priority.md)).
Here all pods have the same priority.

The next command prints the messages of the pod's events, oldest first, with the numbers of their time. Then it says how
much the pod takes, from how many pods that is known, and how much each node has LEFT now:
""")
    refused = "PodCapacity: node(s) had less CPU left"
    page.run(
        f"concerto explain pod default/{pod}", until=lambda text: text.count(refused) == 3 and ", waiting," in text
    )
    page.write("""
What takes the CPU: by node, then by workload:
""")
    page.run("concerto top")
    page.run("kubectl describe sub cluster | sed -n '/^  Costliest/,/^  Directions/p'")
    page.write("""
The pods of the Job fill all nodes: `costliest` has the workloads that take most CPU in all, with the cores that one pod
takes, and from how many pods that is known (Evidence).

COMMITTED is the share of the node's CPU and memory that its pods take, each as its kind was measured. A node takes
pods until 100 to 200 % of the CPU that pods may use is committed: the more unsteadily its pods use CPUs, the more. CPU
is the mean of 5 minutes, so it follows late. REQUESTED plays no part, and no request would change anything. CAN TAKE,
and CAPACITY in `kubectl get ncap`, count pods as units. They decide nothing while the costs of kinds are known.

The pods are placed as others end. More nodes, or fewer pods of the costliest workload, make it faster. The event can
name other reasons:

- *less memory left*: the second number of COMMITTED is near 95 %. The workload's memory is in `costliest`.
- *limited how fast pods may start*: pods of a burst start at the pace at which nodes compute. Pods of a Job like this
  one wait for it until their turn comes.
- *ran pods of this kind whose use has not been measured yet*: few pods of a new kind start on each node. This passes
  when the first of them have shown their load.
- *measured capacity held by PodReservations*: `kubectl get pres -A` lists them.
- *being drained for a larger pod*: a pod that needs much of a node has waited for the profile's `spec.largePodWait`.
- *Insufficient measured capacity*: agents have measured no kind yet, or the operator runs with `--no-costs-by-kind`.
  Pods count as units then, and CAPACITY in `kubectl get ncap` is below 1.

If CPUs of a node idle although it has nothing left, the node is given more pods after a while.
[capacity-control.md](capacity-control.md) has the rules.
""")
    cluster.kubectl("delete", "job", "burn", "-n", "default", "--wait=true")


def stale_agent(cluster: Cluster, page: Page, fleet: subprocess.Popen[str]) -> None:
    """An agent that hangs."""
    page.write("""
## 2. A node is passed over: its agent does not report

The agent of node `quiet-0000` hangs. Three heartbeats later (`spec.heartbeat` of its NodeCapacity is 1s here, and 30s
by default):
""")
    # heartbeats of a second, so that nobody has to wait for three of thirty
    patch = {"spec": {"heartbeat": "1s"}}
    fleet.send_signal(signal.SIGSTOP)
    cluster.kubectl("patch", "ncap", "quiet-0000", "--type=merge", "-p", json.dumps(patch))
    eventually("the event AgentNotReporting", lambda: has_event(cluster, "quiet-0000", "AgentNotReporting"))
    page.run("kubectl get ncap")
    page.run("kubectl describe ncap quiet-0000 | sed -n '/^Events/,$p'")
    page.run("kubectl describe ncap quiet-0000 | sed -n '/^  Conditions/,/^  Observed At/p'")
    page.write("""
The conditions are as old as the numbers, because the agent writes both. SEEN is their age. Until they are `staleAfter`
old (5 minutes by default), the last capacity is used, less what was placed since. Then the profile's `metricsPolicy`
decides: the node's pods count by their requests (`FallbackToRequests`), or the node is avoided (`Avoid`).

Repair the agent: `kubectl -n concerto-system get pods -o wide -l app.kubernetes.io/name=concerto-agent` lists the
agents; read the log of the one on that node. The node is back to normal when SEEN is below the heartbeat.
""")
    fleet.send_signal(signal.SIGCONT)


def conflict_of_bindings(cluster: Cluster, page: Page) -> None:
    """Two bindings of the same core."""
    page.write("""
## 3. A pod is not pinned: two bindings want the same core

Two pods run on a node, each with a binding. The second binding asks for a core that the first holds exclusively.
""")
    for name in ("first", "second"):
        spec = pod_spec(schedulerName="concerto", nodeSelector={"kubernetes.io/hostname": "node-0000"})
        metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
        cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    cluster.wait("--for=condition=PodScheduled", "pod/first", "pod/second", "-n", "default")
    binding = {"cpuSet": [{"cpuID": 1}], "exclusivenessLevel": "Core"}
    cluster.apply(concerto("PodCPUBinding", "first", podName="first", **binding))
    eventually("the first is valid", lambda: condition(cluster, "pcb", "first", "Validated").get("status") == "True")
    time.sleep(1.1)  # the older one is the one of an earlier second
    cluster.apply(concerto("PodCPUBinding", "second", podName="second", **binding))
    eventually("the conflict is reported", lambda: has_event(cluster, "second", "CPUSetAllocationFailed"))
    page.run("kubectl get pcb")
    page.run("kubectl describe pcb second | sed -n '/^Status/,$p'")
    page.write("""
The message names the node, the CPUs and the binding that holds them. `status.conflictsWith` names that binding for
programs. Edit one of the two, or delete the older one: the younger one is then validated again at once.
`concerto top cpus node-0000` shows the node's CPUs and who has them. [cpu-pinning.md](cpu-pinning.md) has the rules.
""")
    cluster.kubectl("delete", "pcb", "second", "-n", "default")


def unforeseeable() -> Callable[[int], int]:
    """A load that no forecast can know: another one each quarter of a minute, shared by the pods there are."""
    chance, total, until = random.Random(7), 200, 0.0

    def millicores(pods: int) -> int:
        nonlocal total, until
        if time.monotonic() >= until:
            total, until = chance.choice((40, 120, 240, 380)), time.monotonic() + 15
        return total // pods

    return millicores


def forecast_off(cluster: Cluster, page: Page) -> None:
    """A load that can't be foreseen."""
    page.write("""
## 4. More pods than the load needs: a forecast is wrong

A PredictiveHPA scales a target whose load jumps at random every 15 seconds:
""")

    def is_off() -> bool:
        status = cluster.get("phpa", "web", "-n", "default").get("status") or {}
        forecast = status.get("forecast") or {}
        error = (forecast.get("backtest") or {}).get("errorPercent", 0)
        decided = (status.get("lastDecision") or {}).get("reason")
        return bool(error >= 40 and decided == "Forecast")

    eventually("the forecast is wrong, and decides", is_off, 240)
    page.run("kubectl get phpa web")
    page.run("kubectl describe phpa web | sed -n '/^  Conditions/,/^  Current Metrics/p'")
    page.run("kubectl get phpa web -o jsonpath='{.status.lastDecision.message}'")
    page.run("kubectl get phpa web -o jsonpath='{.status.forecast.backtest}'")
    page.run("kubectl describe phpa web | sed -n '/^Events/,$p'")
    page.write("""
`backtest` compares the forecast with what came (ERROR%), and with the assumption that nothing changes
(`persistenceErrorPercent`). The decision whether the forecast is active weighs a missing replica more than a surplus
one. So an active forecast can have the larger error of the two. A load that jumps gives large past errors, and
therefore a large margin: that is what the extra pods are.

A forecast that did worse than "nothing changes" becomes inactive by itself (Forecasting=False,
NotBetterThanNoChange), and the object then scales by current metrics only. To get that at once, set
`spec.prediction.mode: "Off"`. A smaller `spec.prediction.shortage` gives a smaller margin. A longer
`spec.prediction.historyLength` lets the forecast see a whole period of the load. See [autoscaling.md](autoscaling.md).
""")


def wrong_profile(cluster: Cluster, page: Page) -> None:
    """A name nobody serves, and a name two profiles claim."""
    page.write("""
## 5. A pod stays Pending and nobody says why: wrong profile

The pod below has `schedulerName: concert`.
""")
    metadata = {"name": "lost", "namespace": "default"}
    spec = pod_spec(schedulerName="concert")
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    cluster.apply(concerto("SchedulingProfile", "copy", schedulerName="concerto"))
    eventually("the copy is refused", lambda: condition(cluster, "sprof", "copy", "Ready").get("status") == "False")
    page.run(
        "kubectl get pod lost -o custom-columns=NAME:.metadata.name,SCHEDULER:.spec.schedulerName,STATUS:.status.phase"
    )
    page.run("kubectl describe pod lost | sed -n '/^Events/,$p'")
    page.run("concerto explain pod default/lost")
    page.run("kubectl get sprof")
    page.write("""
A pod without any event has a schedulerName that no scheduler serves, or its scheduler does not run. A pod's
schedulerName can't be edited: correct the template, and let the owner create the pod again. Here a second profile was
applied as well, and its schedulerName is taken:
""")
    page.run("kubectl describe sprof copy | sed -n '/^Status/,$p'")
    cluster.kubectl("delete", "sprof", "copy")
    cluster.kubectl("delete", "pod", "lost", "-n", "default", "--wait=false")


@contextmanager
def stage() -> Iterator[tuple[Cluster, subprocess.Popen[str]]]:
    """Two nodes, and a third whose agent can be made to hang; the operator; metrics that we make up."""
    with ExitStack() as stack:
        # A node whose kubelet hangs with its agent is not given up while we look
        patient = ("--node-monitor-grace-period=600s",)
        cluster = stack.enter_context(LocalControlPlane(find_binaries(say), controller_manager_flags=patient))
        install(cluster)
        stack.enter_context(hollow_nodes(cluster, 2, "--prefix", "node", "--machine", "1x4x1", "--kinds"))
        fleet = stack.enter_context(hollow_nodes(cluster, 1, "--prefix", "quiet", "--machine", "1x4x1", "--kinds"))
        api = stack.enter_context(MetricsAPI(cluster, cluster.work_dir))
        for process in (operator_process(cluster, cluster.logs), autoscaler_process(cluster, cluster.logs, FAST)):
            stack.callback(process.start().stop)
            process.wait_ready()
        # The forecast needs a history, which it collects meanwhile
        requests = {"containers": [{"name": "app", "image": IMAGE, "resources": {"requests": {"cpu": "100m"}}}]}
        utilization = {"type": "Utilization", "averageUtilization": 50}
        cluster.apply(
            workload("Deployment", "web", pod_spec(schedulerName="concerto") | requests),
            concerto(
                "PredictiveHPA",
                "web",
                scaleTargetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                maxReplicas=8,
                metrics=[{"type": "Resource", "resource": {"name": "cpu", "target": utilization}}],
                prediction={"mode": "Auto", "horizon": "5s"},
            ),
        )
        stack.enter_context(ScriptedLoad(cluster, api, "app=web", unforeseeable()))
        yield cluster, fleet


def main() -> int:
    """Run all five; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo.incidents", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page instead of writing it")
    arguments = parser.parse_args()
    with stage() as (cluster, fleet):
        page = Page(cluster)
        for number, incident in enumerate(
            (no_cpu_left, partial(stale_agent, fleet=fleet), conflict_of_bindings, forecast_off, wrong_profile), start=1
        ):
            say(f"incident {number} of 5")
            incident(cluster, page)
    if arguments.print:
        print(page.text())
    else:
        PAGE.write_text(page.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
