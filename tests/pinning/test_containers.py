"""Which containers of a pod get CPUs of their own."""

from __future__ import annotations

import pytest

from concerto.api.pod_shape import shape_of
from concerto.pinning.containers import own_cpus


def shape(containers: dict[str, str | None], inits: dict[str, str] | None = None, restart: str | None = None):
    def listed(amounts):
        return [{"name": n, "resources": {"requests": {"cpu": cpu}} if cpu else {}} for n, cpu in amounts.items()]

    made = [each | ({"restartPolicy": restart} if restart else {}) for each in listed(inits or {})]
    return shape_of({"containers": listed(containers), "initContainers": made})


# containers, init containers, their restartPolicy, threads and names
OWN = {
    "one container: the whole pod": ({"main": "4"}, {}, None, (4, ())),
    "a fraction is rounded up": ({"main": "2100m"}, {}, None, (3, ())),
    "a sidecar with a fraction shares": ({"main": "4", "log": "100m"}, {}, None, (4, ("main",))),
    "a sidecar without a request shares": ({"main": "4", "log": None}, {}, None, (4, ("main",))),
    "a large init container shares": ({"main": "2"}, {"init": "8"}, None, (2, ("main",))),
    "a small init container runs on the CPUs": ({"main": "2"}, {"init": "1"}, None, (2, ())),
    "two with whole CPUs have them together": ({"one": "1", "two": "2", "log": "0.5"}, {}, None, (3, ("one", "two"))),
    "a sidecar with whole CPUs has its own": (
        {"main": "2", "log": "50m"},
        {"proxy": "1"},
        "Always",
        (3, ("main", "proxy")),
    ),
    "no container has whole CPUs": ({"one": "500m", "two": "700m"}, {}, None, (2, ())),
    "no request": ({"main": None}, {}, None, (1, ())),
}  # fmt: skip


@pytest.mark.parametrize(("containers", "inits", "restart", "expected"), OWN.values(), ids=OWN)
def test_containers_that_request_whole_cpus_get_them(containers, inits, restart, expected):
    assert own_cpus(shape(containers, inits, restart)) == expected
