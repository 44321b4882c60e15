"""Where the load of nodes comes from if not from the agents: metrics.k8s.io, or Prometheus; asked in the background."""

from concerto.controllers.scheduling.load_providers.poller import LoadProviders, Wanted, build_source
from concerto.controllers.scheduling.load_providers.source import Answer, Source, SourceError
from concerto.controllers.scheduling.load_providers.state import ProviderState

__all__ = ["Answer", "LoadProviders", "ProviderState", "Source", "SourceError", "Wanted", "build_source"]
