"""The agent side of ACP: the requests of an editor, over the sessions of this machine."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from acp import PROTOCOL_VERSION, RequestError
from acp.agent.connection import AgentSideConnection
from acp.interfaces import Agent as AcpAgent
from acp.interfaces import Client
from acp.schema import (
    AgentCapabilities,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResourceContentBlock,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionMode,
    SessionModeState,
    SetSessionModeResponse,
    TextContentBlock,
)
from acp.schema import StopReason as AcpStop

from evoclaw.api.acp.session import EditorSession, SessionParts
from evoclaw.api.acp.transport import MAX_MESSAGE_BYTES, AcpTransport
from evoclaw.api.stdio import open_stdio
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import RunFinished, StopReason
from evoclaw.core.version import VERSION
from evoclaw.governance.autonomy import Level

logger = logging.getLogger(__name__)

MODES = (
    (Level.SUPERVISED, "Ask", "Reads by itself, and asks before it writes or executes"),
    (Level.READ_ONLY, "Read only", "Only reads; calls that write or execute are denied"),
    (Level.FULL, "Do not ask", "Writes and executes without asking; rules and sandbox still apply"),
)
INVALID_PARAMS, FAILED = -32_602, -32_603
_STOPS: dict[StopReason, AcpStop] = {
    StopReason.COMPLETED: "end_turn",
    StopReason.MAX_ITERATIONS: "max_turn_requests",
    StopReason.CANCELLED: "cancelled",
}


class EditorAgent:
    """Answers the requests of one editor."""

    def __init__(
        self,
        parts: SessionParts,
        has_session: Callable[[str], Awaitable[bool]],
        level: Level,
    ) -> None:
        """Choose the parts.

        Args:
            parts: What sessions are built from.
            has_session: Whether a session is stored.
            level: The level of new sessions; with `READ_ONLY`, the editor can choose no other.
        """
        self._parts, self._has_session, self._level = parts, has_session, level
        self._client: Client | None = None
        self._sessions: dict[str, EditorSession] = {}

    def on_connect(self, conn: Client) -> None:
        """Use this connection for updates and permission requests."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> InitializeResponse:
        """Agree on the protocol version, and say what this agent can do."""
        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION) or PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=True,
                session_capabilities=SessionCapabilities(close=SessionCloseCapabilities()),
                # The text of a mentioned file is not the user's own words: it is read by a call.
                prompt_capabilities=PromptCapabilities(
                    image=False, audio=False, embedded_context=False
                ),
            ),
            agent_info=Implementation(name="evoclaw", title="EvoClaw", version=VERSION),
            auth_methods=[],
        )

    async def new_session(
        self, cwd: str, mcp_servers: Sequence[object] | None = None, **_: Any
    ) -> NewSessionResponse:
        """Open a new session whose workspace is `cwd`."""
        session = await self._open(secrets.token_hex(8), cwd, mcp_servers)
        return NewSessionResponse(session_id=session.id, modes=self._modes(session))

    async def load_session(
        self, cwd: str, session_id: str, mcp_servers: Sequence[object] | None = None, **_: Any
    ) -> LoadSessionResponse:
        """Open a stored session and show its history."""
        async with _reported():
            if not await self._has_session(session_id):
                raise _unknown_session(session_id)
            if (old := self._sessions.pop(session_id, None)) is not None:
                await old.close()
        session = await self._open(session_id, cwd, mcp_servers)
        async with _reported():
            await session.replay()
        return LoadSessionResponse(modes=self._modes(session))

    async def set_session_mode(
        self, session_id: str, mode_id: str, **_: Any
    ) -> SetSessionModeResponse:
        """Choose what the next prompts may do without asking."""
        session = self._session(session_id)
        allowed = [mode.id for mode in self._modes(session).available_modes]
        if mode_id not in allowed:
            problem = f"there is no mode {mode_id!r}; choose one of: {', '.join(allowed)}"
            raise RequestError(INVALID_PARAMS, problem)
        async with _reported():
            await session.change_level(Level(mode_id))
        return SetSessionModeResponse()

    async def prompt(self, session_id: str, prompt: Sequence[object], **_: Any) -> PromptResponse:
        """Run a prompt; its updates are sent before the response."""
        session = self._session(session_id)
        text = _prompt_text(prompt, session.workspace)
        async with _reported():
            end = await session.prompt(text)
        return PromptResponse(stop_reason=await _acp_stop(session, end))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Cancel the running prompt of a session."""
        if (session := self._sessions.get(session_id)) is not None:
            session.cancel()

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        """Cancel what runs in a session, and close its tools; it can be loaded again."""
        session = self._session(session_id)
        del self._sessions[session_id]
        async with _reported():
            await session.close()
        return CloseSessionResponse()

    async def close(self) -> None:
        """Cancel what runs, and close every session."""
        sessions, self._sessions = self._sessions, {}
        closed = await asyncio.gather(
            *(session.close() for session in sessions.values()), return_exceptions=True
        )
        for session_id, problem in zip(sessions, closed, strict=True):
            if problem is not None:
                logger.warning("session %s did not close in order: %r", session_id, problem)

    async def _open(
        self, session_id: str, cwd: str, mcp_servers: Sequence[object] | None
    ) -> EditorSession:
        workspace = _workspace(cwd)
        if mcp_servers:
            logger.warning(
                "%d MCP servers of the editor are not used; add them to evoclaw.toml, "
                "see `evoclaw mcp list`", len(mcp_servers),
            )  # fmt: skip
        assert self._client is not None, "requests come after the connection"
        session = EditorSession(self._parts, self._client, session_id, workspace, self._level)
        async with _reported():
            await session.open()
        self._sessions[session_id] = session
        return session

    def _session(self, session_id: str) -> EditorSession:
        if (found := self._sessions.get(session_id)) is None:
            raise _unknown_session(session_id)
        return found

    def _modes(self, session: EditorSession) -> SessionModeState:
        return SessionModeState(
            current_mode_id=session.level.value,
            available_modes=[
                SessionMode(id=level.value, name=name, description=description)
                for level, name, description in MODES
                if self._level is not Level.READ_ONLY or level is Level.READ_ONLY
            ],
        )


async def serve_acp(agent: EditorAgent) -> None:
    """Serve until the editor closes standard input, or until cancelled."""
    async with open_stdio("an editor", MAX_MESSAGE_BYTES) as pipes:
        # Not `acp.run_agent`, which cancels the tasks of prompts before their runs have ended.
        connection = AgentSideConnection(
            cast("AcpAgent", agent),
            AcpTransport(pipes),
            listening=False,
            use_unstable_protocol=True,  # for `session/close`
        )
        try:
            await connection.listen()
        finally:
            await agent.close()
            await connection.close()


@asynccontextmanager
async def _reported() -> AsyncGenerator[None]:
    """An error for the caller becomes an error of the protocol, with the same words."""
    try:
        yield
    except TimeoutError:
        raise RequestError(FAILED, "the running prompt did not end in time; try again") from None
    except (EvoClawError, OSError) as problem:
        raise RequestError(FAILED, str(problem)) from None


def _unknown_session(session_id: str) -> RequestError:
    return RequestError(
        INVALID_PARAMS, f"there is no session {session_id!r}; open one with session/new"
    )


def _workspace(cwd: str) -> Path:
    folder = Path(cwd)
    if not folder.is_absolute() or not folder.is_dir():
        raise RequestError(INVALID_PARAMS, f"cwd is not the absolute path of a folder: {cwd!r}")
    return folder.resolve()


def _prompt_text(prompt: Sequence[object], workspace: Path) -> str:
    parts: list[str] = []
    for block in prompt:
        match block:
            case TextContentBlock(text=text):
                parts.append(text)
            case ResourceContentBlock(uri=uri):
                parts.append(f" `{_mentioned(uri, workspace)}` ")
            case _:
                raise RequestError(
                    INVALID_PARAMS, "a prompt has texts and links to files, nothing else"
                )
    text = "".join(parts)
    if not text.strip():
        raise RequestError(INVALID_PARAMS, "the prompt is empty; write a message")
    return text


def _mentioned(uri: str, workspace: Path) -> str:
    """A file of the workspace by its relative path, as tools name it; else the URI itself."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return uri
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or not path.is_relative_to(workspace):
        return uri
    return str(path.relative_to(workspace))


async def _acp_stop(session: EditorSession, end: RunFinished | None) -> AcpStop:
    if end is None or end.stop is StopReason.ERROR:
        reason = "the run ended without a result" if end is None else end.reason or end.text
        raise RequestError(FAILED, reason)
    if end.stop not in _STOPS:
        await session.say(f"\n\n[The run stopped ({end.stop}): {end.reason}]")
    return _STOPS.get(end.stop, "end_turn")
