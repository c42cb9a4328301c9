"""What a run cannot do without is away: that is no outcome, the run is taken up again later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from evoclaw.core.agent import LoopSettings
from evoclaw.core.errors import RunSuspended
from evoclaw.core.events import CallFinished, Record, ReplyEvent, RunFinished, StopReason
from evoclaw.core.loop import run_loop
from evoclaw.core.messages import user
from evoclaw.core.ports import ALLOW, AllowAll, Approval, Ask, Ports, Progress, Request, Verdict
from evoclaw.core.run import Bus, recorded
from evoclaw.core.state import RunState, fold, new_run
from evoclaw.core.tools import Call, Effect
from evoclaw.providers.scripted import Scripted, calls, says
from tests.support.loop import Table, echo_table, tool

SETTINGS = LoopSettings()


class Away:
    """Rules that need what is away: for a reply, for a call, or to ask a person about either."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def admit(self, turn: int) -> Verdict:
        return self._verdict("a reply")

    async def judge(self, call: Call) -> Verdict:
        return self._verdict("a call")

    async def approve(self, call: Call, ask: Ask) -> Approval:
        raise RunSuspended("the store is away")

    def _verdict(self, about: str) -> Verdict:
        if self._where == about:
            raise RunSuspended("the store is away")
        return Ask("doubt", "may it?") if self._where == f"asking about {about}" else ALLOW


class Unsettled(Scripted):
    """A model that is only asked when something was stored, which cannot be."""

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        raise RunSuspended("the store is away")
        yield


async def stood_still(state: RunState, ports: Ports) -> list[Record]:
    """What was recorded of a run until it could not go on."""
    records: list[Record] = []
    with pytest.raises(RunSuspended):
        async for record in recorded(run_loop(state, ports, SETTINGS), Bus("run")):
            records.append(record)  # noqa: PERF401 - what came before the error is what counts
    return records


async def goes_on(records: list[Record]) -> None:
    """It ends as if nothing had been."""
    state = fold(records)
    replies = (calls(("echo", {"text": "a"})), says("done"))[len(state.history) > 1 :]
    ports = Ports(Scripted(*replies), echo_table(), AllowAll())
    events = [event async for event in run_loop(state, ports, SETTINGS)]
    assert isinstance(events[-1], RunFinished)
    assert (events[-1].stop, events[-1].text) == (StopReason.COMPLETED, "done")


@pytest.mark.parametrize(
    "where", ["a reply", "a call", "asking about a reply", "asking about a call"]
)
async def test_an_unavailable_policy_suspends_the_run(where: str) -> None:
    model, away = Scripted(calls(("echo", {"text": "a"})), says("never")), Away(where)
    ports = Ports(model, echo_table(), away, approver=away)
    records = await stood_still(new_run([user("go")], "run"), ports)
    assert not any(isinstance(record.event, RunFinished) for record in records)
    await goes_on(records)


async def test_an_unavailable_provider_suspends_the_run() -> None:
    ports = Ports(Unsettled(), echo_table(), AllowAll())
    await goes_on(await stood_still(new_run([user("go")], "run"), ports))


@pytest.mark.parametrize("side_by_side", [1, 3])
async def test_a_call_suspended_by_the_store_gets_no_result_and_is_resumed(
    side_by_side: int,
) -> None:
    async def away(call: Call, progress: Progress) -> str:
        if call.arguments["text"] == "a":
            raise RunSuspended("the store is away")
        return "done before"

    asked = [("echo", {"text": text}) for text in "abc"[:side_by_side]]
    table = Table((tool("echo", effect=Effect.READ, resources=()), away))
    ports = Ports(Scripted(calls(*asked)), table, AllowAll())
    async with asyncio.timeout(20):
        records = await stood_still(new_run([user("go")], "run"), ports)
    ended = [one.event.result for one in records if isinstance(one.event, CallFinished)]
    assert not any(one.error for one in ended)
    again = echo_table()
    ports = Ports(Scripted(says("done")), again, AllowAll())
    events = [event async for event in run_loop(fold(records), ports, SETTINGS)]
    assert isinstance(events[-1], RunFinished)
    assert events[-1].stop is StopReason.COMPLETED
    assert again.started[0].resumed
