"""Every tool once through a real run: a session, its rules, a person who agrees, its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest
import pytest_asyncio

from evoclaw.core.events import (
    ApprovalAnswered,
    CallFinished,
    CallJudged,
    CallStarted,
    Event,
    Record,
    RunFinished,
    RunStarted,
    StopReason,
    ToolsChanged,
)
from evoclaw.core.messages import ErrorKind, ToolResult
from evoclaw.core.replay import Replay
from evoclaw.core.tools import Effect
from evoclaw.governance.autonomy import SHOW_PERMISSIONS, Level
from evoclaw.providers.scripted import Scripted, calls, says
from evoclaw.tools.sets import TOOL_NAMES
from tests.matrix.table import HELD, TABLE, TOOLS, changed, lacking, not_made
from tests.support.tool_environment import (
    ApproveAll,
    SharedToolServers,
    ToolTestbed,
    arguments_of,
    open_tool_servers,
    open_tool_testbed,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grounds(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[SharedToolServers]:
    async with open_tool_servers(tmp_path_factory.mktemp("runs"), ssh=False) as made:
        yield made


async def say(place: ToolTestbed, name: str) -> list[Record]:
    """Have the model of the session `main` ask for one call."""
    place.lead = Scripted(calls((name, arguments_of(name, place.grounds))), says("Done."))
    async with asyncio.timeout(60):
        return [record async for record in place.talks.send("main", f"Use {name}.")]


def of(records: list[Record], kind: type[Event]) -> list[Event]:
    return [record.event for record in records if isinstance(record.event, kind)]


def told(place: ToolTestbed) -> ToolResult:
    """What the model was told of its call."""
    last = place.lead.requests[1].messages[-1]
    assert isinstance(last, ToolResult)
    return last


@pytest.mark.parametrize("name", TOOL_NAMES)
async def test_a_supervised_run_uses_the_tool_and_records_every_step(
    grounds: SharedToolServers, name: str
) -> None:
    row, held, yes = TABLE[name], TOOLS[name].tool.permissions, ApproveAll()
    asks = TOOLS[name].tool.effect is Effect.WRITE and held != SHOW_PERMISSIONS
    async with open_tool_testbed(grounds, held, level=Level.SUPERVISED) as place:
        place.usable(name)
        place.approver = yes
        before = await place.observed_effects()
        records = await say(place, name)

        assert told(place).error is None, told(place).text
        assert lacking(told(place).text, row.says) == []
        after = await place.observed_effects()
        assert changed(before, after) == row.leaves and not_made(row, after) == []
        assert yes.asked == ([name] if asks else []), "a person says yes to what writes"
        assert _kinds(records) == [
            RunStarted,
            ToolsChanged,
            CallJudged,
            *([ApprovalAnswered] if asks else []),
            CallStarted,
            CallFinished,
            RunFinished,
        ]
        (started,) = of(records, CallStarted)
        assert isinstance(started, CallStarted)
        assert (started.name, started.arguments) == (name, arguments_of(name, grounds))
        assert of(records, CallFinished) == [CallFinished(told(place))]
        end = records[-1].event
        assert isinstance(end, RunFinished)
        assert (end.stop, end.text, end.tools_used) == (StopReason.COMPLETED, "Done.", (name,))
        stored = await place.store.records(records[0].run_id)
        assert _written(stored) == _written(records)
        assert _written(await _replayed(records)) == _written(records)


@pytest.mark.parametrize("name", TOOL_NAMES)
async def test_a_run_without_the_permission_is_not_offered_the_tool(
    grounds: SharedToolServers, name: str
) -> None:
    held = HELD - TOOLS[name].tool.permissions
    async with open_tool_testbed(grounds, held) as place:
        place.usable(name)
        before = await place.observed_effects()
        records = await say(place, name)

        offered = place.lead.requests[0].tools
        assert name not in offered and offered
        assert set(offered) == {
            one for one in TOOL_NAMES if TOOLS[one].tool.permissions <= held and _here(place, one)
        }
        assert told(place).error is ErrorKind.NOT_FOUND
        assert of(records, CallStarted) == [] == of(records, CallJudged)
        assert [one.reached for one in place.executors if one.reached] == []
        assert changed(before, await place.observed_effects()) == set()


async def test_only_the_browser_tool_may_be_unavailable(grounds: SharedToolServers) -> None:
    async with open_tool_testbed(grounds, HELD) as place:
        await say(place, "read")
        missing = set(TOOL_NAMES) - set(place.lead.requests[0].tools)
        assert missing == (set() if _here(place, "browser") else {"browser"})


def _here(place: ToolTestbed, name: str) -> bool:
    return name != "browser" or not isinstance(place.grounds.chromium, str)


def _kinds(records: list[Record]) -> list[type[Event]]:
    """What happened, but for what a model or a call said on the way."""
    kinds = (
        RunStarted,
        ToolsChanged,
        CallJudged,
        ApprovalAnswered,
        CallStarted,
        CallFinished,
        RunFinished,
    )
    return [type(record.event) for record in records if isinstance(record.event, kinds)]


async def _replayed(records: list[Record]) -> list[Record]:
    async with asyncio.timeout(30):
        return [record async for record in Replay(records).records()]


def _written(records: list[Record]) -> list[bytes]:
    # A set has no order of its own: two permissions may come in either.
    return [msgspec.json.encode(record, order="deterministic") for record in records]
