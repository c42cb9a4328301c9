"""Builds what the calls of an edge go through: its own tools, rules, budget and audit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool
from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Step
from evoclaw.core.ports import Executor, Policy, Ports

if TYPE_CHECKING:
    from evoclaw.config import EdgeConfig
    from evoclaw.edge.plans import CallAudit
    from evoclaw.governance.budget.settings import BudgetSettings
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.tracing.tracing import Tracing


@dataclass(frozen=True, slots=True)
class EdgeRuntime:
    """The ports of an edge, and what governs its calls."""

    ports: Ports
    has_model: bool
    call_audit: CallAudit | None
    """Writes calls to the audit of this edge; None if the audit is disabled."""
    stops: Stops


async def open_edge_runtime(
    config: EdgeConfig,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    tracing: Tracing | None = None,
) -> EdgeRuntime:
    """Build the runtime of an edge; the stack closes it."""
    from evoclaw.edge.plans import CallAudit
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.observe.audit.sink import AuditContext
    from evoclaw.observe.audit.writer import Recordable, serving_audit

    stops = _stops(config, env)
    audit = await stack.enter_async_context(
        serving_audit(config.data, config.audit, env, long_running=True)
    )
    guards: tuple[Policy, ...] = (stops, RateLimits(config.rates))
    notes = None
    if audit is not None:
        context = AuditContext(
            principal=Principal(), agent_id=config.agent_id, device=config.agent_id
        )
        guards, notes = (*guards, Recordable(audit)), CallAudit(audit, context)
    ports, has_model = await _ports(config, env, stack, guards)
    if tracing is not None:
        ports = replace(ports, sinks=(*ports.sinks, tracing.every_run(config.agent_id)))
    return EdgeRuntime(ports, has_model, notes, stops)


def _stops(config: EdgeConfig, env: Mapping[str, str]) -> Stops:
    """The stops of this machine and those of this edge."""
    from evoclaw.governance.stops import STOPS_FILE_NAME, StopFile, Stops
    from evoclaw.wiring.oversight import stop_file

    return Stops(stop_file(env), StopFile(config.data / STOPS_FILE_NAME), agent=config.agent_id)


async def _ports(
    config: EdgeConfig, env: Mapping[str, str], stack: AsyncExitStack, guards: tuple[Policy, ...]
) -> tuple[Ports, bool]:
    from evoclaw.governance.flow.settings import FlowFlags
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.providers.registry import open_provider
    from evoclaw.providers.scripted import Scripted
    from evoclaw.wiring.pipelines import edge_pipeline

    config.workspace.mkdir(parents=True, exist_ok=True)
    steps: list[Step] = [PermittedTools(config.capabilities), FlowFlags(config.flow)]
    steps += [*guards, *_rules(config)]
    if config.budget is not None:
        steps += await _budget_steps(config, config.budget, stack)
    pipeline = edge_pipeline().build([await _executor(config, stack)], steps)
    if not config.model.name:
        # Tools need no model; `Scripted` fills the port and is never asked.
        return Ports(Scripted(), pipeline, pipeline.policy), False
    provider = await stack.enter_async_context(open_provider(config.model.name, env))
    return Ports(provider, pipeline, pipeline.policy), True


async def _executor(config: EdgeConfig, stack: AsyncExitStack) -> Executor:
    """The executor of an edge: files, commands, web pages and the device itself."""
    from evoclaw.executors.devices import LocalDevice, LocalNotifier
    from evoclaw.executors.files import LocalFiles
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.executors.web_fetch import WebFetcher
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.tools.device import DeviceSensors as DeviceOps
    from evoclaw.tools.device import Notifier
    from evoclaw.tools.web import Fetcher
    from evoclaw.wiring.sandboxes import open_sandboxes

    domains = NetworkPolicy(config.network)
    sandboxed = await open_sandboxes(
        config.workspace, config.sandbox_settings, domains, stack, data=config.data
    )
    # Camera, pins and screen run fixed programs, so they need no sandbox.
    notifier, device = LocalNotifier(sandboxed.plain), LocalDevice(sandboxed.plain)
    dependencies: dict[type, object] = {
        Fetcher: WebFetcher(UrlGuard(may=domains.allows)),
        DeviceOps: device,
        Notifier: notifier,
    }
    return LocalExecutor(
        _tools(config, notifies=notifier.works),
        files=LocalFiles(config.workspace),
        exec=sandboxed.plain,
        given=dependencies,
        exec_for=sandboxed.exec_for,
        sound=True,
    )


def _tools(config: EdgeConfig, *, notifies: bool) -> tuple[BoundTool, ...]:
    from evoclaw.tools.catalogue import RunsOn, entries_on, with_program
    from evoclaw.tools.device import device, notify
    from evoclaw.tools.sets import select

    built_in = with_program(entry.load() for entry in entries_on(RunsOn.EDGE))
    tools = (*built_in, device, *((notify,) if notifies else ()))
    names = config.tools.only
    return tools if names is None else select(tools, names, setting="[tools] only")


def _rules(config: EdgeConfig) -> tuple[Policy, ...]:
    from evoclaw.governance.autonomy import Autonomy
    from evoclaw.governance.flow.edge import EdgeFlow
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.governance.permissions import Permissions, ToolStatus
    from evoclaw.governance.rules.command_rules import command_rules

    return (
        ToolStatus(config.policy.off),
        Autonomy(config.level),
        Permissions(config.capabilities),
        command_rules(config.policy.rules, config.data, config.level, config.workspace),
        NetworkPolicy(config.network),
        EdgeFlow(config.flow),
    )


async def _budget_steps(
    config: EdgeConfig, settings: BudgetSettings, stack: AsyncExitStack
) -> list[Step]:
    """The steps that limit what this device does, across callers and restarts."""
    from evoclaw.edge.outputs import TOOL_NAME
    from evoclaw.governance.budget.device import DeviceBudget, MeterDevice
    from evoclaw.store.governance.ledger import StoredLedger

    opened = StoredLedger.open_file(
        config.data / "budget.db", durable=bool(settings.actions), exclusive=True
    )
    budget = DeviceBudget(await stack.enter_async_context(await opened), settings)
    return [budget, MeterDevice(budget, free=frozenset({TOOL_NAME}))]
