"""Kubelet's settings ``reservedSystemCPUs`` and ``cpuCFSQuota``, read from its endpoint ``/configz`` on the node.

Kubelet's configuration file does not have them if kubelet reads its settings from flags or from a drop-in folder. Since
Kubernetes 1.33, ``/configz`` takes the right to get ``nodes/configz``. Reading it through the API server would take
``nodes/proxy``, which also allows to run commands in every pod of the node.

The agent sends its token only to a server whose certificate kubelet has written to its own folder, or that the
cluster's authority has signed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from concerto.api.cpulist import format_cpu_list, parse_cpu_list
from concerto.kube import ClusterConfig, Forbidden, KubeError, NotFound, Session, SessionSettings
from concerto_agent.quotas import kubelet_sets_quotas

log = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class ConfigzSettings:
    """Where kubelet's files are, and how long it may take to answer.

    Attributes:
        kubelet_config: its KubeletConfiguration. After a change of this file kubelet is asked anew.
        certificate: its serving certificate, unless the cluster's authority signs that.
        timeout_seconds: of one request.
    """

    kubelet_config: Path
    certificate: Path
    timeout_seconds: float = 5.0


class _UnexpectedAnswer(Exception):
    """Kubelet has answered in another form; the message quotes what was missing."""


class KubeletConfigz:
    """The last answer of the node's kubelet.

    It counts until kubelet gives another one, or refuses: what a kubelet reserves that does not answer is not known to
    have changed, and pods would lose their pins on CPUs that are taken for reserved meanwhile.

    Attributes:
        file_changed: set once kubelet's file has changed since kubelet was asked.
    """

    def __init__(self, config: ClusterConfig, node_name: str, settings: ConfigzSettings) -> None:
        """Nothing is requested before `refresh`.

        Args:
            config: connection to the API server; its token and certificate authority are used.
            node_name: the node's name, which kubelet's certificate names.
            settings: files and timeout.
        """
        self._config = config
        self._node_name = node_name
        self._settings = settings
        self.file_changed = asyncio.Event()
        self._reserved: frozenset[int] | None = None
        self._file_then: bytes | None = None  # when kubelet was last asked
        self._has_asked = False
        self._sets_quotas: bool | None = None
        self._quotas_by_kubelet = False  # whether kubelet itself has said so
        self._last_problem = ""

    def reserved(self) -> frozenset[int] | None:
        """``reservedSystemCPUs``, as kubelet last answered; empty if it is not set. None without an answer."""
        if self._has_asked and self._file() != self._file_then:
            self.file_changed.set()
        return self._reserved

    def sets_quotas(self) -> bool | None:
        """Whether kubelet makes CPU quotas of limits, as it last answered; None before `refresh`.

        The last answer is kept while kubelet cannot be reached. Otherwise the agent would write quotas although kubelet
        is configured not to, and nobody would remove them. Kubelet's configuration file counts if it never answers.
        """
        return self._sets_quotas

    async def refresh(self, node: Mapping[str, Any]) -> None:
        """Request kubelet's settings.

        Args:
            node: the Node, as the API server has it.
        """
        self._file_then, problem = self._file(), ""
        self.file_changed.clear()
        try:
            before, self._reserved = self._reserved, self._read(await self._get(node))
            if before is None or before != self._reserved:
                log.info("kubelet's reservedSystemCPUs: %s", format_cpu_list(self._reserved) or "none")
        except (Forbidden, NotFound, _UnexpectedAnswer) as error:
            self._reserved, problem = None, str(error)
        except (KubeError, OSError) as error:
            problem = str(error)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            problem = f"unexpected Node ({type(error).__name__}: {error})"
        self._has_asked = True
        if not self._quotas_by_kubelet:
            self._sets_quotas = kubelet_sets_quotas(self._settings.kubelet_config)
        if problem and problem != self._last_problem:
            used = "its file and the Node are" if self._reserved is None else "its last answer is"
            log.warning("kubelet's /configz can't be read, so %s used: %s", used, problem)
        self._last_problem = problem

    def _read(self, answer: Any) -> frozenset[int]:
        """What kubelet reserves by its answer; remembers whether it sets quotas.

        Raises:
            _UnexpectedAnswer: it is not of that form.
        """
        try:
            settings = answer["kubeletconfig"]
            reserved = parse_cpu_list(settings.get("reservedSystemCPUs") or "")
            if isinstance(quotas := settings.get("cpuCFSQuota"), bool):
                self._sets_quotas, self._quotas_by_kubelet = quotas, True
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise _UnexpectedAnswer(f"unexpected answer ({type(error).__name__}: {error})") from error
        return reserved

    async def _get(self, node: Mapping[str, Any]) -> Mapping[str, Any]:
        status = node["status"]
        address = {each["type"]: str(each["address"]) for each in reversed(status["addresses"])}["InternalIP"]
        port = int(status["daemonEndpoints"]["kubeletEndpoint"]["Port"])
        config = replace(
            self._config,
            server=f"https://{f'[{address}]' if ':' in address else address}:{port}",
            certificate_authority=None,
            certificate_authority_data=self._authorities(),
            tls_server_name=self._node_name,
            insecure_skip_tls_verify=False,
            proxy_url=None,
        )
        seconds = self._settings.timeout_seconds
        settings = SessionSettings(connect_timeout_seconds=seconds, attempts=1)
        async with await Session.open(config, settings) as session:
            return await session.get_foreign("/configz", timeout_seconds=seconds, max_bytes=_MAX_BYTES)

    def _authorities(self) -> str:
        """Certificates to verify kubelet's with, PEM: see the module's docstring."""
        found = [self._config.certificate_authority_data or ""]
        paths = (self._config.certificate_authority, self._settings.certificate)
        for path in paths:
            try:
                found.append(Path(path).read_text() if path else "")
            except OSError:
                continue  # kubelet writes none where the cluster signs it
        return "\n".join(found)

    def _file(self) -> bytes | None:
        try:
            return self._settings.kubelet_config.read_bytes()
        except OSError:
            return None
