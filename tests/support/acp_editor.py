"""An editor: the SDK's own client, connected to a real `evoclaw acp`."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.support.command_line import Shell

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.schema import PermissionOption, RequestPermissionResponse, ToolCallUpdate

WAIT_S = 120


@dataclass
class Editor:
    """What an editor is shown, and what its user answers."""

    answers: list[str] = field(default_factory=list[str])
    """The kinds of the options that the user chooses, one for each request."""
    updates: list[Any] = field(default_factory=list[Any])
    asked: list[tuple[Any, list[PermissionOption]]] = field(
        default_factory=list["tuple[Any, list[PermissionOption]]"]
    )
    """The calls that the user was asked about, and the options."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        self.asked.append((tool_call, options))
        self.changed.set()
        if not self.answers:
            await asyncio.Event().wait()
        kind = self.answers.pop(0)
        if kind == "cancelled":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = next(option for option in options if option.kind == kind)
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait for what the editor is shown or asked; `connected` bounds it."""
        while not done():
            self.changed.clear()
            await self.changed.wait()

    def on_connect(self, conn: Any) -> None:
        pass

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.of(kind))

    def ends(self) -> list[str]:
        """How the calls ended, in their order."""
        ended = ("completed", "failed")
        return [one.status for one in self.of("tool_call_update") if one.status in ended]


@dataclass
class Connected:
    """A process that serves an editor."""

    process: asyncio.subprocess.Process
    agent: ClientSideConnection
    editor: Editor

    async def open(self, cwd: Path) -> str:
        """Initialize and open a session."""
        await self.agent.initialize(protocol_version=1)
        return (await self.agent.new_session(cwd=str(cwd), mcp_servers=[])).session_id

    async def prompt(self, session_id: str, text: str) -> str:
        """Send a prompt; return why its turn stopped."""
        from acp.helpers import text_block

        done = await self.agent.prompt(session_id=session_id, prompt=[text_block(text)])
        return done.stop_reason


@asynccontextmanager
async def connected(
    typing: Shell, *arguments: str, answers: Sequence[str] = ()
) -> AsyncGenerator[Connected]:
    """A new `evoclaw acp`, which must end by itself, quietly, when the editor leaves."""
    from acp import connect_to_agent

    editor = Editor(list(answers))
    process = await typing.start("acp", *arguments, stdin=PIPE)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    try:
        async with asyncio.timeout(WAIT_S):
            connection = connect_to_agent(cast("Any", editor), process.stdin, process.stdout)
            yield Connected(process, connection, editor)
            process.stdin.close()
            errors = (await process.stderr.read()).decode()
            assert await process.wait() == 0, errors
            assert "Traceback" not in errors, errors
            await connection.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
