"""Sessions on this machine: conversations that go on, whose agents may begin others."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.ports import Approver, Ports
from evoclaw.tools.question import Person
from evoclaw.wiring.local import (
    box_executor,
    capabilities_at,
    choose_model,
    eyes,
    for_model,
    open_provider,
    policy,
)
from evoclaw.wiring.toolbox import open_toolbox, refilled

if TYPE_CHECKING:
    from evoclaw.governance.autonomy import Level
    from evoclaw.orchestrator.sessions import Conversations
    from evoclaw.store.sessions import Session

AGENT = "evoclaw"
"""Who answers when nobody else was defined."""


@asynccontextmanager
async def open_conversations(
    *,
    model: str | None,
    workspace: Path,
    level: Level,
    tools: Sequence[str] | None,
    approver: Callable[[str], Approver],
    person: Person | None,
    settings: LoopSettings,
    session: str,
    env: Mapping[str, str],
) -> AsyncGenerator[Conversations]:
    """The sessions of this machine, with one agent; its session is there when this returns."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.orchestrator.prompt import system_prompt
    from evoclaw.orchestrator.questions import Questions
    from evoclaw.orchestrator.sessions import Conversations
    from evoclaw.skills.disclosure import catalogue
    from evoclaw.store.sessions import SessionStore
    from evoclaw.wiring.oversight import guards

    name = await choose_model(model, env)
    capabilities = capabilities_at(level)
    agent = Agent(AGENT, name, capabilities=capabilities, settings=settings)
    rules = policy(level, capabilities, *guards(env, AGENT))
    async with AsyncExitStack() as stack:
        store = await SessionStore.open(default_data_folder(env) / "sessions.db")
        await stack.enter_async_context(store)
        provider = await stack.enter_async_context(open_provider(name, env))
        box = await stack.enter_async_context(
            open_toolbox(workspace, env, key=session, given=eyes(provider))
        )

        def equip(agent: Agent, session: Session, given: Mapping[type, object]) -> Ports:
            handed = dict(given)
            if person is None:
                handed.pop(Person)  # a question that nobody answers is not offered
            executor = box_executor(refilled(box, handed), capabilities, for_model(name, tools))
            return Ports(provider, executor, rules, approver(session.id))

        talks = Conversations(
            store,
            {AGENT: agent},
            equip,
            questions=Questions(store.questions, face=person),
            prompt=lambda _: system_prompt(workspace, catalogue(box.shelf.skills())),
        )
        await talks.open(AGENT, session_id=session)
        yield talks
