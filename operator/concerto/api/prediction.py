"""``spec.prediction`` of a PredictiveHPA as a typed view: how forecasts are made and used.

Defaults are those of the CRD; they stand here a second time only for objects that were written before a field existed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from concerto.api.quantities import parse_duration
from concerto.api.timestamps import parse_timestamp

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class InitialHistorySpec:
    """``prediction.initialHistory``.

    Attributes:
        query: PromQL with the load in replicas at their target; empty: the metrics' own series.
    """

    query: str = ""


@dataclass(frozen=True)
class PredictionSpec:
    """``spec.prediction``.

    Attributes:
        mode: Auto scales; Preview only reports what it would do; Off makes no forecasts.
        decision: Floor: forecasts only raise; Predictive: they decide while they are good.
        model: Auto, Linear, Holt or Seasonal.
        history_seconds: length of the coarse history.
        horizon_seconds: how far to look ahead; None: as long as pods take to start.
        season_seconds: length of a season; None: an hour, a day, a week and the load's own period are tried.
        season_start: nothing before this time counts for a season.
        season_exceptions: days that do not follow seasons, such as ``2026-12-25``.
        season_time_zone: IANA name of the zone of those days, and of the clock by which seasons of a day repeat.
        downscale_stabilization_seconds: how long a recommendation holds replicas while the forecast is active and
            ``behavior.scaleDown`` gives no window; None: by the horizon.
        shortage_seconds: a missing pod costs as much as a surplus pod for this long.
        metrics_source: Auto, Agents or MetricsAPI.
        reserve_capacity: whether rises reserve room.
        initial_history: where the history from before the object comes from; None: it begins with the object.
    """

    mode: Literal["Auto", "Preview", "Off"] = "Auto"
    decision: Literal["Floor", "Predictive"] = "Floor"
    model: Literal["Auto", "Linear", "Holt", "Seasonal"] = "Auto"
    history_seconds: float = 72 * 3600.0
    horizon_seconds: float | None = None
    season_seconds: float | None = None
    season_start: float | None = None
    season_exceptions: tuple[str, ...] = ()
    season_time_zone: str = "UTC"
    downscale_stabilization_seconds: float | None = None
    shortage_seconds: float = 1800.0
    metrics_source: Literal["Auto", "Agents", "MetricsAPI"] = "Auto"
    reserve_capacity: bool = False
    initial_history: InitialHistorySpec | None = None

    @classmethod
    def from_raw(cls, raw: Raw | None) -> Self:
        """As the API server holds it.

        Raises:
            ValueError: a duration or a time is not valid.
        """
        raw = raw or {}
        season = raw.get("season") or {}
        start, initial = season.get("start"), raw.get("initialHistory")
        return cls(
            mode=raw.get("mode", cls.mode),
            decision=raw.get("decision", cls.decision),
            model=raw.get("model", cls.model),
            history_seconds=parse_duration(raw["historyLength"]) if "historyLength" in raw else cls.history_seconds,
            horizon_seconds=_seconds(raw.get("horizon")),
            season_seconds=_seconds(season.get("length")),
            season_start=None if start is None else parse_timestamp(start),
            season_exceptions=tuple(season.get("exceptions") or ()),
            season_time_zone=season.get("timeZone", cls.season_time_zone),
            downscale_stabilization_seconds=_seconds(raw.get("downscaleStabilization")),
            shortage_seconds=parse_duration(raw["shortage"]) if "shortage" in raw else cls.shortage_seconds,
            metrics_source=raw.get("metricsSource", cls.metrics_source),
            reserve_capacity=raw.get("reserveCapacity", cls.reserve_capacity),
            initial_history=None if initial is None else InitialHistorySpec(initial.get("query", "")),
        )


def _seconds(text: str | None) -> float | None:
    return None if text in (None, "Auto") else parse_duration(text)
