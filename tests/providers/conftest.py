"""Shared by the tests of the providers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from evoclaw.providers.http import Http


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """A client that is patient enough for a busy machine."""
    async with Http(connect_timeout=10.0, read_timeout=20.0) as client:
        yield client
