"""The HTTP side of `evoclaw up`: who may come in, what is shown, and where it listens."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.api.needs import Check, Parts
    from evoclaw.api.settings import ServerSettings, TokenFile
    from evoclaw.orchestrator.people.access import Access, FixedToken
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.brain import Brain

SHORTEST = 32
"""Characters of a token that somebody else made."""
LITTLE = 1 << 20
"""Bytes left on the disk, with less of which no new run should be sent here."""
DOOR = "api.json"
"""Where `evoclaw up` says how it is reached: for whoever may read this user's files."""


@asynccontextmanager
async def serving_http(
    brain: Brain, settings: ServerSettings, env: Mapping[str, str]
) -> AsyncGenerator[str]:
    """Serve while the block runs; gives the address."""
    from evoclaw.api.app import create_app
    from evoclaw.api.serving import serving
    from evoclaw.orchestrator.people.access import FixedToken, Scope
    from evoclaw.transport.broker_accounts import write_private

    own = FixedToken(
        "this-machine", secrets.token_urlsafe(32), scopes=frozenset({Scope.EVERYTHING})
    )
    app = create_app(_parts(brain, settings, access_for(brain.stored.database, settings, own), env))
    async with serving(app, settings) as url:
        door = brain.home / DOOR
        left = {"url": url, "token": own.secret}
        if settings.tls_cert is not None:
            left["certificate"] = str(settings.tls_cert)
        write_private(door, msgspec.json.encode(left))
        try:
            yield url
        finally:
            door.unlink(missing_ok=True)


@asynccontextmanager
async def open_access(env: Mapping[str, str]) -> AsyncGenerator[Access]:
    """The tokens of this machine, whether the service is up or not."""
    from evoclaw.store.governing.tokens import SCHEMA
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    async with opened(env, SCHEMA) as database:
        yield access_for(database, orchestrator_settings(env).server)


def access_for(database: Database, settings: ServerSettings, *own: FixedToken) -> Access:
    """Who may come in: tokens that were made here, configured ones, and others' signed ones."""
    from evoclaw.orchestrator.people.access import Access
    from evoclaw.orchestrator.people.jwt_access import SignedTokens
    from evoclaw.store.governing.tokens import TokenStore

    signed = None if settings.jwt is None else SignedTokens(settings.jwt)
    fixed = (*own, *(_configured(one) for one in settings.tokens))
    return Access(TokenStore(database), fixed=fixed, others=signed)


def _configured(token: TokenFile) -> FixedToken:
    """A token that is kept in a file of the owner's."""
    from evoclaw.orchestrator.people.access import FixedToken

    try:
        if token.file.stat().st_mode & 0o077:
            raise ConfigError(f"others can read {token.file}: chmod go= {token.file}")
        secret = token.file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read the token in {token.file}: {problem}") from None
    if len(secret) < SHORTEST:
        raise ConfigError(f"the token in {token.file} must have at least {SHORTEST} characters")
    return FixedToken(token.name, secret, token.tenant, token.user, frozenset(token.scopes))


def _parts(brain: Brain, settings: ServerSettings, access: Access, env: Mapping[str, str]) -> Parts:
    from evoclaw.api.needs import Parts
    from evoclaw.api.webhooks import channel_routes
    from evoclaw.dashboard.files import page_routes
    from evoclaw.orchestrator.channels.webhooks import Webhook
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.store.metrics.store import MetricsStore
    from evoclaw.wiring.oversight import stop_board
    from evoclaw.wiring.policies import ShownPolicies
    from evoclaw.wiring.showing import (
        ShownAudit,
        ShownCanvases,
        ShownDevices,
        ShownSkills,
        ShownStops,
        ShownTools,
        refusals_to,
    )

    equipment, audit, memory = brain.equipment, brain.governance.audit, brain.memory
    hooks = [one for one in brain.channels if isinstance(one, Webhook)]
    about_audit = brain.settings.audit
    return Parts(
        access=access,
        settings=settings,
        runs=brain.runs,
        talks=brain.talks,
        approvals=brain.approvals,
        orchestrator=brain.orchestrator,
        devices=ShownDevices(brain.stored.devices, env),
        ledger=brain.governance.ledger,
        audit=None if audit is None else ShownAudit(audit, brain.home, about_audit, env),
        tools=ShownTools(lambda: equipment.tools(brain.default), lambda: equipment.box.absent),
        skills=ShownSkills(equipment.box.shelf),
        stops=ShownStops(stop_board(env, brain.stored.database)),
        canvases=ShownCanvases(equipment.canvases),
        policies=ShownPolicies(equipment, brain.agents),
        receipts=ReceiptArchive(brain.stored.receipts, brain.stored.commands),
        memory=None if memory is None else memory.of,
        workflows=brain.workflows,
        metrics=partial(_metrics, brain),
        counted=brain.metrics.http,
        figures=MetricsReader(MetricsStore(brain.stored.database)),
        checks=_checks(brain),
        refused=refusals_to(audit),
        routes=[*channel_routes(brain.desk, hooks), *page_routes()],
    )


async def _metrics(brain: Brain) -> bytes:
    """What Prometheus reads, as things stand now."""
    await brain.gauges.refresh(_checks(brain))
    return brain.metrics.render()


def _checks(brain: Brain) -> dict[str, Check]:
    """The parts without which nothing can be done."""

    async def store() -> str:
        await brain.stored.database.write(lambda connection: None)
        # A commit of nothing also works where there is no room for anything.
        room = shutil.disk_usage(brain.home).free >= LITTLE
        return "" if room else f"the disk of {brain.home} is full"

    async def broker() -> str:
        return "" if brain.orchestrator.reception.is_connected else "the broker is away"

    async def provider() -> str:
        return brain.providers.problem(brain.default.model)

    return {"store": store, "broker": broker, "provider": provider}
