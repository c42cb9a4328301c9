"""A front desk over real runs and a real store, and a channel whose people can be listened to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from evoclaw.core.agent import Agent
from evoclaw.core.ports import Ports
from evoclaw.core.redaction import Redactor
from evoclaw.executors.local import LocalExecutor
from evoclaw.governance.approvals import ApprovalSettings
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.channels.chat.approvals import ChatApprovals
from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from evoclaw.orchestrator.channels.chat.commands import ConversationCommands
from evoclaw.orchestrator.channels.chat.pairing import ChannelPairing
from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
from evoclaw.orchestrator.channels.dispatcher import Channel, ChannelDispatcher
from evoclaw.orchestrator.channels.factory import build_service
from evoclaw.orchestrator.channels.inbound import (
    ChannelAnswer,
    InboundMessage,
    MessageState,
    Undelivered,
)
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.orchestrator.notifications.answer_tokens import AnswerTokens
from evoclaw.orchestrator.people.approvals import CallApprovals
from evoclaw.orchestrator.people.questions import Questions
from evoclaw.orchestrator.runs.runs import Runs
from evoclaw.orchestrator.sessions.conversations import Conversations
from evoclaw.providers.scripted import Scripted, ScriptStep
from evoclaw.store import channels
from evoclaw.store.channels import ChannelStore
from evoclaw.store.databases.database import Database
from evoclaw.store.databases.migrations import open_database
from evoclaw.store.governance import approvals, tokens
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.runs import queue
from evoclaw.store.sessions import tables as session_tables
from evoclaw.store.sessions.sessions import Session, SessionStore
from evoclaw.tools.define import tool
from evoclaw.tools.question import question

PATIENCE = 20.0
"""Seconds; a machine may be slow."""
COOK = Agent("cook", "scripted/model", "You cook.", frozenset({"*"}))
BAKER = Agent("baker", "scripted/model", "You bake.", frozenset({"*"}))
SCHEMAS = tuple(part.SCHEMA for part in (session_tables, queue, approvals, channels, tokens))


class MemoryChannel:
    """A channel: letters are put in by the test, answers taken out."""

    replayable = False

    def __init__(self, name: str = "box") -> None:
        self.name = name
        self.answers: list[ChannelAnswer] = []
        self.tries = 0
        self.fails: Callable[[ChannelAnswer], Undelivered | None] = lambda _: None
        self._heard = asyncio.Condition()

    async def serve(self, handler: ChannelDispatcher) -> None:
        await asyncio.Event().wait()

    async def send(self, message: InboundMessage, answer: ChannelAnswer) -> None:
        async with self._heard:
            self.tries += 1
            self._heard.notify_all()
        if (problem := self.fails(answer)) is not None:
            raise problem
        async with self._heard:
            self.answers.append(answer)
            self._heard.notify_all()

    async def wait_for_answers(self, count: int = 1) -> list[ChannelAnswer]:
        """Wait for so many answers."""
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(lambda: len(self.answers) >= count)
        return self.answers

    async def wait_for_attempts(self, count: int) -> None:
        """Wait for so many attempts."""
        async with asyncio.timeout(PATIENCE), self._heard:
            await self._heard.wait_for(lambda: self.tries >= count)


class ChannelHarness:
    """What is built of a process."""

    def __init__(self, database: Database, model: Scripted, clock: Callable[[], float]) -> None:
        self.database, self.model, self.clock = database, model, clock
        self.ran: list[str] = []
        self.store = SessionStore(database)
        self.approvals = CallApprovals(ApprovalStore(database), ApprovalSettings(nobody="wait"))
        self.talks = Conversations(
            self.store,
            {agent.name: agent for agent in (COOK, BAKER)},
            self._equip,
            questions=Questions(self.store.questions, suspends_runs=True),
        )
        self.runs = Runs(self.talks, agent="cook")
        self.letters = ChannelStore(database, clock)
        self.asking = ChatApprovals(
            AnswerTokens(b"k" * 32), self.approvals, self.runs, Redactor(), clock
        )

    def dispatcher(
        self, channels: Sequence[Channel], patience: Mapping[str, float] | None = None
    ) -> ChannelDispatcher:
        """A front desk for these channels."""
        return ChannelDispatcher(
            self.letters,
            self.runs,
            self.talks,
            channels,
            agent="cook",
            delivery_timeouts_s=patience,
            commands=ConversationCommands(self.letters, self.runs, self.asking),
        )

    def chat(
        self, settings: ChannelSettings, secrets: Mapping[str, str], lease_s: float | None = None
    ) -> ChatChannel:
        """A chat channel with these settings; with a lease if others share the store."""
        pairing = ChannelPairing(settings.name, self.letters)
        service = build_service(settings, secrets)
        lease = None if lease_s is None else ReceiverLease(settings.name, self.letters, lease_s)
        return ChatChannel(settings, service, self.letters, self.asking, pairing, lease)

    def _equip(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        @tool("shell", timeout=60)
        async def boil(what: str) -> str:
            """Boil.

            Args:
                what: To boil.
            """
            self.ran.append(what)
            return f"{what} is boiled"

        executor = LocalExecutor((boil, question), given=given)
        return Ports(
            self.model,
            executor,
            Autonomy(Level.SUPERVISED),
            self.approvals.approver(session.id),
        )


@asynccontextmanager
async def open_channel_harness(
    folder: Path, *steps: ScriptStep, clock: Callable[[], float] | None = None
) -> AsyncGenerator[ChannelHarness]:
    """A process with an agent whose model plays these steps."""
    database = await open_database(folder / "evoclaw.db", SCHEMAS, durable=False)
    try:
        made = ChannelHarness(database, Scripted(*steps), clock or time.time)
        async with made.runs.serving():
            yield made
    finally:
        await database.close()


def inbound_message(
    text: str, id_: str = "m1", *, sender: str = "ann", conversation: str = ""
) -> InboundMessage:
    """A letter to the cook."""
    return InboundMessage("box", id_, sender, text, "local", f"box:{sender}", "cook", conversation)


def states(answers: Sequence[ChannelAnswer]) -> list[MessageState]:
    """What the answers say, in short."""
    return [answer.state for answer in answers]
