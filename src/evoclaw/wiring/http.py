"""Builds the HTTP service of `evoclaw up`: access tokens and the dependencies of the API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from evoclaw.api.dependencies import ApiDependencies
    from evoclaw.api.settings import ServerSettings
    from evoclaw.core.agent import Agent
    from evoclaw.orchestrator.agents.policy_explainer import PolicyExplainer
    from evoclaw.orchestrator.people.access import AccessControl, ConfiguredToken
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.runtime import Runtime

API_LOGIN_FILE = "api.json"
"""In the data folder: `evoclaw up` writes address and token of the service, for this user."""


@asynccontextmanager
async def serving_http(
    runtime: Runtime, settings: ServerSettings, env: Mapping[str, str]
) -> AsyncGenerator[str]:
    """Serve the HTTP API while the block runs; yields its address."""
    from evoclaw.api.app import create_app
    from evoclaw.api.server import serving
    from evoclaw.orchestrator.people.access import ConfiguredToken, TokenScope
    from evoclaw.transport.broker_accounts import write_private

    own = ConfiguredToken(
        "this-machine", secrets.token_urlsafe(32), scopes=frozenset({TokenScope.EVERYTHING})
    )
    app = create_app(
        _api_dependencies(
            runtime, settings, access_for(runtime.stores.database, settings, own), env
        )
    )
    async with serving(app, settings) as url:
        login_file = runtime.home / API_LOGIN_FILE
        login = {"url": url, "token": own.secret}
        if settings.tls_cert is not None:
            login["certificate"] = str(settings.tls_cert)
        write_private(login_file, msgspec.json.encode(login))
        try:
            yield url
        finally:
            login_file.unlink(missing_ok=True)


@asynccontextmanager
async def open_access(env: Mapping[str, str]) -> AsyncGenerator[AccessControl]:
    """The access tokens of this machine, also while the service is down."""
    from evoclaw.store.governance.tokens import SCHEMA
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database

    async with connect_database(env, SCHEMA) as database:
        yield access_for(database, orchestrator_settings(env).server)


def access_for(
    database: Database, settings: ServerSettings, *own: ConfiguredToken
) -> AccessControl:
    """Authentication: stored tokens, configured tokens, and JWTs of another issuer."""
    from evoclaw.orchestrator.people.access import AccessControl
    from evoclaw.orchestrator.people.jwt_access import JwtVerifier
    from evoclaw.store.governance.tokens import TokenStore

    signed = None if settings.jwt is None else JwtVerifier(settings.jwt)
    fixed = (*own, *(token.read() for token in settings.tokens))
    return AccessControl(TokenStore(database), configured=fixed, external=signed)


def policy_explainer(run_factory: RunFactory, agents: Mapping[str, Agent]) -> PolicyExplainer:
    """Explains the policies of the runs that a factory builds."""
    from evoclaw.orchestrator.agents.policy_explainer import GovernanceSettings, PolicyExplainer
    from evoclaw.wiring.pipelines import edge_pipeline, service_pipeline

    def settings() -> GovernanceSettings:
        found = run_factory.governance.settings
        return GovernanceSettings(
            found.policy, found.flow, found.network, found.rates, found.sandbox_settings
        )

    return PolicyExplainer(
        agents=agents,
        tools=run_factory.tools,
        policies=run_factory.policies,
        settings=settings,
        pipelines=(service_pipeline(), edge_pipeline()),
        forwarded=run_factory.governance.forwarded,
    )


def _api_dependencies(
    runtime: Runtime, settings: ServerSettings, access: AccessControl, env: Mapping[str, str]
) -> ApiDependencies:
    from evoclaw.api.dependencies import ApiDependencies, ignore_refusal
    from evoclaw.api.routes.channels import channel_routes
    from evoclaw.dashboard.static_files import dashboard_routes
    from evoclaw.observe.audit.service import AuditService
    from evoclaw.orchestrator.channels.webhooks import WebhookChannel
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.orchestrator.overview.readiness import readiness_checks
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.store.metrics.store import MetricsStore
    from evoclaw.wiring.oversight import stop_board
    from evoclaw.wiring.pairing import edge_pairing

    run_factory, writer = runtime.run_factory, runtime.governance.audit
    webhooks = [channel for channel in runtime.channels if isinstance(channel, WebhookChannel)]
    audit = None if writer is None else AuditService(writer, runtime.home, env)
    checks = readiness_checks(
        runtime.stores.database,
        runtime.home,
        runtime.orchestrator,
        lambda: runtime.providers.problem(runtime.default_agent.model),
    )

    async def metrics() -> bytes:
        await runtime.gauges.refresh(checks)
        return runtime.metrics.render()

    return ApiDependencies(
        access=access,
        settings=settings,
        runs=runtime.runs,
        conversations=runtime.conversations,
        approvals=runtime.approvals,
        orchestrator=runtime.orchestrator,
        devices=runtime.stores.devices,
        pairing=edge_pairing(env),
        ledger=runtime.governance.ledger,
        audit=audit,
        tools=lambda: run_factory.tools(runtime.default_agent),
        unavailable_tools=lambda: run_factory.toolbox.unavailable,
        skills=run_factory.toolbox.skill_registry,
        stops=stop_board(env, runtime.stores.database),
        canvases=run_factory.canvases,
        policies=policy_explainer(run_factory, runtime.agents),
        receipts=ReceiptArchive(runtime.stores.receipts, runtime.stores.commands),
        memory=runtime.memory,
        workflows=runtime.workflows,
        metrics=metrics,
        on_response=runtime.metrics.http,
        metrics_reader=MetricsReader(MetricsStore(runtime.stores.database)),
        checks=checks,
        on_refused=ignore_refusal if audit is None else audit.record_refusal,
        extra_routes=[*channel_routes(runtime.channel_dispatcher, webhooks), *dashboard_routes()],
    )
