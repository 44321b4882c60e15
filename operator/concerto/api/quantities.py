"""Kubernetes quantities and durations as exact numbers.

Sources: the quantity grammar of k8s.io/apimachinery (``resource.Quantity``) and Go's ``time.ParseDuration``, as far as
Concerto's objects use them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache
from typing import Any

_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"^([+-]?(?:\d+(?:\.\d*)?|\.\d+))(?:([eE][+-]?\d+)|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?$")
_MAX_LETTERS, _MAX_QUOTED = 512, 64
"""Of a quantity or a duration. The API server writes quantities of its own kinds in some twenty letters, but a metrics
API answers any text. Texts that have been read are remembered, so that longer ones would fill the memory."""
_LARGEST = Decimal(2**63 - 1)
"""Where Kubernetes caps quantities."""
MAX_AMOUNT = 2**53
"""Cap of amounts that are added up: a thousand of them still fit into the 64 bits of a column."""
_DURATION = re.compile(r"(\d+(?:\.\d*)?)(ms|us|h|m|s)")
_DURATION_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_quantity(value: str | int | float) -> Decimal:
    """The exact value of a quantity such as ``500m``, ``1.5Gi``, ``2e3`` or a bare number.

    As in Kubernetes nothing is larger than 2^63 - 1, of either sign.

    Raises:
        ValueError: it is not a quantity; the message quotes it.
    """
    if isinstance(value, str) and len(value) > _MAX_LETTERS:
        raise _no_quantity(value)
    return _read_quantity(value)


@lru_cache(maxsize=4096)
def _read_quantity(value: str | int | float) -> Decimal:
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        raise _no_quantity(value)
    number, exponent, suffix = match.groups()
    if exponent and len(exponent.lstrip("eE+-0")) > 4:  # Decimal itself gives up on some of these
        if not Decimal(number) or exponent[1] == "-":
            return Decimal(0)
        return _LARGEST.copy_sign(Decimal(number))
    exact = Decimal(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    return max(-_LARGEST, min(exact, _LARGEST))


def _no_quantity(value: object) -> ValueError:
    return ValueError(f"{_quoted(value)} is not a quantity (examples: 500m, 2, 1.5Gi)")


def _quoted(value: object) -> str:
    """The value as an error quotes it: the beginning of a long one."""
    return f"{value[:_MAX_QUOTED]!r}…" if isinstance(value, str) and len(value) > _MAX_LETTERS else repr(value)


def counted(resource: str, amount: Decimal) -> int:
    """An amount in the unit that scheduling counts in: millicores for ``cpu``, whole units for all else, rounded up.

    It is capped, so that sums of amounts stay within 64 bits. No node has more than the cap.
    """
    cap = Decimal(MAX_AMOUNT)
    return int(max(-cap, min(amount * 1000 if resource == "cpu" else amount, cap)).to_integral_value(ROUND_CEILING))


def milli(value: str | int | float) -> int:
    """A quantity in thousandths, rounded up as Kubernetes does (``MilliValue``): ``0.5`` is 500."""
    return int((parse_quantity(value) * 1000).to_integral_value(ROUND_CEILING))


def whole(value: str | int | float) -> int:
    """A quantity in whole units (bytes, pods, devices), rounded up as Kubernetes does (``Value``)."""
    return int(parse_quantity(value).to_integral_value(ROUND_CEILING))


def resource_amount(resource: str, value: str | int | float) -> int:
    """A quantity of a resource, as `counted`."""
    return counted(resource, parse_quantity(value))


def number_of(raw: Mapping[str, Any], key: str, default: float) -> float:
    """The quantity at ``key`` as a float, or the default.

    Raises:
        ValueError: it is not a quantity.
    """
    return float(parse_quantity(raw[key])) if key in raw else default


def parse_duration(value: str) -> float:
    """Seconds of a duration such as ``500ms``, ``30s`` or ``1h30m``.

    Raises:
        ValueError: it is not a duration; the message quotes it.
    """
    if isinstance(value, str) and len(value) > _MAX_LETTERS:
        raise _no_duration(value)
    return _read_duration(value)


@lru_cache(maxsize=1024)
def _read_duration(value: str) -> float:
    parts = _DURATION.findall(value)
    if not parts or "".join(n + u for n, u in parts) != value:
        raise _no_duration(value)
    return sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)


def _no_duration(value: object) -> ValueError:
    return ValueError(f"{_quoted(value)} is not a duration (examples: 500ms, 30s, 1h30m)")
