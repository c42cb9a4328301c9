"""Builds what limits agents: approvals, emergency stops and rates."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver
    from evoclaw.governance.approvals import ApprovalSettings
    from evoclaw.governance.rate_limits import RateLimits, SharedRateCounts
    from evoclaw.governance.shared_stops import StopRegistry
    from evoclaw.governance.stops import StopFile, Stops
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.store.databases.database import Database


@asynccontextmanager
async def open_approvals(
    env: Mapping[str, str],
    *,
    settings: ApprovalSettings | None = None,
    face: Approver | None = None,
    absent: str = "no one is available to approve it",
) -> AsyncGenerator[CallApprovals]:
    """The approvals of this machine; `face` answers them, if a user is present."""
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import CallApprovals
    from evoclaw.store.governance.approvals import SCHEMA, ApprovalStore
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    async with connect_database(env, SCHEMA) as database:
        store = ApprovalStore(database)
        await store.prune()
        redactor = Redactor(secrets_in(env))
        settings = settings or orchestrator_settings(env).approvals
        yield CallApprovals(
            store, settings, local_approver=face, redactor=redactor, absence_reason=absent
        )


def stop_file(env: Mapping[str, str]) -> StopFile:
    """The stops of this machine."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.governance.stops import STOPS_FILE_NAME, StopFile

    return StopFile(default_data_folder(env) / STOPS_FILE_NAME)


async def known_agent_names(env: Mapping[str, str]) -> frozenset[str]:
    """The names that a stop of an agent can mean: agents of the settings, and edges."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.orchestrator.agents.definitions import agents_of
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import open_devices

    settings = orchestrator_settings(env)
    edges = default_data_folder(env) / "edge"
    own = [folder.name for folder in edges.iterdir()] if edges.is_dir() else []
    async with open_devices(env) as devices:
        joined = [device.agent_id for device in devices.all()]
    return frozenset({*agents_of(settings.agents, settings.run_defaults), *own, *joined})


def stop_files(env: Mapping[str, str]) -> tuple[StopFile, ...]:
    """The stops that runs obey: of this machine, and of a shared PostgreSQL."""
    from evoclaw.wiring.settings import orchestrator_settings

    own = stop_file(env)
    return (own, _shared_stop_file(own)) if orchestrator_settings(env).store.url else (own,)


def _shared_stop_file(own: StopFile) -> StopFile:
    from evoclaw.governance.shared_stops import SHARED_STOPS_FILE_NAME
    from evoclaw.governance.stops import StopFile

    return StopFile(own.path.with_name(SHARED_STOPS_FILE_NAME))


def stop_board(env: Mapping[str, str], database: Database) -> StopRegistry:
    """The board that puts and releases stops, for a process that has the store open."""
    from evoclaw.governance.shared_stops import StopRegistry
    from evoclaw.store.governance.stops import StopStore
    from evoclaw.wiring.settings import orchestrator_settings

    own = stop_file(env)
    if not orchestrator_settings(env).store.url:
        return StopRegistry(own)
    return StopRegistry(own, _shared_stop_file(own), StopStore(database))


@asynccontextmanager
async def open_stops(env: Mapping[str, str]) -> AsyncGenerator[StopRegistry]:
    """The same for any other process: an unreachable store does not prevent a local stop."""
    from evoclaw.core.errors import EvoClawError
    from evoclaw.governance.shared_stops import StopRegistry
    from evoclaw.store.governance.stops import SCHEMA
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    own = stop_file(env)
    if not orchestrator_settings(env).store.url:
        yield StopRegistry(own)
        return
    async with AsyncExitStack() as stack:
        try:
            board = stop_board(env, await stack.enter_async_context(connect_database(env, SCHEMA)))
            await board.refresh()
        except EvoClawError as problem:
            board = StopRegistry(own, _shared_stop_file(own), unreachable=str(problem))
        yield board


@asynccontextmanager
async def open_rate_counts(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[SharedRateCounts | None]:
    """The rate counts that orchestrators share in PostgreSQL; None with SQLite.

    Args:
        env: Says where the settings of the store are.
        database: The connection, if this process has one: then the executor waits for the disk
            before a call, and the count does not.
    """
    from evoclaw.store.governance.rates import SCHEMA, RateStore
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    if not orchestrator_settings(env).store.url:
        yield None
        return
    async with connect_database(env, SCHEMA, existing=database, durable=False) as connected:
        yield RateStore(connected, wait=database is None)


def stops_for(env: Mapping[str, str], agent: str = "") -> Stops:
    """The stops that the calls of an agent on this machine obey."""
    from evoclaw.governance.stops import Stops
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    # A sandbox without egress needs no network stop.
    offline = not settings.network.commands and settings.sandbox_settings.engine != "none"
    return Stops(*stop_files(env), agent=agent, shell_offline=offline)


def rate_limits(env: Mapping[str, str], counts: SharedRateCounts | None) -> RateLimits:
    """The rates of this machine, or of all orchestrators that share counts."""
    from evoclaw.config.paths import default_data_folder
    from evoclaw.governance.rate_limits import RateLimits
    from evoclaw.wiring.settings import orchestrator_settings

    rates = orchestrator_settings(env).rates
    return RateLimits(rates, folder=default_data_folder(env) / "rates", counts=counts)
