"""Dependencies of the runs of a session: the factory of their ports, recall, stored todos."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from evoclaw.core.agent import Agent
from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import Message
from evoclaw.core.ports import Ports
from evoclaw.store.sessions.sessions import Session, SessionStore, StoredRun
from evoclaw.tools.todos import Todo

PortsFactory: TypeAlias = Callable[[Agent, Session, Mapping[type, object]], Ports]
"""Builds the provider, tools, rules and approver of a session's run.

It gets the agent with the model of this run, the session, and the dependencies of the session's
tools by Protocol: `TodoList`, `UserPrompter`, `Sessions`; and under `History` the messages before
this run. The session decides on whose behalf the run acts: of the principal of the returned ports
only the agent counts, and the user where the session has no owner."""
Recall: TypeAlias = Callable[[Agent, Session, StoredRun], Awaitable[Sequence[Message]]]
"""Finds notes in the memory that may matter for a run: messages to put before the user's message,
mostly none. They are recorded at the start of the run, so a resumed run does not recall again."""


async def no_recall(agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
    """Recall nothing: there is no memory."""
    return ()


class GenomeSource(Protocol):
    """The genomes of agents."""

    async def current(self, agent: str, session: str = "") -> str:
        """The digest of the genome that a new session gets; empty for the configuration."""
        ...

    async def find(self, agent: str, digest: str) -> Genome:
        """The genome of this content."""
        ...


class ConfiguredGenomes:
    """Every agent is as configured."""

    async def current(self, agent: str, session: str = "") -> str:
        """Empty: the configuration."""
        return ""

    async def find(self, agent: str, digest: str) -> Genome:
        """The configuration."""
        return CONFIGURED


class StoredTodos:
    """The stored todos of a session."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store, self._session_id = store, session_id

    async def read(self) -> Sequence[Todo]:
        """All todos, in order."""
        blob = await self._store.todos(self._session_id)
        return () if blob is None else msgspec.json.decode(blob, type=tuple[Todo, ...])

    async def replace(self, todos: Sequence[Todo]) -> None:
        """Replace all todos."""
        await self._store.put_todos(self._session_id, msgspec.json.encode(todos))
