"""Builds what the calls of an edge go through: its own tools, rules, budget and audit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.labels import Principal
from evoclaw.core.pipeline import Step
from evoclaw.core.ports import Policy, Ports
from evoclaw.core.routes import Route

if TYPE_CHECKING:
    from evoclaw.config import EdgeConfig
    from evoclaw.edge.added_tools import AddedTools
    from evoclaw.edge.plans import CallAudit
    from evoclaw.edge.tuned_prompts import PromptModel
    from evoclaw.governance.budget.settings import BudgetSettings
    from evoclaw.governance.permissions import NamedTools
    from evoclaw.governance.stops import Stops
    from evoclaw.observe.tracing.tracing import Tracing
    from evoclaw.store.calls.before_images import BeforeImages

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EdgeRuntime:
    """The ports of an edge, and what governs its calls."""

    ports: Ports
    has_model: bool
    call_audit: CallAudit | None
    """Writes calls to the audit of this edge; None if the audit is disabled."""
    stops: Stops
    added: AddedTools | None
    """The tools that the settings add to the built-in ones; None if they add none."""
    model: PromptModel
    """What answers prompts, and with which tools and skills."""

    def skill_tools(self) -> Mapping[str, frozenset[str]]:
        """The skills of this edge, and the tools of each."""
        return {} if self.added is None else self.added.skill_tools()


async def open_edge_runtime(
    config: EdgeConfig,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    tracing: Tracing | None = None,
    images: BeforeImages | None = None,
) -> EdgeRuntime:
    """Build the runtime of an edge; the stack closes it. With `images`, calls can be undone."""
    from evoclaw.edge.plans import CallAudit
    from evoclaw.edge.tuned_prompts import PromptModel
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.observe.audit.sink import AuditContext
    from evoclaw.observe.audit.writer import Recordable, serving_audit
    from evoclaw.wiring.model_tools import model_steps

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
    config.workspace.mkdir(parents=True, exist_ok=True, mode=0o700)
    routes, added = await _routes(config, env, stack, images)
    steps: list[Step] = list(guards)
    if images is not None:
        from evoclaw.edge.undo import KeepBeforeImages

        steps.append(KeepBeforeImages(images))
    ports, has_model = await _ports(config, env, stack, steps, routes)
    if tracing is not None:
        ports = replace(ports, sinks=(*ports.sinks, tracing.every_run(config.agent_id)))
    model = PromptModel(
        tuple(name.strip() for name in config.model.name.split(",")) if has_model else (),
        config.model.max_retries if has_model else None,
        partial(model_steps, named=config.tools.only),
        None if added is None else added.skills,
    )
    return EdgeRuntime(ports, has_model, notes, stops, added, model)


def _stops(config: EdgeConfig, env: Mapping[str, str]) -> Stops:
    """The stops of this machine and those of this edge."""
    from evoclaw.governance.stops import STOPS_FILE_NAME, StopFile, Stops
    from evoclaw.wiring.oversight import stop_file

    return Stops(stop_file(env), StopFile(config.data / STOPS_FILE_NAME), agent=config.agent_id)


async def _ports(
    config: EdgeConfig,
    env: Mapping[str, str],
    stack: AsyncExitStack,
    guards: Sequence[Step],
    routes: Sequence[Route],
) -> tuple[Ports, bool]:
    from evoclaw.executors.call_steps import DefaultTimeout
    from evoclaw.governance.flow.settings import FlowFlags
    from evoclaw.governance.permissions import PermittedTools
    from evoclaw.providers.scripted import Scripted
    from evoclaw.wiring.pipelines import edge_pipeline

    steps: list[Step] = [PermittedTools(config.capabilities), FlowFlags(config.flow)]
    if config.tools.only is not None:
        steps.append(
            _named_tools(
                config.tools.only,
                routes,
                growing=adds_tools(config),
                has_model=bool(config.model.name),
            )
        )
    steps += [*guards, *_rules(config)]
    if config.tools.timeout_ms is not None:
        steps.append(DefaultTimeout(config.tools.timeout_ms / 1000))
    if config.budget is not None:
        steps += await _budget_steps(config, config.budget, stack)
    pipeline = edge_pipeline().build(routes, steps)
    if not config.model.name:
        # Tools need no model; `Scripted` fills the port and is never asked.
        return Ports(Scripted(), pipeline, pipeline.policy), False
    from evoclaw.providers.registry import ProviderOptions, open_provider

    model = config.model
    options = ProviderOptions(
        model.max_retries, calls_in_text=model.calls_in_text, embedded=config.embedded
    )
    provider = await stack.enter_async_context(open_provider(model.name, env, options))
    return Ports(provider, pipeline, pipeline.policy), True


async def _routes(
    config: EdgeConfig, env: Mapping[str, str], stack: AsyncExitStack, images: BeforeImages | None
) -> tuple[list[Route], AddedTools | None]:
    """The routes of an edge: files, commands, web pages, the device, and what is added."""
    from evoclaw.core.ops import ExecOps, FileOps
    from evoclaw.executors.devices import LocalDevice, LocalNotifier
    from evoclaw.executors.local import LocalExecutor
    from evoclaw.executors.tracked_files import TrackedFiles
    from evoclaw.executors.url_guard import UrlGuard
    from evoclaw.executors.web_fetch import WebFetcher
    from evoclaw.governance.network import NetworkPolicy
    from evoclaw.tools.catalogue import RunsOn, tools_on
    from evoclaw.tools.device import DevicePins, Notifier
    from evoclaw.tools.device import DeviceSensors as DeviceOps
    from evoclaw.tools.web import Fetcher
    from evoclaw.wiring.sandboxes import open_sandboxes

    domains = NetworkPolicy(config.network)
    sandboxed = await open_sandboxes(
        config.workspace,
        config.sandbox_settings,
        domains,
        stack,
        data=config.data,
        readable=[*config.read_roots, *program_folders(config)],
    )
    # Camera, pins and screen run fixed programs, so they need no sandbox.
    notifier, device = LocalNotifier(sandboxed.plain), LocalDevice(sandboxed.plain)
    files = TrackedFiles(config.workspace, readable=config.read_roots)
    dependencies: dict[type, object] = {
        FileOps: files,
        Fetcher: WebFetcher(UrlGuard(may=domains.allows, may_address=domains.allows_address)),
        DeviceOps: device,
        DevicePins: device,
        Notifier: notifier,
        **_optional_dependencies(env),
    }
    added, absent = None, set[str]()
    if adds_tools(config):
        from evoclaw.wiring.edge_tools import open_added_tools

        added, replaced = await open_added_tools(config, env, stack, sandboxed, dependencies)
        absent |= replaced
    if not notifier.works:
        absent.add("notify")
    if not device.has_pins:
        absent.add("device_write")
    known = {*dependencies, ExecOps}
    built_in = LocalExecutor(
        [
            bound
            for bound in tools_on(RunsOn.EDGE)
            if bound.name not in absent and bound.dependencies <= known
        ],
        exec=sandboxed.plain,
        given=dependencies,
        exec_for=sandboxed.exec_for,
        sound=True,
    )
    routes = [Route(built_in), *(() if added is None else added.routes)]
    if images is not None:
        from evoclaw.edge.undo import undo_tool

        routes.append(Route(LocalExecutor([undo_tool(images, files)], sound=True)))
    return routes, added


def adds_tools(config: EdgeConfig) -> bool:
    """Whether the settings add anything to the built-in tools."""
    return bool(config.tools.folders or config.tools.packages or config.mcp)


def program_folders(config: EdgeConfig) -> list[Path]:
    """The folders that sandboxed programs of skills must be able to read."""
    import evoclaw

    tools, folders = config.tools, list[Path]()
    if tools.skills_path is not None:
        folders.append(tools.skills_path)
    if tools.paths.bin is not None:
        # The programs of the shipped skill import this package, which may be a checkout.
        folders += [tools.paths.bin.parent, Path(evoclaw.__file__).parent]
    return folders


def _named_tools(
    names: Sequence[str], routes: Sequence[Route], *, growing: bool, has_model: bool
) -> NamedTools:
    """The step of `[tools] only`; a name that no tool can ever have is an error.

    The model of an edge loads skills with a tool that the edge offers to no other caller.
    """
    from evoclaw.core.tools import UNDO_TOOL
    from evoclaw.edge.outputs import TOOL_NAME
    from evoclaw.governance.permissions import NamedTools
    from evoclaw.skills.active import SKILL_TOOL

    tools = [tool for route in routes for tool in route.executor.tools()]
    known = {tool.name for tool in tools}
    if has_model:
        known.add(SKILL_TOOL)
    if unknown := [name for name in names if name not in known]:
        text = (
            f"unknown tool {', '.join(map(repr, unknown))} in [tools] only; "
            f"available tools: {', '.join(sorted(known))}"
        )
        if not growing:
            raise ConfigError(text)
        # A skill, a file or an approval may still add it.
        logger.warning(text)
    writes = any("file_write" in tool.permissions for tool in tools if tool.name in names)
    return NamedTools(frozenset({*names, TOOL_NAME, *([UNDO_TOOL] if writes else [])}))


def _optional_dependencies(env: Mapping[str, str]) -> dict[type, object]:
    """What only some machines have: a search engine, and a library that reads images."""
    from evoclaw.executors.web_search import search_from
    from evoclaw.tools.image import RunModelVision, Vision
    from evoclaw.tools.image_preparation import why_unavailable
    from evoclaw.tools.web import CodeSearcher, WebSearcher

    search = search_from(env)
    found: dict[type, object] = {
        kind: engine
        for kind, engine in ((WebSearcher, search.web), (CodeSearcher, search.code))
        if engine is not None
    }
    # Whether the model of a run sees images is known where the run is driven.
    return found if why_unavailable() else {**found, Vision: RunModelVision(True)}


def permitted_tools(config: EdgeConfig, env: Mapping[str, str]) -> list[str]:
    """The built-in tools that the capabilities of an edge allow, and that every machine has."""
    from evoclaw.core.ops import ExecOps, FileOps
    from evoclaw.core.tools import missing_permissions
    from evoclaw.tools.catalogue import RunsOn, tools_on
    from evoclaw.tools.device import DeviceSensors as DeviceOps
    from evoclaw.tools.web import Fetcher

    known = {FileOps, ExecOps, Fetcher, DeviceOps, *_optional_dependencies(env)}
    return sorted(
        bound.name
        for bound in tools_on(RunsOn.EDGE)
        if bound.dependencies <= known
        and (config.tools.only is None or bound.name in config.tools.only)
        and not missing_permissions(bound.tool, config.capabilities)
    )


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
        command_rules(
            config.policy.rules,
            config.data,
            config.level,
            config.workspace,
            sandboxed=config.sandbox_settings.confines_all,
        ),
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
