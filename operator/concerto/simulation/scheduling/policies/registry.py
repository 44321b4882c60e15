"""Every policy a scenario can name. One line here and one file make a new one."""

from __future__ import annotations

import re
from collections.abc import Callable

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.quantities import milli
from concerto.api.schedulingprofile import ProfileSettings
from concerto.simulation.scheduling.cluster import Policy
from concerto.simulation.scheduling.policies.concerto import SCHEDULER_NAME, Concerto
from concerto.simulation.scheduling.policies.kube_scheduler import KubeScheduler
from concerto.simulation.scheduling.policies.measured import Carico, Pronto, spazio
from concerto.simulation.scheduling.policies.oracle import Oracle
from concerto.simulation.scheduling.policies.random_choice import RandomChoice
from concerto.simulation.scheduling.policies.trimaran import load_variation_risk_balancing, target_load_packing

REQUEST_SWEEP = (100, 150, 200, 250, 300, 400, 500, 600, 750, 1000, 1250, 1500)
"""Millicores that `kube-sweep` gives every pod, one run each (evaluation section 1: 100m to 1500m)."""

_CONCERTO: dict[str, dict[str, bool]] = {
    "concerto": {},
    "concerto-known": {"known": True},
    "concerto-without-kinds": {"kinds": False},
}
"""Concerto itself: nothing known of the pods' kinds at the start; known from an earlier run; every pod one unit."""
_PLAIN: dict[str, Callable[[], Policy]] = {
    "kube-scheduler": KubeScheduler,
    "carico": Carico,
    "spazio": lambda: spazio(False),
    "spazio-over-provision": lambda: spazio(True),
    "pronto": Pronto,
    "trimaran-target-load-packing": target_load_packing,
    "trimaran-load-variation": load_variation_risk_balancing,
    "random": RandomChoice,
    "oracle": Oracle,
    "oracle-tight": lambda: Oracle(slack=1.0),
}
_WITH_REQUEST = re.compile(r"^kube-scheduler@(\d+m)$")
EXPECTED = f"{', '.join(_CONCERTO)}, kube-sweep, kube-scheduler@<millicores>m, {', '.join(_PLAIN)}"
"""What a policy may be called, for messages."""


def expand(name: str) -> list[str]:
    """The runs that a name stands for: `kube-sweep` is one for each request."""
    return [f"kube-scheduler@{m}m" for m in REQUEST_SWEEP] if name == "kube-sweep" else [name]


def is_policy(name: str) -> bool:
    """Whether there is a policy of that name."""
    return name in _PLAIN or name in _CONCERTO or name == "kube-sweep" or _WITH_REQUEST.match(name) is not None


def make(name: str, capacity: CapacitySettings | None = None, profile: ProfileSettings | None = None) -> Policy:
    """A fresh policy.

    Args:
        name: one for which `is_policy` holds, and not `kube-sweep`.
        capacity: NodeCapacity.spec for `concerto`.
        profile: SchedulingProfile.spec for `concerto`.
    """
    if name in _CONCERTO:
        return Concerto(capacity, profile or ProfileSettings(SCHEDULER_NAME), **_CONCERTO[name])
    match = _WITH_REQUEST.match(name)
    if match is not None:
        return KubeScheduler(milli(match.group(1)))
    return _PLAIN[name]()
