"""The commands of conversations: a new session, stop, status, and answers to approvals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct

from evoclaw.orchestrator.channels.chat.approvals import TYPED_ANSWER, ChatApprovals
from evoclaw.orchestrator.channels.chat.matrix import ENCRYPTED_TEXT
from evoclaw.orchestrator.channels.inbound import InboundMessage, MessageState
from evoclaw.orchestrator.runs.requests import RunStatus
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.store.channels import ChannelStore, StoredInboundMessage

HELP_TEXT = (
    "Write to me, and I answer here.\n"
    "/new starts a new session\n"
    "/stop cancels what I am doing\n"
    "/status says what I am doing, and asks again for approvals"
)
ANSWER_COMMAND = "answer"
_ALIASES: Mapping[str, str] = {"start": "help", ENCRYPTED_TEXT[1:]: "encrypted"}
_NAMES = frozenset({"new", "stop", "status", "help", *_ALIASES})
_COMMAND = re.compile(r"[/!]([a-z]+)(?:@\w+)?", re.IGNORECASE)
_OPEN = (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.QUEUED)


def command_of(text: str) -> str:
    """The command that a message is, by its first line; empty if it is for the agent."""
    first = text.strip().partition("\n")[0].strip()
    if TYPED_ANSWER.fullmatch(first):
        return ANSWER_COMMAND
    match = _COMMAND.fullmatch(first)
    name = "" if match is None else match[1].lower()
    return _ALIASES.get(name, name) if name in _NAMES else ""


class CommandResult(Struct, frozen=True):
    """What to tell the sender of a command."""

    text: str
    state: MessageState = MessageState.ANSWER
    run_id: str = ""
    """The run that waits for an approval, which is asked for again."""


class ConversationCommands:
    """Runs commands; each may be run again after a crash, with the same result."""

    def __init__(self, store: ChannelStore, runs: Runs, approvals: ChatApprovals) -> None:
        self._store, self._runs, self._approvals = store, runs, approvals

    async def run(self, stored: StoredInboundMessage, message: InboundMessage) -> CommandResult:
        """Run the command that a message is."""
        match message.command:
            case "new":
                return await self._new(stored, message)
            case "stop":
                return await self._stop(stored, message)
            case "status":
                return await self._status(stored, message)
            case "answer":
                return CommandResult(await self._approvals.answer(message))
            case "encrypted":
                return CommandResult(
                    "I cannot read encrypted messages. Invite me to a room without encryption."
                )
            case _:
                return CommandResult(HELP_TEXT)

    async def _new(self, stored: StoredInboundMessage, message: InboundMessage) -> CommandResult:
        # The same session when the command is run again: messages may have come since.
        source = msgspec.json.encode([stored.channel, stored.sender, stored.id])
        session_id = sha256(source).hexdigest()[:16]
        await self._store.move_conversation(stored, message.conversation_key, session_id)
        return CommandResult("A new session starts with your next message.")

    async def _stop(self, stored: StoredInboundMessage, message: InboundMessage) -> CommandResult:
        stopped = 0
        for state in _OPEN:
            for view in await self._runs.list(
                message.tenant, session_id=stored.session_id, state=state
            ):
                stopped += await self._runs.cancel(message.tenant, view.run_id)
        if not stopped:
            return CommandResult("Nothing runs here.")
        return CommandResult(f"Stopped {stopped} run{'' if stopped == 1 else 's'}.")

    async def _status(self, stored: StoredInboundMessage, message: InboundMessage) -> CommandResult:
        found = {
            state: await self._runs.list(
                message.tenant, session_id=stored.session_id, state=state, limit=100
            )
            for state in _OPEN
        }
        lines = [f"{len(views)} {state}" for state, views in found.items() if views]
        if not lines:
            return CommandResult("Nothing runs here. Write to me to start.")
        text = f"Runs of this session: {', '.join(lines)}."
        waiting = found[RunStatus.WAITING]
        if waiting:
            return CommandResult(
                f"{text} {waiting[0].reason}".strip(), MessageState.WAITING, waiting[0].run_id
            )
        return CommandResult(text)
