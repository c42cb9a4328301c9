from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evoclaw.executors.processes import LocalProcesses
from tests.support.sandboxes import policy, sandboxed


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[LocalProcesses]:
    """In a warm sandbox."""
    async with sandboxed(policy(tmp_path, processes=800)) as found:
        yield found


@pytest_asyncio.fixture(params=["warm", "cold"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LocalProcesses]:
    """In a sandbox that is kept, and in one that is made for each command."""
    async with sandboxed(policy(tmp_path), warm=request.param == "warm") as found:
        yield found
