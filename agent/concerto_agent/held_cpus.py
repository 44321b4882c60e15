"""What bindings hold of a node's CPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeldCPUs:
    """CPUs of a node that its bindings hold.

    Attributes:
        run_on: CPUs that bound pods run on.
        exclusive: CPUs that are kept from pods without a binding.
        kubelet_conflicts: bindings (``namespace/name``) that name CPUs or containers which kubelet's static CPU manager
            controls.
    """

    run_on: frozenset[int] = frozenset()
    exclusive: frozenset[int] = frozenset()
    kubelet_conflicts: tuple[str, ...] = ()
