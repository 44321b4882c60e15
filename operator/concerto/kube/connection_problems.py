"""Why a request got no connection or no whole answer, in words: host, port and reason.

aiohttp's own messages show objects of Python, some with an address in memory that differs each time.
"""

from __future__ import annotations

import os
import re
import ssl
from urllib.parse import urlsplit

import aiohttp

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_PORTS = {"http": 80, "https": 443}


def connection_problem(error: BaseException, url: str) -> str:
    """What went wrong with a request, as a clause such as ``cannot connect to 10.0.0.1:6443: Connection refused``.

    Args:
        error: what aiohttp, asyncio or the system raised.
        url: what was requested.
    """
    server = host_and_port(url)
    match error:
        case aiohttp.ClientProxyConnectionError():
            proxy = _joined(error.host, error.port)
            return f"cannot connect to the proxy {proxy}: {system_reason(error.os_error)}"
        case aiohttp.ClientConnectorCertificateError():
            return f"cannot connect to {server}: {system_reason(error.certificate_error)}"
        case aiohttp.ClientConnectorError():  # of TLS, too
            return f"cannot connect to {server}: {system_reason(error.os_error)}"
        case aiohttp.ClientHttpProxyError():
            return f"cannot connect to {server}: the proxy answers {error.status} {error.message}"
        case aiohttp.ClientResponseError():
            return f"{server} does not answer in HTTP"
        case aiohttp.ConnectionTimeoutError():
            return f"cannot connect to {server}: no connection in time"
        case TimeoutError():
            return f"{server} gave no answer in time"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return f"{server} disconnected before its answer was complete"
        case aiohttp.InvalidURL():
            return f"{url} is not an address such as https://127.0.0.1:6443"
        case OSError():
            return f"{server}: {system_reason(error)}"
        case _:
            return f"{server}: {error or type(error).__name__}"


def host_and_port(url: str) -> str:
    """``host:port`` of a URL, with the port of its scheme where it names none; the URL itself where it has no host."""
    try:
        parts = urlsplit(url)
        return _joined(parts.hostname, parts.port or _PORTS[parts.scheme]) if parts.hostname else url
    except (ValueError, KeyError):
        return url


def system_reason(error: BaseException) -> str:
    """Why the system or OpenSSL refused, in their own words, without numbers and addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS failed: {error.reason.replace('_', ' ').lower()}"
    if isinstance(error, OSError):
        if error.errno and error.errno > 0:
            return os.strerror(error.errno)
        if error.strerror:  # of a name that is not found
            return str(error.strerror)
    # asyncio joins the errors of a name's addresses
    reasons = dict.fromkeys(os.strerror(int(number)) for number in _ERRNO.findall(str(error)))
    return ", ".join(reasons) or str(error) or type(error).__name__


def _joined(host: str, port: int | None) -> str:
    return f"{f'[{host}]' if ':' in host else host}:{port}"
