"""The sessions of a tenant: opens, continues, branches and deletes them, and drives their runs."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from evoclaw.core.agent import Agent, LoopSettings, narrowed
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import Record, RunStarted
from evoclaw.core.history import History
from evoclaw.core.ledgers import Amounts, Ledger
from evoclaw.core.messages import Message, SystemMessage, TextBlock, UserMessage
from evoclaw.core.pipeline import GivenRules, Pipeline
from evoclaw.core.ports import Policy, Ports, Provider, Sink
from evoclaw.core.state import fold, new_run
from evoclaw.core.tracing import enter
from evoclaw.governance.budget.foresight import Price
from evoclaw.governance.budget.memory import MemoryLedger
from evoclaw.governance.budget.notices import BudgetNotice
from evoclaw.governance.budget.policy import Budget
from evoclaw.governance.budget.terms import Terms
from evoclaw.governance.permissions import Permissions, PermittedTools
from evoclaw.orchestrator.agents.definitions import budget_of
from evoclaw.orchestrator.cleaning import one_line
from evoclaw.orchestrator.errands import LONGEST_TITLE, Busy, Errand, NoSession, errand_of
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.people.questions import PendingQuestions, Questions
from evoclaw.orchestrator.sessions.callers import Callers, with_callers
from evoclaw.orchestrator.sessions.delegates import ABOUT_SESSIONS, STARTERS, Delegates
from evoclaw.orchestrator.sessions.equipping import Equip, Recall, StoredTodos, nothing_recalled
from evoclaw.orchestrator.sessions.steps import ParentRules, RunTools, SessionLabels
from evoclaw.orchestrator.sessions.subruns import (
    ALONE,
    Child,
    Family,
    Hold,
    Key,
    Limits,
    LiveRun,
    heard_in,
    run_id_of,
    seq_after,
    spent_before,
    whole_turns,
)
from evoclaw.providers.thrifty import Thrifty
from evoclaw.store.governing.approvals import ApprovalStore
from evoclaw.store.sessions import changes as session_changes
from evoclaw.store.sessions.sessions import Session, SessionStore, StoredRun
from evoclaw.tools.notes import Todos
from evoclaw.tools.question import Person
from evoclaw.tools.sessions import Brief, Sessions


class Conversations:
    """All sessions of a tenant in this process, and how their runs are prepared and driven."""

    def __init__(
        self,
        store: SessionStore,
        agents: Mapping[str, Agent],
        equip: Equip,
        *,
        questions: Questions | None = None,
        limits: Limits | None = None,
        ledger: Ledger | None = None,
        price: Price | None = None,
        cheaper: Sequence[Provider] = (),
        attended: bool = False,
        listening: Callable[[Session, Sequence[Record]], Sequence[Sink]] = lambda _, __: (),
        edges: Callable[[], Sequence[Member]] = lambda: (),
        prompt: Callable[[Agent], str] = lambda agent: agent.prompt,
        recall: Recall = nothing_recalled,
        approvals: ApprovalStore | None = None,
        together: bool = False,
    ) -> None:
        """Choose the parts.

        Args:
            store: The session store, of one tenant.
            agents: The agents, by name.
            make_ports: Builds the ports of a run.
            questions: How people are asked; the stored questions if not given.
            limits: What a run and its sub-runs may spend together; the defaults if not given.
            ledger: Where spending is counted; in memory if not given.
            price: The price of a model's tokens; needed where money is limited.
            cheaper: Providers that answer when little of a budget is left.
            attended: Whether the approver reaches a person, to be asked when a limit is near.
            sinks_for: The sinks of a run, given its session and its records so far.
            edges: The members of the fleet.
            prompt: The system prompt of a new session of an agent.
            recall: Finds notes in the memory for a run.
            approvals: Where calls wait for approval; closed when the run ends.
            defer_commits: Commit a reply together with what follows; models and tools then wait for
                the store.
        """
        self.store, self.agents, self.edges = store, agents, edges
        self.limits = limits or Limits()
        self.ledger: Ledger = ledger or MemoryLedger()
        self.price, self.attended = price, attended
        self.questions = questions or Questions(store.questions)
        self._equip, self._prompt, self._listening = equip, prompt, listening
        self._recall, self.approvals, self._together = recall, approvals, together
        self.cheaper = tuple(cheaper)
        self.children: dict[Key, Child] = {}
        """Active sub-runs of all tenants in this process, by tenant and run id."""
        self.running: dict[Key, LiveRun] = {}
        """Active runs of all tenants in this process, by tenant and session id."""

    def of(self, tenant: str) -> Conversations:
        """The sessions of another tenant, with the same agents."""
        other = copy.copy(self)
        other.store, other.questions = self.store.of(tenant), self.questions.of(tenant)
        return other

    async def open(
        self, agent: str, *, session_id: str = "", owner: str = "", title: str = ""
    ) -> Session:
        """Open a session; the id of an existing session returns that one."""
        found = self.agents.get(agent)
        if found is None:
            raise AgentNotFound(agent, tuple(self.agents))
        return await self.store.create(
            Session(
                session_id or secrets.token_hex(8),
                agent,
                owner,
                title,
                capabilities=found.capabilities,
            )
        )

    async def rename(self, session_id: str, title: str) -> Session:
        """Change the title of a session: one line, cut to its limit."""
        found = await session_changes.rename(self.store, session_id, one_line(title, LONGEST_TITLE))
        if found is None:
            raise NoSession(session_id)
        return found

    async def branch(self, session_id: str, at_message: int) -> Session:
        """Create a session with the messages of another one up to and including a number.

        A last reply whose calls are not all answered by then is left out.
        """
        session = await self.store.session(session_id)
        if session is None:
            raise NoSession(session_id)
        numbered = await self.store.messages(session_id, 0, max(0, at_message + 1))
        messages = whole_turns([message for _, message in numbered])
        new = replace(session, id=secrets.token_hex(8))
        return await session_changes.branch(self.store, new, messages)

    async def forget(self, session_id: str) -> Sequence[str]:
        """Delete a session, the sessions started from it, and all their runs and records.

        Returns the ids of the deleted sessions, so that other stores can delete their data.
        """
        if await self.store.session(session_id) is None:
            raise NoSession(session_id)
        deleted = await session_changes.forget(self.store, session_id)
        if deleted is None:
            raise Busy(session_id, "has an unfinished run; cancel it first")
        if self.approvals is not None:
            await self.approvals.forget(deleted.runs, self.store.tenant)
        return deleted.sessions

    async def say(
        self,
        session_id: str,
        message: str,
        *,
        run_id: str = "",
        sinks: Sequence[Sink] = (),
        deadline: Deadline | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Send a message to a session and yield the records of its run.

        Args:
            session_id: An open session.
            message: The user's message.
            run_id: An id chosen by the caller; the same id again continues that run instead of
                starting another. The records have the id in use: that of a tenant gets a prefix.
            sinks: Further sinks.
            deadline: The deadline, to cancel the run by.
        """
        listed = await self.store.look(session_id)
        if listed is None:
            raise NoSession(session_id)
        run_id = run_id_of(self.store.tenant, run_id or secrets.token_hex(16))
        if listed.last is not None and listed.last.is_open and listed.last.id != run_id:
            raise Busy(session_id, "has an unfinished run; resume or cancel it first")
        stored = await self.store.begin(run_id, session_id, message)
        async with aclosing(self._watch(listed.session, stored, sinks, deadline)) as records:
            async for record in records:
                yield record

    async def unfinished(self, session_id: str) -> bool:
        """Whether the last run of a session was interrupted, or waits for a person."""
        listed = await self.store.look(session_id)
        return listed is not None and listed.last is not None and listed.last.is_open

    async def resume(
        self, session_id: str, *, sinks: Sequence[Sink] = (), deadline: Deadline | None = None
    ) -> AsyncGenerator[Record, None]:
        """Resume the last run of a session that waited for a person or was interrupted."""
        listed = await self.store.look(session_id)
        if listed is None:
            raise NoSession(session_id)
        if listed.last is None or not listed.last.is_open:
            raise Busy(session_id, "has no unfinished run to resume; send a message")
        async with aclosing(self._watch(listed.session, listed.last, sinks, deadline)) as records:
            async for record in records:
                yield record

    async def _watch(
        self,
        session: Session,
        stored: StoredRun,
        sinks: Sequence[Sink],
        deadline: Deadline | None,
    ) -> AsyncGenerator[Record, None]:
        agent = self.agent(session)
        run = await self.prepare(
            session, stored, deadline or Deadline(agent.settings.max_seconds), None, None
        )
        async with aclosing(self.drive(run, sinks)) as records:
            async for record in records:
                yield record

    async def drive(self, run: LiveRun, sinks: Sequence[Sink] = ()) -> AsyncGenerator[Record, None]:
        """Drive a run; it is in `running` while this lasts."""
        key = (run.session.tenant, run.session.id)
        while (other := self.running.get(key)) is not None:
            if other.state.stop is None:
                raise Busy(
                    run.session.id, "is answering another message; wait for it, or cancel it"
                )
            await other.left.wait()  # its loop has ended; only cleanup is left
        self.running[key] = run
        try:
            if run.state.started:
                await Delegates(self, run).take_up()
            async with aclosing(run.records(sinks)) as records:
                async for record in records:
                    yield record
        finally:
            del self.running[key]
            run.left.set()

    def agent(self, session: Session) -> Agent:
        """The agent of a session."""
        found = self.agents.get(session.agent)
        if found is None:
            raise AgentNotFound(session.agent, tuple(self.agents))
        return found

    async def prepare(
        self,
        session: Session,
        stored: StoredRun,
        deadline: Deadline | None,
        above: LiveRun | None,
        brief: Brief | None,
        hold: Hold = ALONE,
    ) -> LiveRun:
        """Prepare a run to be driven: its ports, its budget, and its state so far.

        Args:
            session: The session of the run.
            stored: The stored run.
            deadline: Its deadline; as its request or its agent says if not given.
            parent: The parent run of a sub-run, which may never do more than that.
            brief: What a sub-run was started with, if it is the first of its session.
            driver: The epoch and the steering messages of its driver.
        """
        tenants = {session.tenant} if above is None else {session.tenant, above.session.tenant}
        if tenants != {self.store.tenant}:
            raise NoSession(session.id)  # a run of another tenant is never driven
        blob, before, earlier, records = await self.store.whole(stored)
        request = errand_of(blob)
        agent = _asked_for(self.agent(session), request)
        capabilities = narrowed(agent.capabilities, session.capabilities)
        family, spent = Family(self.limits), dict[str, int]()
        if above is None:
            enter(stored.root_run, request.traceparent)
            spent = spent_before(before, self.limits.budget)
        else:
            capabilities, family = narrowed(capabilities, above.capabilities), above.family
        if records and isinstance(opening := records[0].event, RunStarted):
            state, settings = fold(records), opening.settings
        else:
            history = [message for _, message in earlier]
            messages = await self._opening(agent, session, history, stored, request)
            state, settings = new_run(messages, stored.id), _settings(agent, brief)
        run = LiveRun(
            self.store, session, stored, state, settings,
            deadline or Deadline(agent.settings.max_seconds), family, capabilities,
            seq=seq_after(records), known=len(earlier), heard=heard_in(records),
            hold=hold, together=self._together, approvals=self.approvals,
            places=asyncio.Semaphore(self.limits.side_by_side),
        )  # fmt: skip
        run.ports = self._ports(agent, run, above, spent, request)
        run.budget.recall(records)
        run.sinks = self.listeners(session, records)
        return run

    def listeners(self, session: Session, records: Sequence[Record]) -> tuple[Sink, ...]:
        """The sinks of a run of a session, given its records so far."""
        return tuple(self._listening(session, records))

    async def _opening(
        self,
        agent: Agent,
        session: Session,
        earlier: list[Message],
        stored: StoredRun,
        errand: Errand,
    ) -> list[Message]:
        if not earlier and (text := self._prompt(agent)):
            earlier = [SystemMessage(text)]
        asked = [UserMessage((TextBlock(stored.asked, stored.label),))]
        if errand.messages:
            return [*earlier, *errand.messages, *(asked if errand.message else ())]
        return [*earlier, *await self._recall(agent, session, stored), *asked]

    def _ports(
        self,
        agent: Agent,
        run: LiveRun,
        above: LiveRun | None,
        spent: Amounts,
        errand: Errand,
    ) -> Ports:
        session = run.session
        given: dict[type, object] = {
            Todos: StoredTodos(self.store, session.id),
            Person: self.questions.person(session.id),
            Sessions: Delegates(self, run),
            History: run.state.history if run.state.started else History(run.state.opening),
        }
        ports = self._equip(agent, session, given)
        user = session.owner or ports.principal.user
        principal = replace(ports.principal, tenant=session.tenant, user=user)
        run.budget = Budget(
            self.ledger,
            run.stored.id,
            budget_of(agent, self.limits.budget),
            Terms(price=self.price, attended=self.attended),
            principal=principal,
            above=None if above is None else above.budget,
            spent=spent,
        )
        parking = PendingQuestions(self.questions, session.id, ports.approver)
        pipeline = self._pipeline(run, above, ports, errand)
        pipeline = pipeline.with_steps(parking, run.budget, BudgetNotice(run.budget))
        run.pipeline = pipeline
        provider = Thrifty(ports.provider, run.budget.share, self.cheaper)
        steering = run.hold.steering
        made = Ports(provider, pipeline, pipeline.policy, parking, principal, steering=steering)
        callers = Callers(self.store.questions)
        return with_callers(made, errand.tools, callers, session.id, run.budget)

    def _pipeline(
        self, run: LiveRun, above: LiveRun | None, ports: Ports, errand: Errand
    ) -> Pipeline:
        """The call pipeline of the agent, narrowed to this run."""
        session = run.session
        is_deepest = session.depth >= self.limits.depth
        pipeline = Pipeline.of(ports.executor, ports.policy).with_steps(
            PermittedTools(run.capabilities),
            Permissions(run.capabilities),
            SessionLabels(self.store, ABOUT_SESSIONS),
            RunTools(
                None if above is None else above.pipeline,
                frozenset() if errand.single else session.tools,
                STARTERS if is_deepest else frozenset(),
            ),
        )
        inherited = () if above is None else _inherited(above.pipeline, pipeline)
        return pipeline.with_steps(ParentRules(Chain(inherited))) if inherited else pipeline


def _inherited(above: Pipeline, own: Pipeline) -> tuple[Policy, ...]:
    """The policies of the parent runs that this run does not have already, each once.

    Permissions are narrowed from run to run; questions, budgets and the caller's tools belong to
    each run itself.
    """
    found: list[Policy] = []
    for policy in above.before:
        if isinstance(policy, ParentRules):
            found += policy.chain.policies
        elif not isinstance(policy, Permissions | PendingQuestions | Budget):
            found.append(policy.policy if isinstance(policy, GivenRules) else policy)
    present = [rule.policy if isinstance(rule, GivenRules) else rule for rule in own.before]
    return tuple(rule for rule in found if not any(rule is other for other in present))


def _asked_for(agent: Agent, errand: Errand) -> Agent:
    """The agent with the model and settings of a run request."""
    settings = errand.settings or agent.settings
    if errand.single:
        settings = replace(settings, confirm=False)
    return replace(agent, model=errand.model or agent.model, settings=settings)


def _settings(agent: Agent, brief: Brief | None) -> LoopSettings:
    settings = agent.settings
    if brief is None or brief.max_turns is None:
        return settings
    return replace(settings, max_turns=min(settings.max_turns, brief.max_turns))
