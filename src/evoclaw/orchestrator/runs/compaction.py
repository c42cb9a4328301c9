"""Compaction: continues a conversation in a new session, with its older turns as a summary.

The old session stays as it is: nothing is lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.agent import LoopSettings
from evoclaw.core.context import MAX_SUMMARY_TOKENS, summary_request
from evoclaw.core.errors import EvoClawError
from evoclaw.core.events import StopReason
from evoclaw.core.history import History
from evoclaw.core.labels import Principal
from evoclaw.core.messages import Message, SystemMessage, UserMessage
from evoclaw.core.window import summary_message
from evoclaw.orchestrator.runs.requests import RunRequest, SessionBusy, SessionNotFound
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.orchestrator.sessions.run_records import drop_incomplete_turn
from evoclaw.store.sessions import changes as session_changes

TRANSCRIPT_CHARS = (60_000, 12_000)
"""Characters of the older turns that a model is shown; fewer at the second attempt."""
CHARS_PER_TOKEN = 4


class CannotCompact(EvoClawError):
    """A session has nothing to summarise, or the model gave no summary."""


class CompactedSession(Struct, frozen=True):
    """A session that continues another one."""

    session_id: str
    """The new session."""
    from_session: str
    """The session that it continues."""
    run_id: str
    """The run that wrote the summary."""
    tokens_before: int
    """Of all messages, estimated."""
    tokens_after: int
    """Of the summary and the messages that were kept, estimated."""


async def compact_session(
    runs: Runs, conversations: Conversations, principal: Principal, session_id: str, model: str = ""
) -> CompactedSession:
    """Summarise the older turns of a session in a new one; raises `CannotCompact`.

    Args:
        runs: Starts the run that writes the summary: budgeted and audited like any other.
        conversations: The sessions of the principal's tenant.
        principal: On whose behalf.
        session_id: The session.
        model: Writes the summary; the agent's model if empty.
    """
    listed = await conversations.store.summary(session_id)
    if listed is None:
        raise SessionNotFound(session_id)
    if listed.last is not None and listed.last.is_open:
        raise SessionBusy(session_id, "has an unfinished run; wait for its end, or cancel it")
    session = listed.session
    numbered = await conversations.store.messages(session_id)
    messages = drop_incomplete_turn([message for _, message in numbered])
    system, older, recent = _split(messages)
    if not older:
        raise CannotCompact("there is nothing to summarise yet: only the last exchange is kept")
    run_id, summary = await _summarise(runs, principal, session.agent, model, older)
    shown = summary_message(summary, History(older).label)
    kept: list[Message] = [*system, shown, *recent]
    new = replace(session, id=secrets.token_hex(8))
    created = await session_changes.branch(conversations.store, new, kept)
    return CompactedSession(created.id, session_id, run_id, _tokens(messages), _tokens(kept))


def _split(
    messages: Sequence[Message],
) -> tuple[Sequence[Message], Sequence[Message], Sequence[Message]]:
    """The instructions, the older turns, and the last exchange."""
    system = [message for message in messages if isinstance(message, SystemMessage)]
    rest = [message for message in messages if not isinstance(message, SystemMessage)]
    asked = [index for index, message in enumerate(rest) if isinstance(message, UserMessage)]
    last = asked[-1] if asked else 0
    return system, rest[:last], rest[last:]


async def _summarise(
    runs: Runs, principal: Principal, agent: str, model: str, messages: Sequence[Message]
) -> tuple[str, str]:
    """The id of the run that summarised the messages, and its answer."""
    reason = ""
    for room in TRANSCRIPT_CHARS:
        request = RunRequest(
            messages=summary_request(messages, room),
            agent=agent,
            model=model,
            title="summary of a session",
            settings=LoopSettings(max_turns=1, max_tokens=MAX_SUMMARY_TOKENS),
            single=True,
        )
        view, _ = await runs.start(principal, request)
        ended = await runs.result(principal.tenant, view.run_id)
        if ended.stop is StopReason.COMPLETED and ended.text.strip():
            return view.run_id, ended.text.strip()
        reason = ended.reason or ended.text
    raise CannotCompact(f"the model gave no summary: {reason}")


def _tokens(messages: Sequence[Message]) -> int:
    return History(messages).size // CHARS_PER_TOKEN
