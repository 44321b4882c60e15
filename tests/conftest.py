"""A busy machine must not fail a property test: examples, and the making of them, take as long as they do.

And what every process of `-n` does before its first test is cheap.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# jsonschema makes a parser for IRIs when it is imported, a tenth of all imports; no schema of ours has an IRI
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Tests and modules stay: to look for garbage among them is a seventh of what collecting them costs."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
