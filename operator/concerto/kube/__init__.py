"""The only package that sends HTTP requests to the API server."""

from concerto.kube.apply import apply_status
from concerto.kube.config import ClusterConfig
from concerto.kube.election import LeaderElection
from concerto.kube.errors import (
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from concerto.kube.events import EventRecorder, EventSettings
from concerto.kube.lease import LeaseSettings
from concerto.kube.reflector import Reflector
from concerto.kube.reflector_settings import ReflectorSettings
from concerto.kube.resources import Resource
from concerto.kube.session import Object, Session, SessionSettings

__all__ = [
    "ApiError",
    "ClusterConfig",
    "ConfigError",
    "Conflict",
    "EventRecorder",
    "EventSettings",
    "Forbidden",
    "Gone",
    "Invalid",
    "KubeError",
    "LeaderElection",
    "LeaseSettings",
    "NotFound",
    "Object",
    "OutcomeUnknown",
    "Reflector",
    "ReflectorSettings",
    "Resource",
    "ServerError",
    "Session",
    "SessionSettings",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "apply_status",
]
