"""Governance of this machine: the policies of the call pipelines, the budget, the audit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Step
from evoclaw.core.ports import Approver, Executor, Policy, Ports, Provider, Sink
from evoclaw.core.routes import Place, Route
from evoclaw.core.tools import Tool

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.core.events import Record
    from evoclaw.core.ledgers import Ledger
    from evoclaw.core.state import Begun
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.budget.policy import Budget
    from evoclaw.governance.forwarded import Forwarded
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.writer import Audit
    from evoclaw.observe.tracing.tracing import Tracing
    from evoclaw.store.databases.database import Database


@dataclass(frozen=True, slots=True)
class Governance:
    """The rules of this machine, and where is written down what came of them."""

    settings: EvoClawConfig
    stops: Stops
    guards: tuple[Policy, ...]
    """What comes next, before everything else: rates, and that it can be put on record."""
    ledger: Ledger
    audit: Audit | None
    agent: str = ""
    forwarded: Forwarded | None = None
    """The calls that a call forwards to edges, where it can."""
    sandboxed: bool = True
    """Whether commands run in a sandbox, wherever that is."""
    tracing: Tracing | None = None
    """Makes spans of runs, where somebody asked for that."""

    @property
    def principal(self) -> Principal:
        """On whose behalf runs are made here."""
        return Principal(agent=self.agent)

    def rules(
        self,
        level: Level,
        capabilities: frozenset[str],
        workspace: Path | None,
        tools: Callable[[], Sequence[Tool]],
    ) -> tuple[Policy, ...]:
        """The rules of an agent, but for its budget.

        Args:
            level: How much it may do by itself.
            capabilities: What it holds.
            workspace: The folder that relative paths mean; None where it is another machine's.
            tools: What there is, by the flags that it bears.
        """
        from evoclaw.governance.autonomy import Autonomy
        from evoclaw.governance.flow.policy import Flow
        from evoclaw.governance.network import Domains
        from evoclaw.governance.permissions import Permissions
        from evoclaw.governance.rules.command_rules import command_rules
        from evoclaw.governance.rules.status import ToolStatus

        settings = self.settings
        status, domains = ToolStatus(settings.policy.off), Domains(settings.network)
        commands = command_rules(
            settings.policy.rules, settings.data, level, workspace, sandboxed=self.sandboxed
        )
        return (
            self.stops,
            status,
            *self.guards,
            Autonomy(level),
            Permissions(capabilities),
            commands,
            domains,
            *self._forwarded_rules(status, commands, domains),
            Flow(settings.flow, tools),
        )

    def _forwarded_rules(self, *rules: Policy) -> tuple[Policy, ...]:
        """The same rules for what a call forwards to an edge."""
        if self.forwarded is None:
            return ()
        from evoclaw.core.chain import Chain
        from evoclaw.governance.forwarded import ForwardedCalls

        return (ForwardedCalls(Chain(rules), self.forwarded),)

    def counted(self, budget: Policy) -> Policy:
        """A budget that counts what a call forwards, not the call that forwards it."""
        if self.forwarded is None:
            return budget
        from evoclaw.governance.forwarded import ForwardedBudget

        return ForwardedBudget(budget, self.forwarded)

    def steps(self) -> tuple[Step, ...]:
        """The steps of every pipeline here that are not policies."""
        from evoclaw.executors.hidden_text import MarkHiddenText
        from evoclaw.governance.flow.flags import FlowFlags

        usual = (FlowFlags(self.settings.flow), MarkHiddenText())
        if self.tracing is None:
            return usual
        from evoclaw.executors.trace_step import TraceCall

        return (*usual, TraceCall())

    def sinks(
        self,
        session: str = "",
        before: Sequence[Record] = (),
        principal: Principal | None = None,
    ) -> tuple[Sink, ...]:
        """Who writes down what happens in a run, and on whose behalf."""
        asker = principal or self.principal
        return (*self._audited(session, before, asker), *self._traced(session, before, asker))

    def _audited(
        self, session: str, before: Sequence[Record], asker: Principal
    ) -> tuple[Sink, ...]:
        if self.audit is None:
            return ()
        from evoclaw.observe.audit.sink import AuditContext

        who = AuditContext(principal=asker, agent_id=self.agent, session=session)
        return (self.audit.sink(who, before=before),)

    def _traced(self, session: str, before: Sequence[Record], asker: Principal) -> tuple[Sink, ...]:
        if self.tracing is None:
            return ()
        from evoclaw.observe.tracing.attributes import TracedRun

        return (self.tracing.sink(TracedRun(asker.agent, session, asker.tenant), before),)

    def every_run(self) -> tuple[Sink, ...]:
        """Who writes down what happens in runs that come and go."""
        traced = () if self.tracing is None else (self.tracing.every_run(self.agent),)
        if self.audit is None:
            return traced
        from evoclaw.observe.audit.sink import PerRunSink

        return (PerRunSink(lambda: self._audited("", (), self.principal)[0]), *traced)

    def budget_of(self, run_id: str) -> Budget:
        """What one call may use that no model of ours asks for."""
        from evoclaw.governance.budget.policy import Budget

        return Budget(self.ledger, run_id, self.settings.budget, principal=self.principal)

    def budget(self, model: str, run: Begun) -> Budget:
        """What one run may use."""
        from evoclaw.governance.budget.policy import Budget
        from evoclaw.governance.budget.terms import Terms
        from evoclaw.wiring.budget import price_for

        terms = Terms(price=price_for(model), attended=run.attended)
        settings = self.settings.budget
        budget = Budget(self.ledger, run.state.run_id, settings, terms, principal=self.principal)
        budget.recall(run.records)
        return budget


@asynccontextmanager
async def open_governance(
    env: Mapping[str, str],
    agent: str = "",
    *,
    keeps_on: bool = False,
    ledger: Ledger | None = None,
    database: Database | None = None,
) -> AsyncGenerator[Governance]:
    """The rules of this machine, as long as the block runs.

    Args:
        env: Says where the settings are.
        agent: Who is governed.
        keeps_on: This process stays, and sees to the audit's way to the cold tier.
        ledger: Where spending is counted, if that is open already.
        database: Where calls are counted, if that is open already.
    """
    from evoclaw.observe.audit.writer import Recordable
    from evoclaw.wiring.audit import audit_place, open_audit
    from evoclaw.wiring.budget import ledger_for
    from evoclaw.wiring.oversight import guards, open_counts
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.tracing import open_tracing

    settings = orchestrator_settings(env)
    home, about_audit = audit_place(env)
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(open_tracing(env, "evoclaw"))
        audit = await stack.enter_async_context(
            open_audit(home, about_audit, env, keeps_on=keeps_on)
        )
        if ledger is None:
            ledger = await stack.enter_async_context(ledger_for(settings.budget, env))
        recordable = () if audit is None else (Recordable(audit),)
        counts = await stack.enter_async_context(open_counts(env, database=database))
        stops, rates = guards(env, agent, counts)
        yield Governance(
            settings, stops, (rates, *recordable), ledger, audit, agent, tracing=tracing
        )


def quarantine(provider: Provider) -> tuple[Step, Route]:
    """The step that hides text from outside, and the tool that asks a model about it."""
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.quarantine import Quarantine
    from evoclaw.orchestrator.agents.reading import ModelReader
    from evoclaw.tools.untrusted import KEPT, Reader, read_untrusted

    asking = LocalExecutor([read_untrusted], given={Reader: ModelReader(provider)})
    return Quarantine(KEPT), Route(asking, Place.MODEL)


@asynccontextmanager
async def governed_ports(
    governance: Governance,
    *,
    provider: Provider,
    model: str,
    routes: Sequence[Executor | Route],
    steps: Sequence[Step] = (),
    approver: Approver,
    level: Level,
    capabilities: frozenset[str],
    workspace: Path | None,
    run: Begun,
    env: Mapping[str, str],
) -> AsyncGenerator[Ports]:
    """What one run is given, everything around it in its place."""
    from evoclaw.governance.budget.notices import BudgetNotice
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.providers.thrifty import Thrifty
    from evoclaw.wiring.models import open_provider
    from evoclaw.wiring.pipelines import local_pipeline

    async with AsyncExitStack() as stack:
        budget = governance.budget(model, run)
        names = governance.settings.orchestrator.cheaper_models
        cheaper = [await stack.enter_async_context(open_provider(one, env)) for one in names]
        own = [PermittedTools(capabilities), *steps, *governance.steps()]
        ways = list(routes)
        if run.quarantine:
            step, asking = quarantine(provider)
            own.append(step)
            ways.append(asking)
        pipeline = local_pipeline().build(ways, own)
        rules = governance.rules(level, capabilities, workspace, pipeline.tools)
        pipeline = pipeline.with_steps(*rules, governance.counted(budget), BudgetNotice(budget))
        yield Ports(
            Thrifty(provider, budget.share, cheaper),
            pipeline,
            pipeline.policy,
            approver,
            governance.principal,
            (budget, *governance.sinks(before=run.records)),
        )
