"""Tending the runs while the store is away: tried again and again, said seldom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import pytest

from evoclaw.core.agent import Agent
from evoclaw.core.ports import Ports
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.store.databases.blob_cipher import BlobCipher
from evoclaw.store.databases.database import Dialect, StoreFull, T, Work
from evoclaw.store.databases.notices import Notice, Notices
from evoclaw.store.databases.steps import OnFailure, OnResult, Step
from evoclaw.store.sessions.sessions import Session, SessionStore
from tests.support.runs import QUICK


class FullDisk:
    """A database of which nothing can be had."""

    name, commits, busy_s = "nowhere", 0, 0.0
    dialect: Dialect = "sqlite"
    cipher = BlobCipher()

    def __init__(self, tries: int) -> None:
        self._left = tries
        self.tried = asyncio.Event()
        self.notices = Notices()

    async def write(self, work: Work[T], *, wait: bool = True, notices: Sequence[Notice] = ()) -> T:
        self._left -= 1
        if self._left <= 0:
            self.tried.set()
        raise StoreFull("here")

    async def apply(self, step: Step, *, notices: Sequence[Notice] = ()) -> Any:
        await self.flush()

    def defer(
        self,
        step: Step,
        *,
        notices: Sequence[Notice] = (),
        on_result: OnResult | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        raise StoreFull("here")

    def time(self) -> float:
        return 0.0

    async def flush(self) -> None:
        await self.write(lambda connection: None)

    async def read(self, work: Work[T], *, allow_stale: bool = False) -> T:
        return await self.write(work)

    async def announce(self, notices: Sequence[Notice]) -> None:
        self.notices.deliver(notices)

    def listening(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def close(self) -> None:
        pass


def equip(agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
    raise AssertionError("nothing is run")


async def test_the_supervisor_logs_a_full_disk_once_while_retrying(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = FullDisk(tries=40)
    talks = Conversations(SessionStore(disk), {}, equip)
    with caplog.at_level(logging.WARNING, "evoclaw.orchestrator.runs.supervisor"):
        async with asyncio.timeout(30), Runs(talks, settings=QUICK).serving():
            await disk.tried.wait()
    assert [one.getMessage() for one in caplog.records] == [
        f"run supervision failed: {StoreFull('here')}"
    ]
