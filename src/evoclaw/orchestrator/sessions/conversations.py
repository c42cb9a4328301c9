"""The sessions of a tenant: opens, continues, branches and deletes them, and drives their runs."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from evoclaw.core.agent import (
    ANY_EDGE,
    EVERY_EDGE,
    Agent,
    LoopSettings,
    intersect_capabilities,
)
from evoclaw.core.chain import Chain
from evoclaw.core.deadline import Deadline
from evoclaw.core.errors import AgentNotFound
from evoclaw.core.events import Record, RunStarted
from evoclaw.core.hidden_text import mark_hidden_text
from evoclaw.core.history import History
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.ledgers import Amounts, Ledger
from evoclaw.core.messages import Message, SystemMessage, TextBlock, UserMessage
from evoclaw.core.pipeline import Pipeline
from evoclaw.core.ports import Ports, Provider, Sink
from evoclaw.core.state import fold, new_run
from evoclaw.core.suggestions import did_you_mean
from evoclaw.core.tracing import enter_run_trace
from evoclaw.governance.approvals import WorkflowStepRef
from evoclaw.governance.budget.cost_estimator import Price
from evoclaw.governance.budget.memory_ledger import MemoryLedger
from evoclaw.governance.budget.options import BudgetOptions
from evoclaw.governance.budget.policy import BudgetNotice, RunBudget
from evoclaw.governance.permissions import Permissions, PermittedTools
from evoclaw.orchestrator.agents.caller_messages import caller_messages
from evoclaw.orchestrator.agents.definitions import budget_of
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.orchestrator.fleet.edge_call import allow_nested_calls, narrow_edge_calls
from evoclaw.orchestrator.fleet.members import Member
from evoclaw.orchestrator.people.questions import PendingQuestions, Questions
from evoclaw.orchestrator.runs.reply_options import with_reply_options
from evoclaw.orchestrator.runs.requests import (
    MAX_TITLE_CHARS,
    EdgeNotUsable,
    RunNotFound,
    RunRequest,
    SessionBusy,
    SessionNotFound,
    UnknownEdge,
    decode_run_request,
)
from evoclaw.orchestrator.sanitizing import one_line
from evoclaw.orchestrator.sessions.caller_tools import CallerCallStore, with_caller_tools
from evoclaw.orchestrator.sessions.dependencies import (
    ConfiguredGenomes,
    GenomeSource,
    PortsFactory,
    Recall,
    StoredTodos,
    no_recall,
)
from evoclaw.orchestrator.sessions.run_ids import TenantKey, tenant_run_id
from evoclaw.orchestrator.sessions.run_records import (
    drop_incomplete_turn,
    last_used_seq,
    prior_spend,
    steering_count,
)
from evoclaw.orchestrator.sessions.run_sessions import (
    SESSION_READING_TOOLS,
    SUBRUN_STARTING_TOOLS,
    RunSessions,
)
from evoclaw.orchestrator.sessions.session_run import (
    SOLE_DRIVER,
    ActiveSubrun,
    DriverContext,
    RunLimits,
    SessionRun,
    SubrunTree,
)
from evoclaw.orchestrator.sessions.steps import (
    ParentRules,
    RunTools,
    SessionLabels,
    count_forwarded_calls,
    forwarded_tools,
    inherited_policies,
)
from evoclaw.providers.budget_fallback import BudgetFallback
from evoclaw.providers.wrappers import with_write_barrier
from evoclaw.store.governance.approvals import ApprovalStore
from evoclaw.store.sessions import changes as session_changes
from evoclaw.store.sessions.sessions import LoadedRun, Session, SessionStore, StoredRun
from evoclaw.tools.question import UserPrompter
from evoclaw.tools.sessions import Sessions, SubSessionRequest
from evoclaw.tools.todos import TodoList


class Conversations:
    """All sessions of a tenant in this process, and how their runs are prepared and driven."""

    def __init__(
        self,
        store: SessionStore,
        agents: Mapping[str, Agent],
        make_ports: PortsFactory,
        *,
        questions: Questions | None = None,
        limits: RunLimits | None = None,
        ledger: Ledger | None = None,
        price: Price | None = None,
        cheaper: Sequence[Provider] = (),
        attended: bool = False,
        sinks_for: Callable[[Session, Sequence[Record]], Sequence[Sink]] = lambda _, __: (),
        edges: Callable[[], Sequence[Member]] = lambda: (),
        prompt: Callable[[Agent], str] = lambda agent: agent.prompt,
        workspace_text: Callable[[], Sequence[Message]] = lambda: (),
        recall: Recall = no_recall,
        approvals: ApprovalStore | None = None,
        defer_commits: bool = False,
        genomes: GenomeSource | None = None,
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
            workspace_text: The messages about the workspace that follow the prompt.
            recall: Finds notes in the memory for a run.
            approvals: Where calls wait for approval; closed when the run ends.
            defer_commits: Wait for the store only before a paid request, before the effect of a
                call, and at the end of a run; tools then wait for the store themselves.
            genomes: The genomes of the agents; every agent is as configured if not given.
        """
        self.store, self.agents, self.edges = store, agents, edges
        self.limits = limits or RunLimits()
        self.genomes: GenomeSource = genomes or ConfiguredGenomes()
        self.ledger: Ledger = ledger or MemoryLedger()
        self.price, self.attended = price, attended
        self.questions = questions or Questions(store.questions)
        self._make_ports, self._prompt, self._sinks_for = make_ports, prompt, sinks_for
        self._workspace_text = workspace_text
        self._recall, self.approvals, self._defer_commits = recall, approvals, defer_commits
        self.cheaper = tuple(cheaper)
        self.subruns: dict[TenantKey, ActiveSubrun] = {}
        """Active sub-runs of all tenants in this process, by tenant and run id."""
        self.running: dict[TenantKey, SessionRun] = {}
        """Active runs of all tenants in this process, by tenant and session id."""

    def of(self, tenant: str) -> Conversations:
        """The sessions of a tenant, with the same agents."""
        if tenant == self.store.tenant:
            return self
        other = copy.copy(self)
        other.store, other.questions = self.store.of(tenant), self.questions.of(tenant)
        return other

    async def open(
        self, agent: str, *, session_id: str = "", owner: str = "", title: str = "", on: str = ""
    ) -> Session:
        """Open a session; the id of an existing session returns that one."""
        found = self.agents.get(agent)
        if found is None:
            raise AgentNotFound(agent, tuple(self.agents))
        self.check_edge(agent, on)
        session_id = session_id or secrets.token_hex(8)
        return await self.store.create(
            Session(
                session_id,
                agent,
                owner,
                title,
                capabilities=found.capabilities,
                on=on,
                genome=await self.genomes.current(agent, self.canary_key(agent, session_id)),
            )
        )

    def canary_key(self, agent: str, session_id: str) -> str:
        """What decides whether a session tries a candidate genome; empty: it never does.

        Candidates are tried by the tenants that the settings of the agent name.
        """
        return session_id if self.store.tenant in self.agents[agent].evolution.tenants else ""

    async def rename(self, session_id: str, title: str) -> Session:
        """Change the title of a session: one line, cut to its limit."""
        found = await session_changes.rename(
            self.store, session_id, one_line(title, MAX_TITLE_CHARS)
        )
        if found is None:
            raise SessionNotFound(session_id)
        return found

    def check_edge(self, agent: str, on: str) -> None:
        """Raise `EdgeNotUsable` if a session of an agent cannot work on an edge."""
        if not on:
            return
        found = self.agents.get(agent)
        if found is not None and found.names_edge and on != found.on:
            raise EdgeNotUsable(on, f"agent {agent!r} works on {found.on!r} only")
        known = [member.agent_id for member in self.edges()]
        if on in (ANY_EDGE, EVERY_EDGE, *known):
            return
        why = "there is no such edge"
        if self.store.tenant == LOCAL_PRINCIPAL.tenant:  # the fleet belongs to this tenant
            why += f"; known edges: {', '.join(known) or 'none'}{did_you_mean(on, known)}"
        raise UnknownEdge(on, why)

    async def move(self, session_id: str, on: str) -> Session:
        """Have the next runs of a session work on another edge; empty is the default edge."""
        session = await self.store.session(session_id)
        if session is not None:
            self.check_edge(session.agent, on)
        found = await session_changes.move(self.store, session_id, on)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def branch(self, session_id: str, at_message: int) -> Session:
        """Create a session with the messages of another one up to and including a number.

        A last reply whose calls are not all answered by then is left out.
        """
        session = await self.store.session(session_id)
        if session is None:
            raise SessionNotFound(session_id)
        numbered = await self.store.messages(session_id, 0, max(0, at_message + 1))
        messages = drop_incomplete_turn([message for _, message in numbered])
        new = replace(session, id=secrets.token_hex(8))
        return await session_changes.branch(self.store, new, messages)

    async def branch_after(self, run_id: str) -> Session:
        """Create a session with the messages that a run of another session ended with."""
        stored = await self.store.run(run_id)
        session = None if stored is None else await self.store.session(stored.session_id)
        if session is None:
            raise RunNotFound(run_id)
        history = fold(await self.store.records(run_id)).history
        new = replace(session, id=secrets.token_hex(8))
        return await session_changes.branch(self.store, new, drop_incomplete_turn(list(history)))

    async def delete(self, session_id: str) -> Sequence[str]:
        """Delete a session, the sessions started from it, and all their runs and records.

        Returns the ids of the deleted sessions, so that other stores can delete their data.
        """
        if await self.store.session(session_id) is None:
            raise SessionNotFound(session_id)
        deleted = await session_changes.delete_session(self.store, session_id)
        if deleted is None:
            raise SessionBusy(session_id, "has an unfinished run; cancel it first")
        if self.approvals is not None:
            await self.approvals.delete_for_runs(deleted.runs, self.store.tenant)
        return deleted.sessions

    async def send(
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
        listed = await self.store.summary(session_id)
        if listed is None:
            raise SessionNotFound(session_id)
        run_id = tenant_run_id(self.store.tenant, run_id or secrets.token_hex(16))
        if listed.last is not None and listed.last.is_open and listed.last.id != run_id:
            raise SessionBusy(session_id, "has an unfinished run; resume or cancel it first")
        stored = await self.store.create_run(run_id, session_id, message)
        async with aclosing(self._watch(listed.session, stored, sinks, deadline)) as records:
            async for record in records:
                yield record

    async def has_unfinished_run(self, session_id: str) -> bool:
        """Whether the last run of a session was interrupted, or waits for a person."""
        listed = await self.store.summary(session_id)
        return listed is not None and listed.last is not None and listed.last.is_open

    async def resume(
        self, session_id: str, *, sinks: Sequence[Sink] = (), deadline: Deadline | None = None
    ) -> AsyncGenerator[Record, None]:
        """Resume the last run of a session that waited for a person or was interrupted."""
        listed = await self.store.summary(session_id)
        if listed is None:
            raise SessionNotFound(session_id)
        if listed.last is None or not listed.last.is_open:
            raise SessionBusy(session_id, "has no unfinished run to resume; send a message")
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
        agent = await self.agent(session)
        run = await self.prepare(
            session, stored, deadline or Deadline(agent.settings.max_seconds), None, None
        )
        async with aclosing(self.drive(run, sinks)) as records:
            async for record in records:
                yield record

    async def drive(
        self, run: SessionRun, sinks: Sequence[Sink] = ()
    ) -> AsyncGenerator[Record, None]:
        """Drive a run; it is in `running` while this lasts."""
        key = (run.session.tenant, run.session.id)
        while (other := self.running.get(key)) is not None:
            if other.state.stop is None:
                raise SessionBusy(
                    run.session.id, "is answering another message; wait for it, or cancel it"
                )
            await other.finished.wait()  # its loop has ended; only cleanup is left
        self.running[key] = run
        try:
            if run.state.started:
                await RunSessions(self, run).resume_subruns()
            async with aclosing(run.records(sinks)) as records:
                async for record in records:
                    yield record
        finally:
            del self.running[key]
            run.finished.set()

    async def agent(self, session: Session, request: RunRequest | None = None) -> Agent:
        """The agent of a session, with the genome of the session, for a run request."""
        found = self.agents.get(session.agent)
        if found is None:
            raise AgentNotFound(session.agent, tuple(self.agents))
        requested = found if request is None else _agent_for(found, request)
        return tune(requested, await self.genomes.find(session.agent, session.genome))

    async def prepare(
        self,
        session: Session,
        stored: StoredRun,
        deadline: Deadline | None,
        parent: SessionRun | None,
        brief: SubSessionRequest | None,
        driver: DriverContext = SOLE_DRIVER,
        loaded: LoadedRun | None = None,
    ) -> SessionRun:
        """Prepare a run to be driven: its ports, its budget, and its state so far.

        Args:
            session: The session of the run.
            stored: The stored run.
            deadline: Its deadline; as its request or its agent says if not given.
            parent: The parent run of a sub-run, which may never do more than that.
            brief: What a sub-run was started with, if it is the first of its session.
            driver: The epoch and the steering messages of its driver.
            loaded: What is stored of it; read if not given.
        """
        tenants = {session.tenant} if parent is None else {session.tenant, parent.session.tenant}
        if tenants != {self.store.tenant}:
            raise SessionNotFound(session.id)  # a run of another tenant is never driven
        loaded = loaded or await self.store.load_run(stored)
        earlier, records = loaded.messages, loaded.records
        request = decode_run_request(loaded.request)
        if loaded.request is not None:
            session = replace(session, on=request.on)
        agent = await self.agent(session, request)
        capabilities = intersect_capabilities(agent.capabilities, session.capabilities)
        family, spent = SubrunTree(self.limits), dict[str, int]()
        if parent is None:
            enter_run_trace(stored.root_run, request.traceparent)
            spent = prior_spend(loaded.usage, self.limits.budget)
        else:
            capabilities, family = (
                intersect_capabilities(capabilities, parent.capabilities),
                parent.tree,
            )
        if records and isinstance(opening := records[0].event, RunStarted):
            state, settings = fold(records), opening.settings
        else:
            history = [message for _, message in earlier]
            messages = await self._opening_messages(agent, session, history, stored, request)
            state, settings = new_run(messages, stored.id), _loop_settings(agent, brief)
        run = SessionRun(
            self.store, session, stored, state, settings,
            deadline or Deadline(agent.settings.max_seconds), family, capabilities,
            seq=last_used_seq(records), stored_messages=len(earlier),
            steering_taken=steering_count(records),
            driver=driver, defer_commits=self._defer_commits, approvals=self.approvals,
            subrun_slots=asyncio.Semaphore(self.limits.max_concurrent_per_run),
        )  # fmt: skip
        run.ports = self._ports(agent, run, parent, spent, request)
        run.budget.restore(records)
        run.sinks = self.sinks_of(session, records)
        return run

    def sinks_of(self, session: Session, records: Sequence[Record]) -> tuple[Sink, ...]:
        """The sinks of a run of a session, given its records so far."""
        return tuple(self._sinks_for(session, records))

    async def _opening_messages(
        self,
        agent: Agent,
        session: Session,
        earlier: list[Message],
        stored: StoredRun,
        request: RunRequest,
    ) -> list[Message]:
        if not earlier and (text := self._prompt(agent)):
            earlier = [SystemMessage(text), *self._workspace_text()]
        asked = UserMessage((TextBlock(stored.message, stored.label), *request.images))
        messages = [mark_hidden_text(asked)]
        if request.messages:
            given = caller_messages(request.messages, trusted=agent.trusts_system_messages)
            return [*earlier, *given, *(messages if request.message else ())]
        return [*earlier, *await self._recall(agent, session, stored), *messages]

    def _ports(
        self,
        agent: Agent,
        run: SessionRun,
        parent: SessionRun | None,
        spent: Amounts,
        request: RunRequest,
    ) -> Ports:
        session = run.session
        dependencies: dict[type, object] = {
            TodoList: StoredTodos(self.store, session.id),
            UserPrompter: self.questions.person(session.id),
            Sessions: RunSessions(self, run),
            History: run.state.history if run.state.started else History(run.state.opening),
        }
        if parent is None and request.workflow_step is not None:
            dependencies[WorkflowStepRef] = request.workflow_step
        ports = self._make_ports(agent, session, dependencies)
        user = session.owner or ports.principal.user
        principal = replace(ports.principal, tenant=session.tenant, user=user)
        run.budget = RunBudget(
            self.ledger,
            run.stored.id,
            budget_of(agent, self.limits.budget),
            BudgetOptions(price=self.price, attended=self.attended),
            principal=principal,
            parent=None if parent is None else parent.budget,
            spent=spent,
        )
        parking = PendingQuestions(self.questions, session.id, ports.approver)
        run.pipeline = pipeline = self._pipeline(run, parent, ports, request, parking)
        provider, cheaper = ports.provider, self.cheaper
        if self._defer_commits:
            provider = with_write_barrier(provider, run.flush)
            cheaper = [with_write_barrier(other, run.flush) for other in cheaper]
        provider = BudgetFallback(provider, run.budget.remaining_share, cheaper)
        steering = run.driver.steering
        made = Ports(provider, pipeline, pipeline.policy, parking, principal, steering=steering)
        allow_nested_calls(made, run.budget)
        callers = CallerCallStore(self.store.questions)
        made = with_caller_tools(made, request.tools, callers, session.id, run.budget)
        return with_reply_options(made, request.reply_options)

    def _pipeline(
        self,
        run: SessionRun,
        parent: SessionRun | None,
        ports: Ports,
        request: RunRequest,
        parking: PendingQuestions,
    ) -> Pipeline:
        """The call pipeline of the agent, narrowed to this run, with its budget."""
        session, base = run.session, Pipeline.of(ports.executor, ports.policy)
        above = None if parent is None else parent.pipeline
        is_deepest = session.depth >= self.limits.max_depth
        names = frozenset[str]() if request.single else session.tools
        inherited = () if above is None else inherited_policies(above, base)
        pipeline = base.with_steps(
            PermittedTools(run.capabilities),
            Permissions(run.capabilities),
            SessionLabels(self.store, SESSION_READING_TOOLS),
            RunTools(above, names, SUBRUN_STARTING_TOOLS if is_deepest else frozenset()),
            *forwarded_tools(base, above, names),
            *((ParentRules(Chain(inherited)),) if inherited else ()),
            parking,
            count_forwarded_calls(base, run.budget),
            BudgetNotice(run.budget),
        )
        narrow_edge_calls(pipeline, run.capabilities)
        return pipeline


def _agent_for(agent: Agent, request: RunRequest) -> Agent:
    """The agent with the model and settings of a run request."""
    settings = request.settings or agent.settings
    if request.single:
        settings = replace(settings, confirm=False)
    return replace(agent, model=request.model or agent.model, settings=settings)


def _loop_settings(agent: Agent, brief: SubSessionRequest | None) -> LoopSettings:
    settings = agent.settings
    if brief is None or brief.max_turns is None:
        return settings
    return replace(settings, max_turns=min(settings.max_turns, brief.max_turns))
