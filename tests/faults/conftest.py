"""Every fault against both brokers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.process_fleet import ProcessFleet, open_process_fleet


@pytest.fixture(name="engine", params=["nats", "mosquitto"])
def _engine(request: pytest.FixtureRequest) -> str:
    if request.param == "mosquitto" and not shutil.which("mosquitto", path="/usr/sbin:/usr/bin"):
        pytest.skip("there is no mosquitto on this machine: apt install mosquitto")
    return request.param


@pytest_asyncio.fixture(name="here")
async def _here(engine: str, tmp_path: Path) -> AsyncIterator[ProcessFleet]:
    async with open_process_fleet(tmp_path, engine) as found:
        yield found
