"""The only package that sends HTTP requests to the API server.

What is here is what node agents need, too. Events and leader election are imported from modules of their own: they
would take memory of every node.
"""

from concerto.kube.apply import apply_status
from concerto.kube.config import ClusterConfig
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
from concerto.kube.reflector import Reflector
from concerto.kube.reflector_settings import ReflectorSettings
from concerto.kube.request_bodies import Object
from concerto.kube.resources import Resource
from concerto.kube.session import Session, SessionSettings

__all__ = [
    "ApiError",
    "ClusterConfig",
    "ConfigError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "KubeError",
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
