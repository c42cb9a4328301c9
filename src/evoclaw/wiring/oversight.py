"""What people keep agents in check with: approvals, and the emergency stop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.core.ports import Approver
    from evoclaw.governance.approvals import ApprovalSettings
    from evoclaw.governance.rates import Rates
    from evoclaw.governance.stops import StopFile, Stops
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.store.database import Database


@asynccontextmanager
async def open_approvals(
    env: Mapping[str, str],
    *,
    settings: ApprovalSettings | None = None,
    face: Approver | None = None,
    absent: str = "nobody is there to approve it",
    database: Database | None = None,
) -> AsyncGenerator[Approvals]:
    """The approvals of this machine, with whoever is there now."""
    from evoclaw.core.redaction import Redactor, secrets_in
    from evoclaw.orchestrator.people.approvals import Approvals
    from evoclaw.store.approvals import SCHEMA, ApprovalStore
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    async with opened(env, SCHEMA, given=database) as kept:
        store = ApprovalStore(kept)
        await store.tidy()
        redactor = Redactor(secrets_in(env))
        settings = settings or orchestrator_settings(env).approvals
        yield Approvals(store, settings, face=face, redactor=redactor, absent=absent)


def stop_file(env: Mapping[str, str]) -> StopFile:
    """The stops of this machine."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.governance.stops import FILE, StopFile

    return StopFile(default_data_folder(env) / FILE)


def guards(env: Mapping[str, str], agent: str = "") -> tuple[Stops, Rates]:
    """What comes before all other rules: the stops of this machine, and the rates."""
    from evoclaw.config.places import default_data_folder
    from evoclaw.governance.rates import Rates
    from evoclaw.governance.stops import Stops
    from evoclaw.wiring.settings import orchestrator_settings

    settings = orchestrator_settings(env)
    rates = Rates(settings.rates, folder=default_data_folder(env) / "rates")
    # A cage without a way out need not be kept from the network.
    offline = not settings.network.commands and settings.cage.engine != "none"
    return Stops(stop_file(env), agent=agent, shell_offline=offline), rates
