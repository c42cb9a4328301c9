"""What the tools of a run can do with sessions: list, read, start and message them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from msgspec.structs import replace

from evoclaw.core.agent import Agent, intersect_capabilities
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import Record, RunFinished, StopReason
from evoclaw.core.labels import Label
from evoclaw.core.messages import ErrorKind, Message, Reply, SystemMessage, ToolResult, UserMessage
from evoclaw.core.tools import Call
from evoclaw.core.wording import tool_not_found
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.sanitizing import one_line, quoted
from evoclaw.orchestrator.sessions.dependencies import GenomeSource
from evoclaw.orchestrator.sessions.run_ids import TenantKey, tenant_run_id
from evoclaw.orchestrator.sessions.session_run import (
    SOLE_DRIVER,
    ActiveSubrun,
    DriverContext,
    RunLimits,
    SessionRun,
)
from evoclaw.store.runs.queue import adopt_subrun
from evoclaw.store.sessions.sessions import (
    RunUsage,
    Session,
    SessionStore,
    SessionSummary,
    StoredRun,
)
from evoclaw.tools import sessions as session_tools
from evoclaw.tools.sessions import SessionMessage, SessionState, SessionStatus, SubSessionRequest

SUBRUN_STARTING_TOOLS = frozenset({session_tools.task.name, session_tools.sessions_spawn.name})
"""The tools that start sub-runs."""
SESSION_READING_TOOLS = SUBRUN_STARTING_TOOLS | {
    session_tools.sessions_send.name,
    session_tools.sessions_history.name,
    session_tools.session_status.name,
}
"""The tools whose results contain messages of a session."""
SUBRUN_TIME_SHARE = 0.95
"""The part of its parent's time that a sub-run gets: it ends first, so the parent can report."""
MAX_ABOUT_CHARS = 120
"""Longest description of an agent in a list."""


class SessionHost(Protocol):
    """Prepares and drives the runs of a tenant: `Conversations`."""

    store: SessionStore
    agents: Mapping[str, Agent]
    genomes: GenomeSource
    edges: Callable[[], Sequence[Member]]
    limits: RunLimits
    subruns: dict[TenantKey, ActiveSubrun]
    running: dict[TenantKey, SessionRun]

    async def agent(self, session: Session) -> Agent:
        """The agent of a session, with the genome of the session."""
        ...

    def canary_key(self, agent: str, session_id: str) -> str:
        """What decides whether a session tries a candidate genome."""
        ...

    async def prepare(
        self,
        session: Session,
        stored: StoredRun,
        deadline: Deadline,
        parent: SessionRun | None,
        brief: SubSessionRequest | None,
        driver: DriverContext = SOLE_DRIVER,
    ) -> SessionRun:
        """Prepare a run."""
        ...

    def drive(self, run: SessionRun) -> AsyncGenerator[Record, None]:
        """Drive a run and yield its records."""
        ...


class RunSessions:
    """The sessions as one run sees them: those of its tenant and owner."""

    def __init__(self, host: SessionHost, run: SessionRun) -> None:
        self._host, self._run, self._store = host, run, host.store

    async def start(self, call: Call, brief: SubSessionRequest, *, wait: bool) -> SessionStatus:
        """Start a session with a sub-run, and wait for its answer if `wait` is set."""
        parent, agent = self._run, self._agent(brief.agent)
        if parent.session.depth >= self._host.limits.max_depth:
            text = "Error: Sub-agents may not be nested any deeper. Do it yourself."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        await self._refuse_cycle(agent.name)
        session_id = _derived_id("session", call)[:16]
        session = await self._store.create(
            Session(
                session_id,
                agent.name,
                parent.session.owner,
                brief.title,
                parent.session.id,
                parent.session.depth + 1,
                intersect_capabilities(agent.capabilities, parent.capabilities),
                self._narrowed_tools(brief.tools),
                on=parent.session.on,
                genome=await self._host.genomes.current(
                    agent.name, self._host.canary_key(agent.name, session_id)
                ),
            )
        )
        return await self._start_or_join(call, session, brief, wait=wait)

    async def send(self, call: Call, session_id: str, message: str) -> SessionStatus:
        """Send a message to a session that this run started, and wait for the answer."""
        listed = await self._visible(session_id)
        if session_id == self._run.session.id or not await self._is_below(listed.session):
            text = f"Error: You did not start session {session_id!r}; you may only read it."
            raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)
        last, run_id = listed.last, self._run_id(call)
        if last is not None and last.is_open and last.id != run_id:
            if self._subrun_of(session_id) is not None:
                text = (
                    "Error: The session is still answering. Wait for it with session_status, "
                    "then send."
                )
                raise ToolFailure(ErrorKind.CONFLICT, text)
            seconds = await self._max_seconds(listed.session)
            await self._wait_for(self._launch(call, listed.session, last, None, seconds, wait=True))
            now = await self._status(await self._visible(session_id))
            if now.state != "ended":
                return now
        return await self._start_or_join(
            call, listed.session, SubSessionRequest(message), wait=True
        )

    async def list(self, *, agent: str, state: SessionState | None) -> Sequence[SessionStatus]:
        """The sessions, newest first; a sub-run sees only those below its own."""
        own = self._run.session
        within = own.id if own.depth else ""
        found = await self._store.sessions(own.owner, within=within, agent=agent)
        summaries = [self._summary(listed) for listed in found]
        return [summary for summary in summaries if state in (None, summary.state)]

    async def history(
        self, session_id: str, start: int | None, limit: int
    ) -> Sequence[SessionMessage]:
        """Messages from number `start` on, or the last `limit` ones."""
        listed = await self._visible(session_id)
        first = max(0, listed.messages - limit) if start is None else start
        found = await self._store.messages(session_id, first, limit)
        return [SessionMessage(number, *_role_and_text(message)) for number, message in found]

    async def status(self, session_id: str, seconds: float) -> SessionStatus:
        """The status of a session, after waiting up to `seconds` for its run; empty is this one."""
        listed = await self._visible(session_id or self._run.session.id)
        child = self._subrun_of(listed.session.id)
        if child is not None and seconds:
            await asyncio.wait([child.task], timeout=seconds)
            listed = await self._visible(listed.session.id)
        return await self._status(listed)

    async def agents(self) -> Sequence[session_tools.AgentListing]:
        """The agents that can be asked: those defined here, and the edges of the fleet."""
        local = [
            session_tools.AgentListing(
                name,
                "local",
                session_tools.task.name,
                about=one_line(agent.prompt, MAX_ABOUT_CHARS),
            )
            for name, agent in sorted(self._host.agents.items())
        ]
        edges = [
            session_tools.AgentListing(
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

    async def resume_subruns(self) -> None:
        """Resume the background sub-runs of an interrupted run that is resumed."""
        for stored in await self._store.open_background_runs(self._run.stored.id):
            session = await self._store.session(stored.session_id)
            if session is None:
                continue
            seconds = await self._max_seconds(session)
            if self._key(stored.id) not in self._host.subruns:
                self._launch(None, session, stored, None, seconds, wait=False)

    async def _start_or_join(
        self, call: Call, session: Session, brief: SubSessionRequest, *, wait: bool
    ) -> SessionStatus:
        """Start a sub-run, or join the one that this call started before."""
        run_id = self._run_id(call)
        stored = await self._store.run(run_id)
        stored = stored or await self._create_run(run_id, session, brief, wait, call.context.label)
        if stored.is_open:
            seconds = await self._max_seconds(session)
            child = self._host.subruns.get(self._key(run_id))
            child = child or self._launch(call, session, stored, brief, seconds, wait=wait)
            if wait:
                await self._wait_for(child)
        return await self._status(await self._visible(session.id))

    async def _create_run(
        self, run_id: str, session: Session, brief: SubSessionRequest, wait: bool, label: Label
    ) -> StoredRun:
        self._check_capacity()
        parent = self._run.stored
        self._run.tree.active_count += 1  # reserve the slot while the run is being stored
        try:
            return await self._store.create_run(
                run_id,
                session.id,
                brief.prompt,
                parent_run=parent.id,
                root_run=parent.root_run,
                background=not wait,
                label=label,
            )
        finally:
            self._run.tree.active_count -= 1

    def _check_capacity(self) -> None:
        family = self._run.tree
        if family.active_count >= family.limits.max_active:
            text = (
                f"Not executed: {family.active_count} sub-agents are already running. "
                "Wait for one to end, then try again."
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
        brief: SubSessionRequest | None,
        seconds: float,
        *,
        wait: bool,
    ) -> ActiveSubrun:
        parent, host = self._run, self._host
        limits = [parent.deadline.left * SUBRUN_TIME_SHARE, seconds]
        if call is not None and wait:
            limits.append(call.timeout * SUBRUN_TIME_SHARE)
        if brief is not None and brief.seconds is not None:
            limits.append(brief.seconds)
        deadline = Deadline(min(limits))
        deadline.start()

        async def drive() -> None:
            async with parent.subrun_slots:
                driver = await self._driver_context(stored)
                run = await host.prepare(session, stored, deadline, parent, brief, driver)
                async with aclosing(host.drive(run)) as records:
                    async for _ in records:
                        pass

        def ended(_: object) -> None:
            deadline.release()
            parent.tree.active_count -= 1
            del host.subruns[self._key(stored.id)]

        child = ActiveSubrun(
            stored.id, session.id, deadline, asyncio.create_task(drive(), name=stored.id)
        )
        parent.tree.active_count += 1
        parent.subruns.append(child)
        host.subruns[self._key(stored.id)] = child
        child.task.add_done_callback(ended)
        return child

    async def _max_seconds(self, session: Session) -> float:
        """The duration that the agent of a session allows its runs."""
        return (await self._host.agent(session)).settings.max_seconds

    async def _driver_context(self, stored: StoredRun) -> DriverContext:
        """The driver context of a sub-run: it needs the claim of this run to be still valid."""
        own, epoch = self._run.stored.id, self._run.driver.epoch
        return (
            SOLE_DRIVER
            if epoch is None
            else DriverContext(await adopt_subrun(self._store, stored.id, own, epoch))
        )

    async def _wait_for(self, child: ActiveSubrun) -> None:
        try:
            await asyncio.shield(child.task)
        except asyncio.CancelledError:
            await child.stop(clean=self._run.deadline.over)
            raise

    def _agent(self, name: str) -> Agent:
        agents = self._host.agents
        found = agents.get(name or self._run.session.agent)
        if found is None:
            known = ", ".join(sorted(agents))
            text = f"Error: Unknown agent {name!r}. Known agents: {known}."
            raise ToolFailure(ErrorKind.NOT_FOUND, text)
        return found

    async def _refuse_cycle(self, name: str) -> None:
        """An agent may delegate to its own kind, but not back to an agent that waits for it."""
        session: Session | None = self._run.session
        if name == self._run.session.agent:
            return
        while session is not None and session.parent:
            session = await self._store.session(session.parent)
            if session is not None and session.agent == name:
                text = f"Error: {name!r} is waiting for this work itself. Do it yourself."
                raise ToolFailure(ErrorKind.PERMISSION_DENIED, text)

    def _narrowed_tools(self, wanted: Sequence[str] | None) -> frozenset[str] | None:
        if wanted is None:
            return self._run.session.tools
        offered = [tool.name for tool in self._run.ports.executor.tools()]
        for name in wanted:
            if name not in offered:
                raise ToolFailure(ErrorKind.NOT_FOUND, tool_not_found(name, offered))
        return frozenset(wanted)

    def _subrun_of(self, session_id: str) -> ActiveSubrun | None:
        tenant = self._store.tenant
        for (whose, _), child in self._host.subruns.items():
            if (whose, child.session_id) == (tenant, session_id):
                return child
        return None

    def _key(self, id_: str) -> TenantKey:
        return self._store.tenant, id_

    def _run_id(self, call: Call) -> str:
        return tenant_run_id(self._store.tenant, _derived_id("run", call)[:32])

    async def _visible(self, session_id: str) -> SessionSummary:
        own, listed = self._run.session, await self._store.summary(session_id)
        ours = listed is not None and listed.session.owner == own.owner
        if listed is not None and ours and (not own.depth or await self._is_below(listed.session)):
            return listed
        text = f"Error: There is no session {one_line(session_id)!r}. Use sessions_list."
        raise ToolFailure(ErrorKind.NOT_FOUND, text)

    async def _is_below(self, session: Session | None) -> bool:
        """Whether a session is this run's own, or was started from it, directly or indirectly."""
        while session is not None:
            if session.id == self._run.session.id:
                return True
            session = await self._store.session(session.parent) if session.parent else None
        return False

    async def _status(self, listed: SessionSummary) -> SessionStatus:
        """The status of a session, with its last answer."""
        summary, last = self._summary(listed), listed.last
        record = None if last is None else await self._store.last_record(last.id)
        if record is None or not isinstance(end := record.event, RunFinished):
            return summary
        return replace(summary, text=end.text, reason=end.reason)

    def _summary(self, listed: SessionSummary) -> SessionStatus:
        session, last = listed.session, listed.last
        state, spent = self._state(listed), RunUsage() if last is None else last.usage
        stop = last.stop if last is not None and last.stop is not None else ""
        budget = self._run.budget.remaining() | {"seconds": round(self._run.deadline.left, 1)}
        return SessionStatus(
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

    def _state(self, listed: SessionSummary) -> SessionState:
        last, host = listed.last, self._host
        if (
            self._key(listed.session.id) in host.running
            or self._subrun_of(listed.session.id) is not None
        ):
            return "running"
        if last is None:
            return "new"
        if last.stop is None:
            return "interrupted"
        return "waiting" if last.stop is StopReason.WAITING else "ended"


def _derived_id(kind: str, call: Call) -> str:
    """An id derived from a call, equal for each of its attempts: finds what the call started."""
    stem = call.request_id.rpartition(".")[0] or call.request_id
    return hashlib.sha256(f"{kind} {stem}".encode()).hexdigest()


def _role_and_text(message: Message) -> tuple[str, str]:
    match message:
        case SystemMessage(text):
            return "system", text
        case UserMessage():
            return "user", message.text
        case Reply(text, calls):
            lines = [f"→ {call.name}({call.arguments})" for call in calls]
            return "assistant", "\n".join(part for part in (text, *lines) if part)
        case ToolResult(name=name):
            return f"tool {name}", message.text
