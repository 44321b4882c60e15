"""The order of resourceVersions: those of one kind are comparable numbers (KEP-5504)."""

from __future__ import annotations


def not_newer(version: str, known: str) -> bool:
    """Whether a resourceVersion is not after the known one; False where one of the two is no number."""
    return version.isdigit() and known.isdigit() and int(version) <= int(known)
