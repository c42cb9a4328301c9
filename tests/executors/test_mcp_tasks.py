"""Tools of MCP servers that run as tasks, and servers that ask the user during a call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.tools import Call
from evoclaw.executors.mcp.elicitation import AskPerson, PersonAnswer, PersonQuestion
from evoclaw.executors.mcp.executor import McpExecutor
from evoclaw.executors.mcp.offers import McpServer, NoPins
from evoclaw.executors.mcp.pins import PinFile
from evoclaw.executors.mcp.servers import McpServers
from evoclaw.tools.question import ScriptedUser
from evoclaw.wiring.mcp_connections import attended
from tests.support import mcp_features
from tests.support.mcp_servers import command
from tests.support.waiting import until

pytestmark = pytest.mark.process
VERSIONS = pytest.mark.parametrize("kind", ["tasks", "modern"])
"""A server of 2025-11-25, and one of 2026-07-28."""


@asynccontextmanager
async def server(program: tuple[str, ...]) -> AsyncGenerator[McpExecutor]:
    async with (
        asyncio.timeout(60),
        McpExecutor(McpServer("x", command=program), NoPins()) as executor,
    ):
        assert not executor.problem
        yield executor


def features() -> tuple[str, ...]:
    return (sys.executable, str(mcp_features.__file__))


def _features(_: Path) -> tuple[str, ...]:
    return features()


async def ask(
    executor: McpExecutor,
    name: str,
    *,
    person: AskPerson | None = None,
    notes: list[str] | None = None,
    within: float = 30.0,
) -> str:
    found = next(tool for tool in executor.tools() if tool.name == f"x__{name}")
    call = Call("c1", found, {}, "run.1.0.1", within)
    seen = [] if notes is None else notes
    return (await executor.execute(call, seen.append, person)).text


class Person:
    """Answers in order; remembers what was asked."""

    def __init__(self, *answers: str) -> None:
        self._answers = iter(answers)
        self.asked: list[PersonQuestion] = []

    async def __call__(self, question: PersonQuestion) -> PersonAnswer | None:
        self.asked.append(question)
        given = next(self._answers, None)
        if given is None:
            return None
        found = next((option for option in question.options if option.startswith(given)), "")
        return PersonAnswer((found,)) if found else PersonAnswer(text=given)


@VERSIONS
async def test_a_tool_that_requires_a_task_gives_its_result(kind: str, tmp_path: Path) -> None:
    notes: list[str] = []
    async with server(command(kind, tmp_path)) as executor:
        text = await ask(executor, "work", notes=notes)

    assert "work is done" in text
    assert "poll 3\n" in notes


async def test_a_tool_that_may_be_a_task_is_called_without_one(tmp_path: Path) -> None:
    async with server(command("tasks", tmp_path)) as executor:
        assert await ask(executor, "plain") == "without a task"


@VERSIONS
async def test_a_task_that_fails_is_a_failed_call(kind: str, tmp_path: Path) -> None:
    async with server(command(kind, tmp_path)) as executor:
        with pytest.raises(ToolFailure) as failed:
            await ask(executor, "break")

    assert failed.value.kind is ErrorKind.EXECUTION_FAILED
    assert ("out of paper" if kind == "modern" else "is done") in failed.value.message


@VERSIONS
async def test_a_cancelled_call_cancels_its_task(kind: str, tmp_path: Path) -> None:
    notes: list[str] = []
    async with server(command(kind, tmp_path)) as executor:
        calling = asyncio.create_task(ask(executor, "hang", notes=notes))
        await until(lambda: "poll 2\n" in notes)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        cancelled = (tmp_path / "cancelled").read_text()

    assert cancelled == "task-of-hang"


@VERSIONS
async def test_a_task_that_takes_too_long_is_cancelled(kind: str, tmp_path: Path) -> None:
    async with server(command(kind, tmp_path)) as executor:
        with pytest.raises(ToolFailure) as failed:
            await ask(executor, "hang", within=0.5)
        cancelled = (tmp_path / "cancelled").read_text()

    assert failed.value.kind is ErrorKind.TIMEOUT and cancelled == "task-of-hang"


async def test_a_task_can_ask_the_user(tmp_path: Path) -> None:
    person = Person("large", "12")
    async with server(command("modern", tmp_path)) as executor:
        text = await ask(executor, "ask", person=person)

    assert '"action": "accept"' in text and '"size": 12' in text
    assert "How big?" in person.asked[0].text
    assert "must be of the type integer" in person.asked[1].text


ProgramIn: TypeAlias = Callable[[Path], tuple[str, ...]]
"""How to start a program, given a folder."""
ASKING = pytest.mark.parametrize(
    ("program", "tool"),
    [(partial(command, "plain"), "elicit"), (_features, "reserve")],
    ids=["2025-11-25", "2026-07-28"],
)
"""Within the call, or with an unfinished result."""


@ASKING
async def test_a_server_asks_the_user_during_a_call(
    tmp_path: Path, program: ProgramIn, tool: str
) -> None:
    person = Person("2", "Use the default", "yes")
    notes: list[str] = []
    async with server(program(tmp_path)) as executor:
        text = await ask(executor, tool, person=person, notes=notes)

    assert "accept" in text and "2" in text and "Ada" in text and "true" in text.lower()
    first, second, third = person.asked
    assert "The MCP server 'x' asks" in first.text and "How many people" in first.text
    assert second.options == ("Use the default: Ada", "Decline")
    assert third.options == ("yes", "no", "Use the default: False", "Decline")
    assert [question.id for question in person.asked] == [f"run.1.0.mcp{n}" for n in (1, 2, 3)]
    assert any("waits for the answer" in note for note in notes)


@ASKING
async def test_a_question_is_declined_by_the_user_and_cancelled_without_one(
    tmp_path: Path, program: ProgramIn, tool: str
) -> None:
    async with server(program(tmp_path)) as executor:
        texts = [
            await ask(executor, tool, person=Person("2", "Decline")),
            await ask(executor, tool, person=Person()),
            await ask(executor, tool),
        ]

    for text, action in zip(texts, ("decline", "decline", "cancel"), strict=True):
        assert action in text and "Ada" not in text


async def test_the_clock_of_a_call_stops_while_the_user_is_asked() -> None:
    async def slow(question: PersonQuestion) -> PersonAnswer | None:
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(1.0, later.set)
        await later.wait()
        text = "3" if "How many" in question.text else ""
        return PersonAnswer(() if text else (question.options[-2],), text)

    async with server(features()) as executor:
        # Three answers take longer than the call may.
        text = await ask(executor, "reserve", person=slow, within=2.0)

    assert text.startswith("accept")


async def test_the_user_of_a_run_is_asked_as_by_the_question_tool(tmp_path: Path) -> None:
    user = ScriptedUser("2", "Use the default: Ada", "yes")
    pins = PinFile(tmp_path / "pins.json", trust_first=True)
    async with (
        asyncio.timeout(60),
        McpServers([McpServer("x", command=command("plain", tmp_path))], pins) as servers,
    ):
        executor = attended(servers, user)
        tool = next(tool for tool in executor.tools() if tool.name == "x__elicit")
        result = await executor.execute(Call("c1", tool, {}, "run.1.0.1", 30.0), lambda text: None)

    assert '"seats": 2' in result.text and '"outside": true' in result.text
    assert [question.id for question in user.asked] == [f"run.1.0.mcp{n}" for n in (1, 2, 3)]


async def test_a_question_is_declined_if_it_may_belong_to_another_call(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()
    release = asyncio.Event()

    async def first(question: PersonQuestion) -> PersonAnswer | None:
        asked.set()
        await release.wait()
        return None

    other = Person("2", "Use the default", "yes")
    async with server(command("plain", tmp_path)) as executor:
        waiting = asyncio.create_task(ask(executor, "elicit", person=first))
        await asked.wait()
        text = await ask(executor, "elicit", person=other)
        release.set()
        await waiting

    assert "decline" in text and other.asked == []
