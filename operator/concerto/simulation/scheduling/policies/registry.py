"""Every policy a scenario can name. One line here and one file make a new one."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from concerto.api.capacity_settings import CapacitySettings
from concerto.api.quantities import milli
from concerto.api.schedulingprofile import ProfileSettings
from concerto.capacity.kinds.settings import KindSettings
from concerto.simulation.scheduling.cluster import Policy
from concerto.simulation.scheduling.policies.concerto import Concerto
from concerto.simulation.scheduling.policies.fitting_requests import FittingRequests
from concerto.simulation.scheduling.policies.kube_gangs import MODES, KubeGangs
from concerto.simulation.scheduling.policies.kube_scheduler import KubeScheduler
from concerto.simulation.scheduling.policies.measured import Carico, Pronto, spazio
from concerto.simulation.scheduling.policies.oracle import Oracle
from concerto.simulation.scheduling.policies.random_choice import RandomChoice
from concerto.simulation.scheduling.policies.raw_pods import SCHEDULER_NAME
from concerto.simulation.scheduling.policies.trimaran import load_variation_risk_balancing, target_load_packing

REQUEST_SWEEP = (100, 150, 200, 250, 300, 400, 500, 600, 750, 1000, 1250, 1500)
"""Millicores that `kube-sweep` gives every pod, one run each (evaluation section 1: 100m to 1500m)."""

GANG_REQUEST_SWEEP = (250, 500, 750, 1000, 1500)
"""Millicores that the sweeps of kube-scheduler with gangs give every pod."""

COST_SWEEP = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
"""What `kube-costs-sweep` multiplies the cost of each kind by, one run each: the best is the best request per kind."""

KIND_ABLATIONS: dict[str, dict[str, Any]] = {
    "-without-pace": {"law": KindSettings(pace=1e6)},
    "-without-light-pods": {"law": KindSettings(light_share=0.0)},
    "-without-stall-correction": {"leaves_out_stalls": False},
    "-without-last-pods": {"law": KindSettings(last_pods=0.0)},
    "-without-larger-first": {"law": KindSettings(larger_first=False)},
    "-without-overhang": {"law": KindSettings(overhang=1.0)},
    "-without-wider-head-room": {"law": KindSettings(max_head_room=KindSettings.head_room)},
}
"""Placement by kind without one of its parts, by the ending of the policy's name."""
_CONCERTO: dict[str, Callable[[CapacitySettings | None, ProfileSettings], Policy]] = {
    "concerto": Concerto,
    "concerto-known": partial(Concerto, known=True),
    "concerto-known-one-column": partial(Concerto, known=True, one_column=True),
    "concerto-without-kinds": partial(Concerto, kinds=False),
    "concerto-without-federation": Concerto,
    "concerto-known-without-federation": Concerto,
    **{f"concerto{ending}": partial(Concerto, **parts) for ending, parts in KIND_ABLATIONS.items()},
    **{f"concerto-known{ending}": partial(Concerto, known=True, **parts) for ending, parts in KIND_ABLATIONS.items()},
}
"""Concerto itself: nothing known of the pods' kinds at the start; known from an earlier run; known as one number each,
whichever resource they take; every pod one unit.

Where nodes share nothing, a later run on nodes that never saw the kind knows as little as the first.
"""
_PLAIN: dict[str, Callable[[], Policy]] = {
    "kube-scheduler": KubeScheduler,
    "kube-vpa": lambda: FittingRequests(None),
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
_WITH_GANGS = re.compile(rf"^kube-({'|'.join(MODES)})@(\d+m)$")
_WITH_COSTS = re.compile(r"^kube-costs@(\d+(?:\.\d+)?)$")
_SWEEPS = {
    **{f"kube-{mode}-sweep": [f"kube-{mode}@{m}m" for m in GANG_REQUEST_SWEEP] for mode in MODES},
    "kube-sweep": [f"kube-scheduler@{m}m" for m in REQUEST_SWEEP],
    "kube-costs-sweep": [f"kube-costs@{factor:g}" for factor in COST_SWEEP],
}
_GANGS = [f"kube-{mode}@<millicores>m" for mode in MODES]
EXPECTED = ", ".join([*_CONCERTO, *_SWEEPS, "kube-scheduler@<millicores>m", *_GANGS, "kube-costs@<factor>", *_PLAIN])
"""What a policy may be called, for messages."""


def expand(name: str) -> list[str]:
    """The runs that a name stands for: a sweep is one for each request."""
    return _SWEEPS.get(name, [name])


def is_policy(name: str) -> bool:
    """Whether there is a policy of that name."""
    known = name in _PLAIN or name in _CONCERTO or name in _SWEEPS
    return known or any(pattern.match(name) for pattern in (_WITH_REQUEST, _WITH_GANGS, _WITH_COSTS))


def make(name: str, capacity: CapacitySettings | None = None, profile: ProfileSettings | None = None) -> Policy:
    """A fresh policy.

    Args:
        name: one for which `is_policy` holds, and no sweep.
        capacity: NodeCapacity.spec for `concerto`.
        profile: SchedulingProfile.spec for `concerto`.
    """
    if name in _CONCERTO:
        return _CONCERTO[name](capacity, profile or ProfileSettings(SCHEDULER_NAME))
    if (match := _WITH_REQUEST.match(name)) is not None:
        return KubeScheduler(milli(match.group(1)))
    if (match := _WITH_GANGS.match(name)) is not None:
        return KubeGangs(match.group(1), milli(match.group(2)))
    if (match := _WITH_COSTS.match(name)) is not None:
        return FittingRequests(float(match.group(1)))
    return _PLAIN[name]()
