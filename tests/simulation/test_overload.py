"""A node that somebody has overloaded by hand drains to its window."""

from __future__ import annotations

from concerto.simulation.scheduling.cluster import World
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.setup import NodeSpec, Setup
from concerto.simulation.scheduling.workloads import PI_2000, JobSpec


class ByHand(Concerto):
    """Concerto, except that 20 pods are bound to the first node at once, 10 s after the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.put_at: float | None = None
        self.pods: list[tuple[float, int]] = []  # time, and pods on the first node

    def schedule(self, now):
        self.pods.append((now, len(self.agents.running[0])))
        if self.put_at is None and now > 10.0:
            self.put_at = now
            waiting = [p for p in self.world.pods.values() if p.phase == "Pending" and p.node is None]
            for pod in waiting[:20]:
                self.queue.remove(pod.uid)
            return [(pod, 0) for pod in waiting[:20]]
        return super().schedule(now)


def test_twenty_pods_put_on_a_node_by_hand_drain_to_its_window_within_two_pod_lives():
    policy = ByHand()
    World(Setup((NodeSpec(count=2),), (JobSpec("pi", 200, PI_2000),)), policy, 1).run()
    after = [(at - policy.put_at, pods) for at, pods in policy.pods if at > policy.put_at]
    most = max(pods for _, pods in after)
    assert most >= 20
    peak = next(at for at, pods in after if pods == most)
    assert max(pods for at, pods in after if at >= peak + 2.0) <= most, "no end is replaced meanwhile"
    # Alone on four cores a pod lives for 6 s, twenty together for 22 s
    assert min(pods for at, pods in after if at <= 2 * 22.0) <= 6
    assert max(pods for at, pods in after if at >= 2 * 22.0) <= most / 2
