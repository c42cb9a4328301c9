"""Builds what limits agents: approvals, emergency stops and rates."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver
    from evoclaw.governance.approvals import ApprovalSettings
    from evoclaw.governance.rates import Counts, Rates
    from evoclaw.governance.shared_stops import StopBoard
    from evoclaw.governance.stops import StopFile, Stops
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.store.databases.database import Database


@asynccontextmanager
async def open_approvals(
    env: Mapping[str, str],
    *,
    settings: ApprovalSettings | None = None,
    face: Approver | None = None,
    absent: str = "nobody is there to approve it",
    database: Database | None = None,
) -> AsyncGenerator[Approvals]:
    """The approvals of this machine; `face` answers them, if a user is present."""
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.store.governing.approvals import SCHEMA, ApprovalStore
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    async with opened(env, SCHEMA, given=database) as connected:
        store = ApprovalStore(connected)
        await store.tidy()
        redactor = Redactor(secrets_in(env))
        settings = settings or orchestrator_settings(env).approvals
        yield Approvals(store, settings, face=face, redactor=redactor, absent=absent)


def stop_file(env: Mapping[str, str]) -> StopFile:
    """The stops of this machine."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.governance.stops import FILE, StopFile

    return StopFile(default_data_folder(env) / FILE)


def stop_files(env: Mapping[str, str]) -> tuple[StopFile, ...]:
    """The stops that runs obey: of this machine, and of a shared PostgreSQL."""
    from evoclaw.wiring.settings import orchestrator_settings

    own = stop_file(env)
    return (own, _mirror(own)) if orchestrator_settings(env).store.url else (own,)


def _mirror(own: StopFile) -> StopFile:
    from evoclaw.governance.shared_stops import FILE
    from evoclaw.governance.stops import StopFile

    return StopFile(own.path.with_name(FILE))


def stop_board(env: Mapping[str, str], database: Database) -> StopBoard:
    """The board that puts and releases stops, for a process that has the store open."""
    from evoclaw.governance.shared_stops import StopBoard
    from evoclaw.store.governing.stops import StopStore
    from evoclaw.wiring.settings import orchestrator_settings

    own = stop_file(env)
    if not orchestrator_settings(env).store.url:
        return StopBoard(own)
    return StopBoard(own, _mirror(own), StopStore(database))


@asynccontextmanager
async def open_stops(env: Mapping[str, str]) -> AsyncGenerator[StopBoard]:
    """The same for any other process: an unreachable store does not prevent a local stop."""
    from evoclaw.core.errors import EvoClawError
    from evoclaw.governance.shared_stops import StopBoard
    from evoclaw.store.governing.stops import SCHEMA
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    own = stop_file(env)
    if not orchestrator_settings(env).store.url:
        yield StopBoard(own)
        return
    async with AsyncExitStack() as stack:
        try:
            board = stop_board(env, await stack.enter_async_context(opened(env, SCHEMA)))
            await board.look()
        except EvoClawError as problem:
            board = StopBoard(own, _mirror(own), away=str(problem))
        yield board


@asynccontextmanager
async def open_counts(
    env: Mapping[str, str], *, database: Database | None = None
) -> AsyncGenerator[Counts | None]:
    """The rate counts that orchestrators share in PostgreSQL; None beside SQLite.

    Args:
        env: Says where the settings of the store are.
        database: The connection, if this process has one: then the executor waits for the disk
            before a call, and the count does not.
    """
    from evoclaw.store.governing.rates import SCHEMA, RateCounts
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    if not orchestrator_settings(env).store.url:
        yield None
        return
    async with opened(env, SCHEMA, given=database, durable=False) as connected:
        yield RateCounts(connected, wait=database is None)


def guards(
    env: Mapping[str, str], agent: str = "", counts: Counts | None = None
) -> tuple[Stops, Rates]:
    """The first policies of a pipeline: the stops of this machine, and the rates."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.governance.rates import Rates
    from evoclaw.governance.stops import Stops
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    rates = Rates(settings.rates, folder=default_data_folder(env) / "rates", counts=counts)
    # A sandbox without egress needs no network stop.
    offline = not settings.network.commands and settings.sandbox_settings.engine != "none"
    return Stops(*stop_files(env), agent=agent, shell_offline=offline), rates
