"""Builds the HTTP service of `evoclaw up`: access tokens, API dependencies and readiness checks."""

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
"""Characters of a configured token."""
LITTLE = 1 << 20
"""Free bytes on disk below which the store is not ready."""
DOOR = "api.json"
"""In the data folder: `evoclaw up` writes address and token of the service, for this user."""


@asynccontextmanager
async def serving_http(
    brain: Brain, settings: ServerSettings, env: Mapping[str, str]
) -> AsyncGenerator[str]:
    """Serve the HTTP API while the block runs; yields its address."""
    from evoclaw.api.app import create_app
    from evoclaw.api.serving import serving
    from evoclaw.orchestrator.people.access import FixedToken, Scope
    from evoclaw.transport.broker_accounts import write_private

    own = FixedToken(
        "this-machine", secrets.token_urlsafe(32), scopes=frozenset({Scope.EVERYTHING})
    )
    app = create_app(_parts(brain, settings, access_for(brain.stored.database, settings, own), env))
    async with serving(app, settings) as url:
        login_file = brain.home / DOOR
        login = {"url": url, "token": own.secret}
        if settings.tls_cert is not None:
            login["certificate"] = str(settings.tls_cert)
        write_private(login_file, msgspec.json.encode(login))
        try:
            yield url
        finally:
            login_file.unlink(missing_ok=True)


@asynccontextmanager
async def open_access(env: Mapping[str, str]) -> AsyncGenerator[Access]:
    """The access tokens of this machine, also while the service is down."""
    from evoclaw.store.governing.tokens import SCHEMA
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import opened

    async with opened(env, SCHEMA) as database:
        yield access_for(database, orchestrator_settings(env).server)


def access_for(database: Database, settings: ServerSettings, *own: FixedToken) -> Access:
    """Authentication: stored tokens, configured tokens, and JWTs of another issuer."""
    from evoclaw.orchestrator.people.access import Access
    from evoclaw.orchestrator.people.jwt_access import SignedTokens
    from evoclaw.store.governing.tokens import TokenStore

    signed = None if settings.jwt is None else SignedTokens(settings.jwt)
    fixed = (*own, *(_configured(token) for token in settings.tokens))
    return Access(TokenStore(database), fixed=fixed, others=signed)


def _configured(token: TokenFile) -> FixedToken:
    """Read a configured token from its file."""
    from evoclaw.orchestrator.people.access import FixedToken

    try:
        if token.file.stat().st_mode & 0o077:
            raise ConfigError(f"other users can read {token.file}; run `chmod go= {token.file}`")
        secret = token.file.read_text().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read the token in {token.file}: {problem}") from None
    if len(secret) < SHORTEST:
        raise ConfigError(
            f"the token in {token.file} is too short: it needs at least {SHORTEST} characters"
        )
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

    run_factory, audit, memory = brain.equipment, brain.governance.audit, brain.memory
    webhooks = [channel for channel in brain.channels if isinstance(channel, Webhook)]
    audit_settings = brain.settings.audit
    return Parts(
        access=access,
        settings=settings,
        runs=brain.runs,
        talks=brain.talks,
        approvals=brain.approvals,
        orchestrator=brain.orchestrator,
        devices=ShownDevices(brain.stored.devices, env),
        ledger=brain.governance.ledger,
        audit=None if audit is None else ShownAudit(audit, brain.home, audit_settings, env),
        tools=ShownTools(lambda: run_factory.tools(brain.default), lambda: run_factory.box.absent),
        skills=ShownSkills(run_factory.box.shelf),
        stops=ShownStops(stop_board(env, brain.stored.database)),
        canvases=ShownCanvases(run_factory.canvases),
        policies=ShownPolicies(run_factory, brain.agents),
        receipts=ReceiptArchive(brain.stored.receipts, brain.stored.commands),
        memory=None if memory is None else memory.of,
        workflows=brain.workflows,
        metrics=partial(_metrics, brain),
        counted=brain.metrics.http,
        figures=MetricsReader(MetricsStore(brain.stored.database)),
        checks=_checks(brain),
        refused=refusals_to(audit),
        routes=[*channel_routes(brain.desk, webhooks), *page_routes()],
    )


async def _metrics(brain: Brain) -> bytes:
    """The metrics in the format of Prometheus."""
    await brain.gauges.refresh(_checks(brain))
    return brain.metrics.render()


def _checks(brain: Brain) -> dict[str, Check]:
    """The readiness checks: each returns a problem, or an empty text."""

    async def store() -> str:
        await brain.stored.database.write(lambda connection: None)
        # An empty commit also succeeds on a full disk.
        free = shutil.disk_usage(brain.home).free
        return "" if free >= LITTLE else f"the disk of {brain.home} is full: free some space"

    async def broker() -> str:
        return "" if brain.orchestrator.reception.is_connected else "the broker is unreachable"

    async def provider() -> str:
        return brain.providers.problem(brain.default.model)

    return {"store": store, "broker": broker, "provider": provider}
