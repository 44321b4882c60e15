"""Which containers of a pod get CPUs of their own, and how many."""

from __future__ import annotations

from typing import NamedTuple

from concerto.api.pod_shape import PodShape


class OwnCPUs(NamedTuple):
    """CPUs that a pod gets.

    Attributes:
        threads: their number, at least 1.
        containers: names of the containers that they are for, sorted; empty: for the whole pod.
    """

    threads: int
    containers: tuple[str, ...] = ()


def own_cpus(shape: PodShape) -> OwnCPUs:
    """Containers that request whole CPUs get as many; the pod's other containers share the node's shared pool.

    Where no container requests whole CPUs, or all of the pod's request is made up of these, the CPUs are for the whole
    pod: its cpu request, rounded up. An init container that requests no more than the others runs on their CPUs.
    """
    millicores = shape.requests.get("cpu", 0)
    whole = {c.name: cpu for c in shape.containers if (cpu := c.requests.get("cpu", 0)) >= 1000 and cpu % 1000 == 0}
    if not whole or (len(whole) == len(shape.containers) and sum(whole.values()) >= millicores):
        return OwnCPUs(max(-(-millicores // 1000), 1))
    return OwnCPUs(sum(whole.values()) // 1000, tuple(sorted(whole)))
