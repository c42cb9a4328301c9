"""What a session's runs are given by whoever puts the house together, and what a session holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from evoclaw.core.agent import Agent
from evoclaw.core.messages import Message
from evoclaw.core.ports import Ports
from evoclaw.store.sessions.sessions import Session, SessionStore, StoredRun
from evoclaw.tools.notes import Todo


class Equip(Protocol):
    """Gives a session's runs their parts."""

    def __call__(self, agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
        """The provider, tools, rules and approver of a run.

        On whose behalf it runs is what the session says; of the principal given here only the
        agent counts, and the user where the session has no owner.

        Args:
            agent: Who answers, and with which model: a run may be begun with another one.
            session: Where, and whose it is.
            given: What the tools of this session are handed, by Protocol: `Todos`, `Person`,
                `Sessions`; and under `History` what was said before this run goes on.
        """
        ...


class Recall(Protocol):
    """Finds what is remembered that may matter for a run."""

    async def __call__(self, agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
        """What to put right before what the user says; nothing, most of the time.

        It is recorded with the run's beginning, so a run that is resumed does not ask again.
        """
        ...


async def nothing_recalled(agent: Agent, session: Session, run: StoredRun) -> Sequence[Message]:
    """The house remembers nothing."""
    return ()


class StoredTodos:
    """The todos of a session, on the disk."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store, self._session_id = store, session_id

    async def read(self) -> Sequence[Todo]:
        """All of them, in order."""
        blob = await self._store.todos(self._session_id)
        return () if blob is None else msgspec.json.decode(blob, type=tuple[Todo, ...])

    async def replace(self, todos: Sequence[Todo]) -> None:
        """Keep these instead of what was there."""
        await self._store.put_todos(self._session_id, msgspec.json.encode(todos))
