"""Builds the governance of this machine: policies of the call pipelines, budget, audit, traces."""

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
from evoclaw.core.tools import Call, Tool

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.core.events import Record
    from evoclaw.core.ledgers import Ledger
    from evoclaw.core.state import PreparedRun
    from evoclaw.governance.autonomy import Level
    from evoclaw.governance.budget.policy import RunBudget
    from evoclaw.governance.forwarded_calls import ForwardedCallsOf
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.audit.writer import Audit
    from evoclaw.observe.tracing.tracing import Tracing
    from evoclaw.store.databases.database import Database


@dataclass(frozen=True, slots=True)
class Governance:
    """The policies of this machine, and where verdicts and spending are recorded."""

    settings: EvoClawConfig
    stops: Stops
    guards: tuple[Policy, ...]
    """The policies right after stops and tool status: rates, and whether the audit can write."""
    ledger: Ledger
    audit: Audit | None
    agent: str = ""
    forwarded: ForwardedCallsOf | None = None
    """Finds the calls that a call forwards to edges; None where no call forwards."""
    only_reads: Callable[[Call], bool] | None = None
    """Whether a call that is forwarded to edges only reads there."""
    sandboxed: bool = True
    """Whether commands run in a sandbox, here or on the edge."""
    tracing: Tracing | None = None
    """Makes spans of runs, if OTEL_… variables configure an exporter."""

    @property
    def principal(self) -> Principal:
        """On whose behalf runs are made, unless a session names another principal."""
        return Principal(agent=self.agent)

    def rules(
        self,
        level: Level,
        capabilities: frozenset[str],
        workspace: Path | None,
        tools: Callable[[], Sequence[Tool]],
    ) -> tuple[Policy, ...]:
        """The policies of an agent, without its budget.

        Args:
            level: The autonomy of the agent.
            capabilities: What it holds.
            workspace: The folder of relative paths; None if calls run on another machine.
            tools: The tools that the flow policy reads flags from.
        """
        from evoclaw.governance.autonomy import Autonomy
        from evoclaw.governance.flow.policy import Flow
        from evoclaw.governance.network import NetworkPolicy
        from evoclaw.governance.permissions import Permissions, ToolStatus
        from evoclaw.governance.rules.command_rules import command_rules

        settings = self.settings
        status, domains = ToolStatus(settings.policy.off), NetworkPolicy(settings.network)
        commands = command_rules(
            settings.policy.rules,
            settings.data,
            level,
            workspace,
            sandboxed=self.sandboxed and settings.sandbox_settings.confines_all,
        )
        return (
            self.stops,
            status,
            *self._forwarding_guards(),
            Autonomy(level, only_reads=self.only_reads),
            Permissions(capabilities),
            commands,
            domains,
            *self._forwarded_rules(status, commands, domains),
            Flow(settings.flow, tools),
        )

    def _forwarding_guards(self) -> tuple[Policy, ...]:
        """The guards; rates count the tool of an edge that a call forwards to."""
        if self.forwarded is None:
            return self.guards
        from evoclaw.governance.forwarded_calls import ForwardedRates
        from evoclaw.governance.rate_limits import RateLimits

        return tuple(
            ForwardedRates(guard, self.forwarded) if isinstance(guard, RateLimits) else guard
            for guard in self.guards
        )

    def _forwarded_rules(self, *rules: Policy) -> tuple[Policy, ...]:
        """The same policies, for the calls that a call forwards to an edge."""
        if self.forwarded is None:
            return ()
        from evoclaw.core.chain import Chain
        from evoclaw.governance.forwarded_calls import ForwardedCalls

        return (ForwardedCalls(Chain(rules), self.forwarded),)

    def count_forwarded(self, budget: Policy) -> Policy:
        """A budget that charges the forwarded call, not the call that forwards it."""
        if self.forwarded is None:
            return budget
        from evoclaw.governance.forwarded_calls import ForwardedBudget

        return ForwardedBudget(budget, self.forwarded)

    def steps(self) -> tuple[Step, ...]:
        """The steps of every pipeline here that are not policies."""
        from evoclaw.executors.call_steps import DefaultTimeout, MarkHiddenText, TraceCall
        from evoclaw.governance.flow.settings import FlowFlags

        steps: list[Step] = [FlowFlags(self.settings.flow), MarkHiddenText()]
        timeout_ms = self.settings.orchestrator.default_tool_timeout_ms
        if timeout_ms is not None:
            steps.append(DefaultTimeout(timeout_ms / 1000))
        if self.tracing is not None:
            steps.append(TraceCall())
        return tuple(steps)

    def sinks(
        self,
        session: str = "",
        before: Sequence[Record] = (),
        principal: Principal | None = None,
    ) -> tuple[Sink, ...]:
        """The sinks of one run: audit and traces, on behalf of a principal."""
        who = principal or self.principal
        return (*self._audit_sinks(session, before, who), *self._trace_sinks(session, before, who))

    def _audit_sinks(
        self, session: str, before: Sequence[Record], asker: Principal
    ) -> tuple[Sink, ...]:
        if self.audit is None:
            return ()
        from evoclaw.observe.audit.sink import AuditContext

        context = AuditContext(principal=asker, agent_id=self.agent, session=session)
        return (self.audit.sink(context, before=before),)

    def _trace_sinks(
        self, session: str, before: Sequence[Record], asker: Principal
    ) -> tuple[Sink, ...]:
        if self.tracing is None:
            return ()
        from evoclaw.observe.tracing.attributes import TracedRun

        return (self.tracing.sink(TracedRun(asker.agent, session, asker.tenant), before),)

    def shared_sinks(self) -> tuple[Sink, ...]:
        """The sinks that all runs of a server share: audit and traces."""
        traced = () if self.tracing is None else (self.tracing.every_run(self.agent),)
        if self.audit is None:
            return traced
        from evoclaw.observe.audit.sink import PerRunSink

        return (PerRunSink(lambda: self._audit_sinks("", (), self.principal)[0]), *traced)

    def call_budget(self, run_id: str) -> RunBudget:
        """The budget of one call that an MCP client makes."""
        from evoclaw.governance.budget.policy import RunBudget

        return RunBudget(self.ledger, run_id, self.settings.budget, principal=self.principal)

    def run_budget(self, model: str, run: PreparedRun) -> RunBudget:
        """The budget of one run, with what its earlier records spent."""
        from evoclaw.governance.budget.options import BudgetOptions
        from evoclaw.governance.budget.policy import RunBudget
        from evoclaw.wiring.budget import price_for

        terms = BudgetOptions(price=price_for(model), attended=run.attended)
        settings = self.settings.budget
        budget = RunBudget(self.ledger, run.state.run_id, settings, terms, principal=self.principal)
        budget.restore(run.records)
        return budget


@asynccontextmanager
async def open_governance(
    env: Mapping[str, str],
    agent: str = "",
    *,
    long_running: bool = False,
    ledger: Ledger | None = None,
    database: Database | None = None,
) -> AsyncGenerator[Governance]:
    """Open the governance of this machine for the time of the block.

    Args:
        env: Says where the settings are.
        agent: The agent that is governed.
        long_running: Whether this process is a service, which ships the audit to the cold tier.
        ledger: Where spending is counted, if it is open already.
        database: Where calls are counted, if it is open already.
    """
    from evoclaw.config.paths import default_data_folder
    from evoclaw.observe.audit.writer import Recordable, serving_audit
    from evoclaw.observe.tracing.tracing import open_tracing
    from evoclaw.wiring.budget import ledger_for
    from evoclaw.wiring.oversight import open_rate_counts, rate_limits, stops_for
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    async with AsyncExitStack() as stack:
        tracing = await stack.enter_async_context(open_tracing(env, "evoclaw"))
        audit = await stack.enter_async_context(
            serving_audit(default_data_folder(env), settings.audit, env, long_running=long_running)
        )
        if ledger is None:
            ledger = await stack.enter_async_context(ledger_for(settings.budget, env))
        recordable = () if audit is None else (Recordable(audit),)
        counts = await stack.enter_async_context(open_rate_counts(env, database=database))
        guards = (rate_limits(env, counts), *recordable)
        stops = stops_for(env, agent)
        yield Governance(settings, stops, guards, ledger, audit, agent, tracing=tracing)


def quarantine(provider: Provider) -> tuple[Step, Route]:
    """The step that hides untrusted text, and the route of the tool that reads it."""
    from evoclaw.executors.call_steps import Quarantine
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.orchestrator.agents.model_reader import ModelReader
    from evoclaw.tools.untrusted import QUARANTINE_KEY, UntrustedReader, read_untrusted

    executor = LocalExecutor([read_untrusted], given={UntrustedReader: ModelReader(provider)})
    return Quarantine(QUARANTINE_KEY), Route(executor, Place.MODEL)


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
    run: PreparedRun,
    env: Mapping[str, str],
) -> AsyncGenerator[Ports]:
    """The ports of one run, with every policy, step and sink of this machine."""
    from evoclaw.governance.budget.policy import BudgetNotice
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.providers.budget_fallback import BudgetFallback
    from evoclaw.providers.registry import open_provider
    from evoclaw.wiring.pipelines import local_pipeline
    from evoclaw.wiring.settings import provider_options

    async with AsyncExitStack() as stack:
        budget = governance.run_budget(model, run)
        names = governance.settings.orchestrator.cheaper_models
        options = provider_options(governance.settings)
        cheaper = [
            await stack.enter_async_context(open_provider(name, env, options)) for name in names
        ]
        own = [PermittedTools(capabilities), *steps, *governance.steps()]
        all_routes = list(routes)
        if run.quarantine:
            step, route = quarantine(provider)
            own.append(step)
            all_routes.append(route)
        pipeline = local_pipeline().build(all_routes, own)
        rules = governance.rules(level, capabilities, workspace, pipeline.tools)
        pipeline = pipeline.with_steps(
            *rules, governance.count_forwarded(budget), BudgetNotice(budget)
        )
        ports = Ports(
            BudgetFallback(provider, budget.remaining_share, cheaper),
            pipeline,
            pipeline.policy,
            approver,
            governance.principal,
            (budget, *governance.sinks(before=run.records)),
        )
        if any(route.place is Place.EDGE for route in pipeline.routes):
            from evoclaw.orchestrator.fleet.edge_call import allow_nested_calls

            allow_nested_calls(ports, budget)
        yield ports
