"""Settings of the replica rules: bounds, behaviour and the controller's constants, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

SelectPolicy = Literal["Max", "Min", "Disabled"]


@dataclass(frozen=True)
class ControllerSettings:
    """The flags of kube-controller-manager that shape autoscaling/v2, with its defaults.

    Attributes:
        sync_seconds: time between two syncs of an object.
        tolerance: change of the ratio, from 1, that is too small to act on; each direction.
        downscale_stabilization_seconds: how long a higher recommendation holds replicas up.
        cpu_initialization_seconds: how long after its start a pod's CPU samples may be start-up work.
        initial_readiness_delay_seconds: readiness changes this soon after the start count as never ready.
        first_readiness: not one of theirs: a sample that reaches back before its pod was first seen to become Ready is
            start-up work, however long that took.
    """

    sync_seconds: float = 15.0
    tolerance: float = 0.1
    downscale_stabilization_seconds: float = 300.0
    cpu_initialization_seconds: float = 300.0
    initial_readiness_delay_seconds: float = 30.0
    first_readiness: bool = False


@dataclass(frozen=True)
class Policy:
    """One limit of the rate of change: ``value`` pods or percent in any ``period_seconds``."""

    type: Literal["Pods", "Percent"]
    value: int
    period_seconds: int


@dataclass(frozen=True)
class ScalingRules:
    """``behavior.scaleUp`` or ``behavior.scaleDown``.

    Attributes:
        policies: rate limits.
        select_policy: which of them counts: the one that allows most, least, or no change at all.
        stabilization_seconds: None stands for the controller's own downscale window.
        tolerance: None stands for the controller's own.
    """

    policies: tuple[Policy, ...]
    select_policy: SelectPolicy = "Max"
    stabilization_seconds: float | None = None
    tolerance: float | None = None


DEFAULT_SCALE_UP = ScalingRules((Policy("Pods", 4, 15), Policy("Percent", 100, 15)), "Max", 0.0)
DEFAULT_SCALE_DOWN = ScalingRules((Policy("Percent", 100, 15),), "Max", None)


@dataclass(frozen=True)
class Behavior:
    """``spec.behavior``. An object without one follows the older rules (see `behavior.normalise`)."""

    scale_up: ScalingRules = DEFAULT_SCALE_UP
    scale_down: ScalingRules = DEFAULT_SCALE_DOWN

    def with_window(self, controller: ControllerSettings) -> Behavior:
        """The same with the controller's downscale window where none is given."""
        if self.scale_down.stabilization_seconds is not None:
            return self
        window = controller.downscale_stabilization_seconds
        return replace(self, scale_down=replace(self.scale_down, stabilization_seconds=window))


@dataclass(frozen=True)
class Tolerances:
    """Changes of the ratio, from 1, that are too small to act on."""

    scale_up: float
    scale_down: float

    def contain(self, ratio: float) -> bool:
        """Whether the ratio is so near to 1 that the replicas stay."""
        return 1.0 - self.scale_down <= ratio <= 1.0 + self.scale_up


@dataclass(frozen=True)
class Release:
    """How far replicas may fall before the down window is over, because a forecast shows that they are not needed.

    Attributes:
        replicas: enough for the upper end of the forecast; nothing below is released.
        min_drop: a fall of fewer replicas is not worth a rescale, and waits for the window.
        window_seconds: recommendations of this time hold in any case.
    """

    replicas: int
    min_drop: float
    window_seconds: float


@dataclass(frozen=True)
class Bounds:
    """What an object may scale to, and how fast.

    Attributes:
        max_replicas: never more.
        min_replicas: never fewer.
        behavior: of the object; None where it has none.
        controller: the controller's constants.
        release: what a forecast releases early; applies only where no behaviour gives a down window.
        min_source: where the lower bound comes from, for messages.
        max_source: where the upper bound comes from.
        starts_from_zero: a target at zero replicas is scaled although the lower bound is higher.
    """

    max_replicas: int
    min_replicas: int = 1
    behavior: Behavior | None = None
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    release: Release | None = None
    min_source: str = "Spec.MinReplicas"
    max_source: str = "Spec.MaxReplicas"
    starts_from_zero: bool = False

    def is_disabled(self, current: int) -> bool:
        """Whether the target is at zero replicas because somebody scaled it there."""
        return current == 0 and self.min_replicas != 0 and not self.starts_from_zero

    def keep_at_zero(self, current: int) -> bool:
        """Whether the target is at zero replicas, and may have no others, whatever the metrics say."""
        return current == self.max_replicas == 0

    @property
    def down_window_seconds(self) -> float:
        """How long a recommendation holds replicas up: the behaviour's own time, else the controller's."""
        own = None if self.behavior is None else self.behavior.scale_down.stabilization_seconds
        return self.controller.downscale_stabilization_seconds if own is None else own

    @property
    def tolerances(self) -> Tolerances:
        """Per-direction tolerances: the behaviour's own, else the controller's."""
        default = self.controller.tolerance
        if self.behavior is None:
            return Tolerances(default, default)
        up, down = self.behavior.scale_up.tolerance, self.behavior.scale_down.tolerance
        return Tolerances(default if up is None else up, default if down is None else down)
