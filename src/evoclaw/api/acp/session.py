"""One session of an editor: keeps its tools open, and drives its prompts as runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from acp.helpers import update_agent_message_text, update_user_message_text
from acp.interfaces import Client
from msgspec import Struct

from evoclaw.api.acp.approver import EditorApprover
from evoclaw.api.acp.tool_calls import CallViews, PatchReader
from evoclaw.api.acp.updates import RunUpdates
from evoclaw.core.deadline import Deadline
from evoclaw.core.events import Record, RunFinished
from evoclaw.core.ports import Approver, Sink
from evoclaw.governance.autonomy import Level
from evoclaw.governance.stops import Stops, cancel_on_stop
from evoclaw.orchestrator.runs.requests import SessionBusy
from evoclaw.orchestrator.sessions.conversations import Conversations

CLOSE_TIMEOUT_S = 10.0
"""For a cancelled run to end when the editor leaves."""
MAX_REPLAYED_RUNS = 500
"""Of a session that is loaded, the newest."""


class SessionRequest(Struct, frozen=True):
    """A session to open."""

    id: str
    workspace: Path
    level: Level
    approver: Approver


SessionOpener: TypeAlias = Callable[[SessionRequest], AbstractAsyncContextManager[Conversations]]
"""Opens a session with its tools; it exists when this returns."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What sessions of editors are built from."""

    open: SessionOpener
    stops: Stops
    record: Callable[[str], AbstractContextManager[Sink]]
    """Opens the recording of a run."""
    read_patch: PatchReader
    max_seconds: float | None
    """How long a prompt may take."""


class EditorSession:
    """A session with its workspace and its level; it runs one prompt at a time."""

    def __init__(
        self, parts: SessionParts, client: Client, session_id: str, workspace: Path, level: Level
    ) -> None:
        """Create it; nothing is opened yet."""
        self._parts, self._client = parts, client
        self.id, self.workspace, self.level = session_id, workspace, level
        self._views = CallViews(workspace, parts.read_patch)
        self._host: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._conversations: Conversations | None = None
        self._deadline: Deadline | None = None
        """Of the running prompt; None between prompts."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self) -> Conversations:
        """The sessions of this machine with the tools of this one, opened once."""
        if self._conversations is not None:
            return self._conversations
        opened: asyncio.Future[Conversations] = asyncio.get_running_loop().create_future()
        # What a task enters it must leave: each request of a client is another task.
        self._closing = asyncio.Event()
        host = self._host = asyncio.create_task(self._keep_open(opened))
        await asyncio.wait([host, opened], return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            self._host = None
            host.result()
        self._conversations = opened.result()
        return self._conversations

    async def _keep_open(self, opened: asyncio.Future[Conversations]) -> None:
        approver = EditorApprover(self._client, self.id, self._views)
        request = SessionRequest(self.id, self.workspace, self.level, approver)
        async with self._parts.open(request) as conversations:
            opened.set_result(conversations)
            await self._closing.wait()

    async def change_level(self, level: Level) -> None:
        """Run the next prompts at another level."""
        if self._deadline is not None:
            raise SessionBusy(self.id, "is answering a prompt; change the mode when it has ended")
        if level is not self.level:
            await self.close()
            self.level = level

    async def prompt(self, text: str) -> RunFinished | None:
        """Send a message and show its run until it ends."""
        if self._deadline is not None:
            raise SessionBusy(self.id, "is answering another prompt; wait for it, or cancel it")
        deadline = self._deadline = Deadline(self._parts.max_seconds)
        self._idle.clear()
        try:
            async with cancel_on_stop(self._parts.stops, deadline.cancel):
                end = await self._run(text, deadline)
            if (stop := self._parts.stops.cancelling_stop()) is not None:
                await self.say(f"{stop.description}; see `evoclaw stop --list`")
            return end
        finally:
            self._deadline = None
            self._idle.set()

    async def _run(self, text: str, deadline: Deadline) -> RunFinished | None:
        conversations = await self.open()
        if await conversations.has_unfinished_run(self.id):
            await self.say("[Resuming the unfinished run of this session.]\n\n")
            end = await self._show(conversations.resume(self.id, deadline=deadline), deadline)
            if deadline.over:
                return end
        run_id = secrets.token_hex(16)
        with self._parts.record(run_id) as recording:
            records = conversations.send(
                self.id, text, run_id=run_id, sinks=[recording], deadline=deadline
            )
            return await self._show(records, deadline)

    async def _show(
        self, stream: AsyncGenerator[Record, None], deadline: Deadline
    ) -> RunFinished | None:
        updates, end, is_connected = RunUpdates(self._views), None, True
        async with aclosing(stream) as records:
            async for record in records:
                if isinstance(record.event, RunFinished):
                    end = record.event
                try:
                    for update in updates.of(record) if is_connected else ():
                        await self._client.session_update(session_id=self.id, update=update)
                except ConnectionError:
                    # The editor has disconnected: the run ends in order, and can be loaded again.
                    is_connected = False
                    deadline.cancel()
        return end

    async def say(self, text: str) -> None:
        """Show a text of EvoClaw itself."""
        await self._client.session_update(
            session_id=self.id, update=update_agent_message_text(text)
        )

    async def replay(self) -> None:
        """Show the messages, replies and calls of the session so far."""
        store = (await self.open()).store
        views = CallViews(self.workspace, self._parts.read_patch, live=False)
        newest_first = await store.runs(session_id=self.id, limit=MAX_REPLAYED_RUNS)
        for run in reversed(newest_first):
            await self._client.session_update(
                session_id=self.id, update=update_user_message_text(run.message)
            )
            await self._replay(await store.records(run.id), RunUpdates(views))

    async def _replay(self, records: Sequence[Record], updates: RunUpdates) -> None:
        for record in records:
            for update in updates.of(record):
                await self._client.session_update(session_id=self.id, update=update)

    def cancel(self) -> None:
        """Cancel the running prompt, if there is one."""
        if self._deadline is not None:
            self._deadline.cancel()

    async def close(self) -> None:
        """Cancel the running prompt, and close the tools with all their processes."""
        self.cancel()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._idle.wait()
        finally:
            self._closing.set()
            host, self._host, self._conversations = self._host, None, None
            if host is not None:
                await asyncio.wait([host])
                host.result()
