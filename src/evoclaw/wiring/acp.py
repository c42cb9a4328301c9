"""Builds the sessions that `evoclaw acp` serves to an editor."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

from msgspec import Struct

from evoclaw.governance.autonomy import Level

if TYPE_CHECKING:
    from evoclaw.api.acp.session import SessionRequest
    from evoclaw.api.acp.tool_calls import PatchedPart
    from evoclaw.orchestrator.sessions.conversations import Conversations
    from evoclaw.store.sessions.recordings import Recording


class AcpOptions(Struct, frozen=True):
    """What the sessions of an editor use."""

    model: str | None = None
    level: Level = Level.SUPERVISED
    tools: tuple[str, ...] | None = None
    """Offer only these tools; None is all."""


async def acp_over_stdio(options: AcpOptions, env: Mapping[str, str]) -> None:
    """Serve until the editor closes standard input."""
    from evoclaw.api.acp.agent import EditorAgent, serve_acp
    from evoclaw.api.acp.session import SessionParts
    from evoclaw.orchestrator.agents.definitions import DEFAULT_AGENT
    from evoclaw.wiring.local_sessions import open_conversations
    from evoclaw.wiring.oversight import open_approvals, stops_for
    from evoclaw.wiring.settings import loop_settings
    from evoclaw.wiring.store import open_sessions

    settings = loop_settings(env)

    @asynccontextmanager
    async def open_session(request: SessionRequest) -> AsyncGenerator[Conversations]:
        async with (
            open_approvals(env, face=request.approver) as approvals,
            open_conversations(
                model=options.model,
                workspace=request.workspace,
                level=request.level,
                tools=options.tools,
                approver=approvals.approver,
                person=None,
                settings=settings,
                session=request.id,
                attended=True,
                env=env,
            ) as conversations,
        ):
            yield conversations

    async def has_session(session_id: str) -> bool:
        async with open_sessions(env) as store:
            return await store.session(session_id) is not None

    parts = SessionParts(
        open_session,
        stops_for(env, DEFAULT_AGENT),
        lambda run_id: closing(_new_recording(run_id, env)),
        patched_parts,
        settings.max_seconds,
    )
    await serve_acp(EditorAgent(parts, has_session, options.level))


def patched_parts(patch: str) -> Sequence[PatchedPart]:
    """The parts of files that a patch replaces; nothing if it is not valid."""
    from evoclaw.api.acp.tool_calls import PatchedPart
    from evoclaw.core.errors import ToolFailure
    from evoclaw.tools.patch.apply_patch import parse_patch
    from evoclaw.tools.patch.hunks import Action

    try:
        changes = parse_patch(patch)
    except ToolFailure:
        return ()
    return [
        PatchedPart(
            change.target or change.path,
            None if change.action is Action.ADD else hunk.old.decode(),
            hunk.new.decode(),
        )
        for change in changes
        for hunk in change.hunks
    ]


def _new_recording(run_id: str, env: Mapping[str, str]) -> Recording:
    """Beside those of `evoclaw run`, so that `evoclaw undo` and `evoclaw replay` find it."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.store.sessions.recordings import Recording
    from evoclaw.wiring.record_key import record_cipher

    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{run_id[:8]}.jsonl"
    return Recording(default_data_folder(env) / "runs" / name, cipher=record_cipher(env))
