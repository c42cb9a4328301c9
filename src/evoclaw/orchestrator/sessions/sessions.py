"""Conversations with agents, and what a session's own tools may do with other sessions."""

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
    """All sessions of a tenant in a process: opened, gone on with, resumed."""

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
            store: Where everything is kept; its tenant is the one these are the sessions of.
            agents: Who can be asked, by name.
            equip: What their runs are given.
            questions: How people are reached; nobody is if not given.
            limits: What a run and its sub-runs may use together; the usual ones if not given.
            ledger: Where that is counted; in memory if not given.
            price: What a model's tokens cost; needed where money is bounded.
            cheaper: Who answers when little of a budget is left.
            attended: Whether the approver reaches somebody, to be asked when a limit is near.
            listening: Who listens to a run of a session; told what happened in it before.
            edges: The members of the fleet.
            prompt: The instructions that a session of an agent starts with.
            recall: What is remembered for a run.
            approvals: Where its calls wait for approval: given up when it has ended.
            together: Commit a reply with what follows; models and tools then wait for the store.
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
        """Sub-runs of all tenants that go on in this process, by tenant and run id."""
        self.running: dict[Key, LiveRun] = {}
        """Runs of all tenants that go on in this process, by tenant and session id."""

    def of(self, tenant: str) -> Conversations:
        """The sessions of another tenant: the same agents, and nothing that was said here."""
        others = copy.copy(self)
        others.store, others.questions = self.store.of(tenant), self.questions.of(tenant)
        return others

    async def open(
        self, agent: str, *, session_id: str = "", owner: str = "", title: str = ""
    ) -> Session:
        """Begin a conversation; the id of one that is there gives that one."""
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
        """Give a session another title: one line, cut."""
        found = await session_changes.rename(self.store, session_id, one_line(title, LONGEST_TITLE))
        if found is None:
            raise NoSession(session_id)
        return found

    async def branch(self, session_id: str, at_message: int) -> Session:
        """A new session with what was said in one up to a message, that one included.

        A reply whose calls have not all their answers by then is left out.
        """
        session = await self.store.session(session_id)
        if session is None:
            raise NoSession(session_id)
        said = await self.store.messages(session_id, 0, max(0, at_message + 1))
        messages = whole_turns([message for _, message in said])
        new = replace(session, id=secrets.token_hex(8))
        return await session_changes.branch(self.store, new, messages)

    async def forget(self, session_id: str) -> Sequence[str]:
        """Forget a session, those that were begun from it, and all that happened there.

        The ids of all of them are given: what others noted of them is theirs to forget.
        """
        if await self.store.session(session_id) is None:
            raise NoSession(session_id)
        gone = await session_changes.forget(self.store, session_id)
        if gone is None:
            raise Busy(session_id, "has not ended what it was doing; cancel that first")
        if self.approvals is not None:
            await self.approvals.forget(gone.runs, self.store.tenant)
        return gone.sessions

    async def say(
        self,
        session_id: str,
        message: str,
        *,
        run_id: str = "",
        sinks: Sequence[Sink] = (),
        deadline: Deadline | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Say something in a session and watch the answer being made.

        Args:
            session_id: Of a session that was opened.
            message: What to say.
            run_id: One of your own; given again, it goes on with that run instead of a second.
                The records say what became of it: that of a tenant is made one of its own.
            sinks: Who else is told.
            deadline: To cancel it by.
        """
        listed = await self.store.look(session_id)
        if listed is None:
            raise NoSession(session_id)
        run_id = run_id_of(self.store.tenant, run_id or secrets.token_hex(16))
        if listed.last is not None and listed.last.is_open and listed.last.id != run_id:
            raise Busy(session_id, "has not ended what it was doing; resume or cancel that first")
        stored = await self.store.begin(run_id, session_id, message)
        async with aclosing(self._watch(listed.session, stored, sinks, deadline)) as records:
            async for record in records:
                yield record

    async def unfinished(self, session_id: str) -> bool:
        """Whether the last run of a session was cut off, or waits for a person."""
        listed = await self.store.look(session_id)
        return listed is not None and listed.last is not None and listed.last.is_open

    async def resume(
        self, session_id: str, *, sinks: Sequence[Sink] = (), deadline: Deadline | None = None
    ) -> AsyncGenerator[Record, None]:
        """Go on with the last run of a session that waited for a person or was cut off."""
        listed = await self.store.look(session_id)
        if listed is None:
            raise NoSession(session_id)
        if listed.last is None or not listed.last.is_open:
            raise Busy(session_id, "has nothing to go on with; say something")
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
        """Run it, known as going on here while it does."""
        key = (run.session.tenant, run.session.id)
        while (other := self.running.get(key)) is not None:
            if other.state.stop is None:
                raise Busy(run.session.id, "is answering something else")
            await other.left.wait()  # it has ended, and is only tidying up
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
        """Who answers in a session."""
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
        """Put a run together: what it is made of, and how far it came.

        Args:
            session: Whose it is.
            stored: What is known of it.
            deadline: When it is over; as it was begun, or its agent says, if not given.
            above: The run it is a part of; it never may more than that.
            brief: What it was begun with, if it is the first of its session.
            hold: By what right it is driven, and what is said to it meanwhile.
        """
        whose = {session.tenant} if above is None else {session.tenant, above.session.tenant}
        if whose != {self.store.tenant}:
            raise NoSession(session.id)  # nobody drives a run of another tenant
        begun, before, earlier, records = await self.store.whole(stored)
        errand = errand_of(begun)
        agent = _asked_for(self.agent(session), errand)
        capabilities = narrowed(agent.capabilities, session.capabilities)
        family, spent = Family(self.limits), dict[str, int]()
        if above is None:
            enter(stored.root_run, errand.traceparent)
            spent = spent_before(before, self.limits.budget)
        else:
            capabilities, family = narrowed(capabilities, above.capabilities), above.family
        if records and isinstance(opening := records[0].event, RunStarted):
            state, settings = fold(records), opening.settings
        else:
            said = [message for _, message in earlier]
            messages = await self._opening(agent, session, said, stored, errand)
            state, settings = new_run(messages, stored.id), _settings(agent, brief)
        run = LiveRun(
            self.store, session, stored, state, settings,
            deadline or Deadline(agent.settings.max_seconds), family, capabilities,
            seq=seq_after(records), known=len(earlier), heard=heard_in(records),
            hold=hold, together=self._together, approvals=self.approvals,
            places=asyncio.Semaphore(self.limits.side_by_side),
        )  # fmt: skip
        run.ports = self._ports(agent, run, above, spent, errand)
        run.budget.recall(records)
        run.sinks = self.listeners(session, records)
        return run

    def listeners(self, session: Session, records: Sequence[Record]) -> tuple[Sink, ...]:
        """Who listens to a run of a session, in which this happened before."""
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
        """What the agent's calls pass through, narrowed to this run."""
        session = run.session
        deepest = session.depth >= self.limits.depth
        pipeline = Pipeline.of(ports.executor, ports.policy).with_steps(
            PermittedTools(run.capabilities),
            Permissions(run.capabilities),
            SessionLabels(self.store, ABOUT_SESSIONS),
            RunTools(
                None if above is None else above.pipeline,
                frozenset() if errand.single else session.tools,
                STARTERS if deepest else frozenset(),
            ),
        )
        inherited = () if above is None else _inherited(above.pipeline, pipeline)
        return pipeline.with_steps(ParentRules(Chain(inherited))) if inherited else pipeline


def _inherited(above: Pipeline, own: Pipeline) -> tuple[Policy, ...]:
    """The rules of the runs above that are not this run's own already, each of them once.

    Permissions are narrowed from run to run, and questions, budgets and the caller's tools are each
    run's own.
    """
    found: list[Policy] = []
    for policy in above.before:
        if isinstance(policy, ParentRules):
            found += policy.chain.policies
        elif not isinstance(policy, Permissions | PendingQuestions | Budget):
            found.append(policy.policy if isinstance(policy, GivenRules) else policy)
    mine = [rule.policy if isinstance(rule, GivenRules) else rule for rule in own.before]
    return tuple(rule for rule in found if not any(rule is other for other in mine))


def _asked_for(agent: Agent, errand: Errand) -> Agent:
    """An agent as a run was begun with it."""
    settings = errand.settings or agent.settings
    if errand.single:
        settings = replace(settings, confirm=False)
    return replace(agent, model=errand.model or agent.model, settings=settings)


def _settings(agent: Agent, brief: Brief | None) -> LoopSettings:
    settings = agent.settings
    if brief is None or brief.max_turns is None:
        return settings
    return replace(settings, max_turns=min(settings.max_turns, brief.max_turns))
