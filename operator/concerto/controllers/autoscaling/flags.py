"""Flags of `concerto operator` for PredictiveHPA: those of kube-controller-manager, under names of our own."""

from __future__ import annotations

import argparse
from pathlib import Path

from concerto.api.arguments import duration, http_url, number, whole_number
from concerto.autoscaling.settings import ControllerSettings
from concerto.controllers.autoscaling.settings import PredictiveHPASettings
from concerto.controllers.autoscaling.sources import PrometheusServer
from concerto.controllers.autoscaling.sources.prometheus import check_files
from concerto.controllers.runtime.http_source import SourceError

_DURATIONS = {
    "sync-period": ("sync_seconds", duration("1s", "1h", "15s"), "time between two syncs of an object, 1s to 1h"),
    "downscale-stabilization": (
        "downscale_stabilization_seconds",
        duration("0s", "1h", "300s"),
        "how long a higher recommendation holds replicas, up to 1h",
    ),
    "cpu-initialization-period": (
        "cpu_initialization_seconds",
        duration("0s", "24h", "300s"),
        "time after a pod's start in which CPU may be start-up",
    ),
    "initial-readiness-delay": (
        "initial_readiness_delay_seconds",
        duration("0s", "24h", "30s"),
        "time in which unreadiness is initial",
    ),
}
"""Attribute of the settings, bounds and help; the down window has that of behavior's stabilizationWindowSeconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags, with the defaults of autoscaling/v2."""
    default = ControllerSettings()
    group = parser.add_argument_group("PredictiveHPA")
    for name, (attribute, read, help_) in _DURATIONS.items():
        group.add_argument(
            f"--autoscaling-{name}",
            dest=f"autoscaling_{attribute}",
            type=read,
            default=getattr(default, attribute),
            metavar="DURATION",
            help=f"{help_} (default: {getattr(default, attribute):g}s)",
        )
    group.add_argument(
        "--autoscaling-ask-agents",
        action="store_true",
        help="ask node agents for readings of their pods, each with a token of its own",
    )
    group.add_argument(
        "--autoscaling-max-series",
        type=whole_number(0, 100_000, str(PredictiveHPASettings.max_series)),
        default=PredictiveHPASettings.max_series,
        metavar="OBJECTS",
        help="number of objects that have Prometheus series of their own (default: %(default)s)",
    )
    group.add_argument(
        "--autoscaling-prometheus-url",
        type=http_url("http://prometheus.monitoring:9090"),
        metavar="URL",
        help="the Prometheus that metrics of type Prometheus and initial histories come from",
    )
    group.add_argument(
        "--autoscaling-prometheus-token-file", type=Path, metavar="FILE", help="file with a bearer token for it"
    )
    group.add_argument(
        "--autoscaling-prometheus-ca-file", type=Path, metavar="FILE", help="file with the certificates to trust there"
    )
    group.add_argument(
        "--autoscaling-tolerance",
        type=number(0.0, 1.0, f"{default.tolerance:g}"),
        default=default.tolerance,
        help="distance of a metric from its target, as a share of it, that is left alone, 0 to 1 "
        "(default: %(default)g)",
    )


def settings_from(args: argparse.Namespace) -> PredictiveHPASettings:
    """Settings from the parsed flags.

    Raises:
        ValueError: a file that they name can't be used, or has no effect; the message says which.
    """
    durations = {attribute: getattr(args, f"autoscaling_{attribute}") for attribute, _, _ in _DURATIONS.values()}
    controller = ControllerSettings(tolerance=args.autoscaling_tolerance, **durations)
    server = PrometheusServer(
        args.autoscaling_prometheus_url or "",
        args.autoscaling_prometheus_token_file,
        args.autoscaling_prometheus_ca_file,
    )
    if not server.address and (server.token_file or server.ca_file):
        raise ValueError(
            "--autoscaling-prometheus-token-file and --autoscaling-prometheus-ca-file go with "
            "--autoscaling-prometheus-url: it names the server"
        )
    try:
        check_files(server)
    except SourceError as error:
        option = "ca-file" if error.reason == "InvalidCA" else "token-file"
        raise ValueError(f"--autoscaling-prometheus-{option}: {error}") from error
    return PredictiveHPASettings(controller=controller, max_series=args.autoscaling_max_series, prometheus=server)
