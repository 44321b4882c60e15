"""What bindings hold of a node's CPUs."""

from __future__ import annotations

from dataclasses import dataclass

from concerto.api.nodecputopology import CPUPools


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

    def pools(
        self, online: frozenset[int], kubelet_exclusive: frozenset[int], reserved: frozenset[int] = frozenset()
    ) -> CPUPools:
        """What the node's online CPUs are used for.

        Args:
            online: the node's CPUs; what is not online is left out of every pool.
            kubelet_exclusive: CPUs that kubelet's static CPU manager has given to containers.
            reserved: CPUs that no pod gets for itself.
        """
        return CPUPools(
            reserved=reserved & online,
            kubelet_exclusive=kubelet_exclusive & online,
            allocated=self.run_on & online,
            kept=(self.exclusive - self.run_on) & online,
            shared=online - kubelet_exclusive - self.exclusive,
        )
