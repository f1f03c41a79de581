"""Faults are shown on uvloop, as the gateway runs on it."""

from __future__ import annotations

from tests.gateway.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
