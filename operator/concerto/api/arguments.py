"""Values of command-line options, within bounds: for ``type`` of argparse, whose error then says what to write."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import TypeVar
from urllib.parse import urlsplit

from concerto.api.quantities import parse_duration, whole

_N = TypeVar("_N", int, float, Decimal)
_HIGHEST_PORT = 65_535


def add_log_level(parser: ArgumentParser) -> None:
    """Add ``--log-level``, the same for operator and agent: ``log_level`` is a name of `logging`, in capitals."""
    parser.add_argument(
        "--log-level",
        type=_log_level,
        default="INFO",
        metavar="LEVEL",
        help="debug, info, warning or error: log what is at least as serious (default: info)",
    )


def _log_level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise _refused(text, "debug, info, warning or error", "info")
    return text.upper()


def duration(lowest: str, highest: str, example: str, *, whole_seconds: bool = False) -> Callable[[str], float]:
    """Reads a duration such as ``15s`` as seconds.

    Args:
        lowest: the shortest that is taken.
        highest: the longest that is taken.
        example: one to name where another is refused.
        whole_seconds: whether parts of a second are refused.
    """
    bounds = f"from {lowest} to {highest}"
    within = _within(parse_duration, parse_duration(lowest), parse_duration(highest), f"a duration {bounds}", example)

    def read(text: str) -> float:
        seconds = within(text)
        if whole_seconds and seconds != int(seconds):
            raise _refused(text, "a duration in whole seconds", example)
        return seconds

    return read


def number(lowest: float, highest: float, example: str) -> Callable[[str], float]:
    """Reads a number within bounds; ``example`` is one to name where another is refused."""
    return _within(float, lowest, highest, f"a number from {lowest:g} to {highest:g}", example)


def whole_number(lowest: int, highest: int, example: str) -> Callable[[str], int]:
    """Reads a whole number within bounds; ``example`` is one to name where another is refused."""
    return _within(int, lowest, highest, f"a whole number from {lowest} to {highest}", example)


def decimal(lowest: str, highest: str, example: str) -> Callable[[str], Decimal]:
    """Reads a decimal number within bounds, exactly; ``example`` is one to name where another is refused."""
    return _within(_decimal, Decimal(lowest), Decimal(highest), f"a number from {lowest} to {highest}", example)


def memory(lowest: str, highest: str, example: str) -> Callable[[str], int]:
    """Reads an amount of memory within bounds, as bytes; ``example`` is one to name where another is refused."""
    wanted = f"an amount of memory from {lowest} to {highest}"
    return _within(whole, whole(lowest), whole(highest), wanted, example)


def listening(text: str) -> str:
    """Takes ``host:port`` to listen on; an empty host is every address."""
    port = text.rpartition(":")[2]
    if ":" not in text or not (port.isascii() and port.isdecimal()) or int(port) > _HIGHEST_PORT:
        raise _refused(text, f"an address and a port up to {_HIGHEST_PORT}", ":8080, on every address")
    return text


def http_url(example: str) -> Callable[[str], str]:
    """Takes an http or https URL of a server, without query and fragment; ``example`` is one to name otherwise."""

    def read(text: str) -> str:
        if not _is_http_url(text):
            raise _refused(text, "an http or https URL", example)
        return text

    return read


def pair(wanted: str, example: str) -> Callable[[str], tuple[str, str]]:
    """Reads two words with a slash between them, such as namespace and name; ``example`` is one to name otherwise."""

    def read(text: str) -> tuple[str, str]:
        first, _, second = text.partition("/")
        if not (first and second) or "/" in second or any(c.isspace() for c in text):
            raise _refused(text, wanted, example)
        return first, second

    return read


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(text) from error
    if not value.is_finite():  # NaN can't be compared
        raise ValueError(text)
    return value


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port  # raises where it is not a port
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and not set(text) & set(' "<>\\^`{|}?#')
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _within(parse: Callable[[str], _N], lowest: _N, highest: _N, wanted: str, example: str) -> Callable[[str], _N]:
    def read(text: str) -> _N:
        try:
            value = parse(text)
        except ValueError:
            raise _refused(text, wanted, example) from None
        if not lowest <= value <= highest:  # nor if it is not a number at all
            raise _refused(text, wanted, example)
        return value

    return read


def _refused(text: str, wanted: str, example: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"{text!r} is not {wanted}: write for example {example}")
