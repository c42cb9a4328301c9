"""What the tools of a run can do with sessions: list, read, start and message them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec.structs import replace

from evoclaw.core.agent import Agent, narrowed
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import Record, RunFinished, StopReason
from evoclaw.core.labels import Label
from evoclaw.core.messages import ErrorKind, Message, Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.core.tools import Call
from evoclaw.core.wording import tool_not_found
from evoclaw.orchestrator.cleaning import one_line, quoted
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.sessions.subruns import (
    ALONE,
    Child,
    Hold,
    Key,
    Limits,
    LiveRun,
    run_id_of,
)
from evoclaw.store.runs.queue import adopt
from evoclaw.store.sessions.sessions import Listed, Session, SessionStore, Spent, StoredRun
from evoclaw.tools import sessions as session_tools
from evoclaw.tools.sessions import Brief, Said, State, Told

STARTERS = frozenset({session_tools.task.name, session_tools.sessions_spawn.name})
"""The tools that start sub-runs."""
ABOUT_SESSIONS = STARTERS | {
    session_tools.sessions_send.name,
    session_tools.sessions_history.name,
    session_tools.session_status.name,
}
"""The tools whose results contain messages of a session."""
SHARE = 0.95
"""The part of its parent's time that a sub-run gets: it ends first, so the parent can report."""
ABOUT = 120
"""Longest description of an agent in a list."""


class Host(Protocol):
    """Prepares and drives the runs of a tenant: `Conversations`."""

    store: SessionStore
    agents: Mapping[str, Agent]
    edges: Callable[[], Sequence[Member]]
    limits: Limits
    children: dict[Key, Child]
    running: dict[Key, LiveRun]

    def agent(self, session: Session) -> Agent:
        """The agent of a session."""
        ...

    async def prepare(
        self,
        session: Session,
        stored: StoredRun,
        deadline: Deadline,
        above: LiveRun | None,
        brief: Brief | None,
        hold: Hold = ALONE,
    ) -> LiveRun:
        """Prepare a run."""
        ...

    def drive(self, run: LiveRun) -> AsyncGenerator[Record, None]:
        """Drive a run and yield its records."""
        ...


class Delegates:
    """The sessions as one run sees them: those of its tenant and owner."""

    def __init__(self, host: Host, run: LiveRun) -> None:
        self._host, self._run, self._store = host, run, host.store

    async def start(self, call: Call, brief: Brief, *, wait: bool) -> Told:
        """Start a session with a sub-run, and wait for its answer if `wait` is set."""
        parent, agent = self._run, self._agent(brief.agent)
        if parent.session.depth >= self._host.limits.depth:
            text = "Error: Sub-agents may not go any deeper here. Do it yourself."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        await self._refuse_circle(agent.name)
        session = await self._store.create(
            Session(
                _derived("session", call)[:16],
                agent.name,
                parent.session.owner,
                brief.title,
                parent.session.id,
                parent.session.depth + 1,
                narrowed(agent.capabilities, parent.capabilities),
                self._narrowed_tools(brief.tools),
            )
        )
        return await self._go(call, session, brief, wait=wait)

    async def send(self, call: Call, session_id: str, message: str) -> Told:
        """Send a message to a session that this run started, and wait for the answer."""
        listed = await self._visible(session_id)
        if session_id == self._run.session.id or not await self._is_below(listed.session):
            text = f"Error: You did not begin session {session_id!r}; you may only read it."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        last, run_id = listed.last, self._run_id(call)
        if last is not None and last.is_open and last.id != run_id:
            if self._child_of(session_id) is not None:
                text = "Error: It is still answering. Wait for it with session_status, then send."
                raise ToolFailure(ErrorKind.CONFLICT, text)
            await self._wait_for(self._launch(call, listed.session, last, None, wait=True))
            now = await self._told(await self._visible(session_id))
            if now.state != "ended":
                return now
        return await self._go(call, listed.session, Brief(message), wait=True)

    async def list(self, *, agent: str, state: State | None) -> Sequence[Told]:
        """The sessions, newest first; a sub-run sees only those below its own."""
        own = self._run.session
        within = own.id if own.depth else ""
        found = await self._store.sessions(own.owner, within=within, agent=agent)
        summaries = [self._figures(listed) for listed in found]
        return [summary for summary in summaries if state in (None, summary.state)]

    async def history(self, session_id: str, start: int | None, limit: int) -> Sequence[Said]:
        """Messages from number `start` on, or the last `limit` ones."""
        listed = await self._visible(session_id)
        first = max(0, listed.messages - limit) if start is None else start
        found = await self._store.messages(session_id, first, limit)
        return [Said(number, *_spoken(message)) for number, message in found]

    async def status(self, session_id: str, seconds: float) -> Told:
        """The status of a session, after waiting up to `seconds` for its run; empty is this one."""
        listed = await self._visible(session_id or self._run.session.id)
        child = self._child_of(listed.session.id)
        if child is not None and seconds:
            await asyncio.wait([child.task], timeout=seconds)
            listed = await self._visible(listed.session.id)
        return await self._told(listed)

    async def agents(self) -> Sequence[session_tools.Listed]:
        """The agents that can be asked: those defined here, and the edges of the fleet."""
        local = [
            session_tools.Listed(
                name, "local", session_tools.task.name, about=one_line(agent.prompt, ABOUT)
            )
            for name, agent in sorted(self._host.agents.items())
        ]
        edges = [
            session_tools.Listed(
                member.agent_id,
                "edge",
                "edge_call",
                member.online,
                quoted(member.summary) if member.summary else "",
                tuple(tool.name for tool in member.tools),
            )
            for member in self._host.edges()
        ]
        return [*local, *edges]

    async def take_up(self) -> None:
        """Resume the background sub-runs of an interrupted run that is resumed."""
        for stored in await self._store.left_behind(self._run.stored.id):
            session = await self._store.session(stored.session_id)
            if session is not None and self._key(stored.id) not in self._host.children:
                self._launch(None, session, stored, None, wait=False)

    async def _go(self, call: Call, session: Session, brief: Brief, *, wait: bool) -> Told:
        """Start a sub-run, or join the one that this call started before."""
        run_id = self._run_id(call)
        stored = await self._store.run(run_id)
        stored = stored or await self._begin(run_id, session, brief, wait, call.context.label)
        if stored.is_open:
            child = self._host.children.get(self._key(run_id))
            child = child or self._launch(call, session, stored, brief, wait=wait)
            if wait:
                await self._wait_for(child)
        return await self._told(await self._visible(session.id))

    async def _begin(
        self, run_id: str, session: Session, brief: Brief, wait: bool, label: Label
    ) -> StoredRun:
        self._make_room()
        parent = self._run.stored
        self._run.family.under_way += 1  # reserve the slot while the run is being stored
        try:
            return await self._store.begin(
                run_id,
                session.id,
                brief.prompt,
                parent_run=parent.id,
                root_run=parent.root_run,
                background=not wait,
                label=label,
            )
        finally:
            self._run.family.under_way -= 1

    def _make_room(self) -> None:
        family = self._run.family
        if family.under_way >= family.limits.at_once:
            text = (
                f"Not executed: {family.under_way} sub-agents are at work already. "
                "Wait for one to end, then ask again."
            )
            raise ToolFailure(ErrorKind.QUEUE_FULL, text)
        if self._run.budget.turns_left <= self._run.session.depth + 1:
            text = "Error: The budget has no turns left for a sub-agent. Answer with what you have."
            raise ToolFailure(ErrorKind.EXECUTION_FAILED, text)

    def _launch(
        self,
        call: Call | None,
        session: Session,
        stored: StoredRun,
        brief: Brief | None,
        *,
        wait: bool,
    ) -> Child:
        parent, host = self._run, self._host
        limits = [parent.deadline.left * SHARE, host.agent(session).settings.max_seconds]
        if call is not None and wait:
            limits.append(call.timeout * SHARE)
        if brief is not None and brief.seconds is not None:
            limits.append(brief.seconds)
        deadline = Deadline(min(limits))
        deadline.start()

        async def drive() -> None:
            async with parent.places:
                driver = await self._hold(stored)
                run = await host.prepare(session, stored, deadline, parent, brief, driver)
                async with aclosing(host.drive(run)) as records:
                    async for _ in records:
                        pass

        def ended(_: object) -> None:
            deadline.release()
            parent.family.under_way -= 1
            del host.children[self._key(stored.id)]

        child = Child(stored.id, session.id, deadline, asyncio.create_task(drive(), name=stored.id))
        parent.family.under_way += 1
        parent.children.append(child)
        host.children[self._key(stored.id)] = child
        child.task.add_done_callback(ended)
        return child

    async def _hold(self, stored: StoredRun) -> Hold:
        """The driver context of a sub-run: it needs the claim of this run to be still valid."""
        own, epoch = self._run.stored.id, self._run.hold.epoch
        return ALONE if epoch is None else Hold(await adopt(self._store, stored.id, own, epoch))

    async def _wait_for(self, child: Child) -> None:
        try:
            await asyncio.shield(child.task)
        except asyncio.CancelledError:
            await child.end(clean=self._run.deadline.over)
            raise

    def _agent(self, name: str) -> Agent:
        agents = self._host.agents
        found = agents.get(name or self._run.session.agent)
        if found is None:
            known = ", ".join(sorted(agents))
            text = f"Error: There is no agent {name!r}. There are: {known}."
            raise ToolFailure(ErrorKind.NOT_FOUND, text)
        return found

    async def _refuse_circle(self, name: str) -> None:
        """An agent may delegate to its own kind, but not back to an agent that waits for it."""
        session: Session | None = self._run.session
        if name == self._run.session.agent:
            return
        while session is not None and session.parent:
            session = await self._store.session(session.parent)
            if session is not None and session.agent == name:
                text = f"Error: {name!r} is waiting for this very work. Do it yourself."
                raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)

    def _narrowed_tools(self, wanted: Sequence[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return self._run.session.tools
        held = [tool.name for tool in self._run.ports.executor.tools()]
        for name in wanted:
            if name not in held:
                raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(name, held))
        return frozenset(wanted)

    def _child_of(self, session_id: str) -> Child | None:
        tenant = self._store.tenant
        for (whose, _), child in self._host.children.items():
            if (whose, child.session_id) == (tenant, session_id):
                return child
        return None

    def _key(self, id_: str) -> Key:
        return self._store.tenant, id_

    def _run_id(self, call: Call) -> str:
        return run_id_of(self._store.tenant, _derived("run", call)[:32])

    async def _visible(self, session_id: str) -> Listed:
        own, listed = self._run.session, await self._store.look(session_id)
        ours = listed is not None and listed.session.owner == own.owner
        if listed is not None and ours and (not own.depth or await self._is_below(listed.session)):
            return listed
        text = f"Error: There is no session {one_line(session_id)!r}. See sessions_list."
        raise ToolFailure(ErrorKind.NOT_FOUND, text)

    async def _is_below(self, session: Session | None) -> bool:
        """Whether a session is this run's own, or was started from it, directly or indirectly."""
        while session is not None:
            if session.id == self._run.session.id:
                return True
            session = await self._store.session(session.parent) if session.parent else None
        return False

    async def _told(self, listed: Listed) -> Told:
        """The status of a session, with its last answer."""
        summary, last = self._figures(listed), listed.last
        record = None if last is None else await self._store.last_record(last.id)
        if record is None or not isinstance(end := record.event, RunFinished):
            return summary
        return replace(summary, text=end.text, reason=end.reason)

    def _figures(self, listed: Listed) -> Told:
        session, last = listed.session, listed.last
        state, spent = self._state(listed), Spent() if last is None else last.spent
        stop = last.stop if last is not None and last.stop is not None else ""
        budget = self._run.budget.figures() | {"seconds": round(self._run.deadline.left, 1)}
        return Told(
            session.id,
            session.agent,
            state,
            stop if state == "ended" else "",
            turns=spent.turns,
            calls=spent.calls,
            tokens=spent.tokens_in + spent.tokens_out,
            cost=spent.cost,
            title=session.title,
            parent=session.parent,
            messages=listed.messages,
            created_at=session.created_at,
            budget=budget,
        )

    def _state(self, listed: Listed) -> State:
        last, host = listed.last, self._host
        if (
            self._key(listed.session.id) in host.running
            or self._child_of(listed.session.id) is not None
        ):
            return "running"
        if last is None:
            return "new"
        if last.stop is None:
            return "interrupted"
        return "waiting" if last.stop is StopReason.WAITING else "ended"


def _derived(kind: str, call: Call) -> str:
    """An id derived from a call, equal for each of its attempts: finds what the call started."""
    stem = call.request_id.rpartition(".")[0] or call.request_id
    return hashlib.sha256(f"{kind} {stem}".encode()).hexdigest()


def _spoken(message: Message) -> tuple[str, str]:
    match message:
        case SystemMessage(text):
            return "system", text
        case UserMessage():
            return "user", message.text
        case Reply(text, calls):
            asked = [f"→ {call.name}({call.arguments})" for call in calls]
            return "assistant", "\n".join(part for part in (text, *asked) if part)
        case ToolResult(name=name):
            return f"tool {name}", message.text
