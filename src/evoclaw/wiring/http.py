"""Builds the HTTP service of `evoclaw up`: access tokens and the dependencies of the API."""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from evoclaw.api.dependencies import ApiDependencies
    from evoclaw.api.settings import ServerSettings
    from evoclaw.core.agent import Agent
    from evoclaw.orchestrator.agents.policy_explainer import PolicyExplainer
    from evoclaw.orchestrator.people.access import AccessControl, ConfiguredToken
    from evoclaw.store.databases.database import Database
    from evoclaw.wiring.run_factory import RunFactory
    from evoclaw.wiring.runtime import Runtime

logger = logging.getLogger(__name__)
MACHINE_TOKEN_FILE = "api.token"
"""In the data folder: the token of this machine's user, which outlives restarts."""
MACHINE_TOKEN_CHARS = 43
"""256 random bits in base64url."""
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
    from evoclaw.transport.private_files import write_private

    own = ConfiguredToken(
        "this-machine", machine_token(runtime.home), scopes=frozenset({TokenScope.EVERYTHING})
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


def machine_token(home: Path) -> str:
    """The token of this machine's user: the same after a restart, so that people stay logged in.

    A file that others could have read or written is replaced. Delete it to log everyone out who
    uses the token, with the next start.
    """
    from evoclaw.transport.private_files import write_private

    path = home / MACHINE_TOKEN_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            private = status.st_uid == os.getuid() and not status.st_mode & 0o077
            text = file.read(MACHINE_TOKEN_CHARS + 1) if stat.S_ISREG(status.st_mode) else b""
        if private and re.fullmatch(rb"[A-Za-z0-9_-]{%d}" % MACHINE_TOKEN_CHARS, text):
            return text.decode()
        logger.warning("%s is not a private file of this user: a new token replaces it", path)
    except FileNotFoundError:
        pass  # the first start
    except OSError as problem:
        logger.warning("cannot read %s (%s): a new token replaces it", path, problem.strerror)
    token = secrets.token_urlsafe(32)
    write_private(path, token.encode())
    return token


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


def image_problem_of(runtime: Runtime) -> Callable[[str, str], str]:
    """Says why an agent, with a model that replaces its own, cannot see images."""

    def image_problem(name: str, model: str) -> str:
        agent = runtime.agents.get(name, runtime.default_agent)
        changed = msgspec.structs.replace(agent, model=model) if model else agent
        return runtime.run_factory.image_problem(changed)

    return image_problem


def _api_dependencies(
    runtime: Runtime, settings: ServerSettings, access: AccessControl, env: Mapping[str, str]
) -> ApiDependencies:
    from evoclaw.api.dependencies import ApiDependencies, ignore_refusal
    from evoclaw.api.routes.channels import channel_routes, chat_channel_routes
    from evoclaw.api.routes.notifications import notification_routes
    from evoclaw.config.toml_edit import update_values
    from evoclaw.dashboard.static_files import dashboard_routes
    from evoclaw.observe.audit.service import AuditService
    from evoclaw.orchestrator.channels.chat.channel import ChatChannel
    from evoclaw.orchestrator.channels.webhooks import WebhookChannel
    from evoclaw.orchestrator.overview.damage import DamageReports
    from evoclaw.orchestrator.overview.metrics import MetricsReader
    from evoclaw.orchestrator.overview.model_checks import ModelChecks
    from evoclaw.orchestrator.overview.readiness import readiness_checks
    from evoclaw.orchestrator.people.ratings import RunRatings
    from evoclaw.orchestrator.receipts.archive import ReceiptArchive
    from evoclaw.store.metrics.store import MetricsStore
    from evoclaw.store.sessions.ratings import RatingStore
    from evoclaw.wiring.campaigns import campaigns
    from evoclaw.wiring.evaluation import case_folder
    from evoclaw.wiring.evolution import lineage_audit
    from evoclaw.wiring.oversight import stop_board
    from evoclaw.wiring.pairing import edge_pairing
    from evoclaw.wiring.runtime import campaign_parts
    from evoclaw.wiring.settings_file import agent_definition_file
    from evoclaw.wiring.settings_reload import reload_settings

    run_factory, writer = runtime.run_factory, runtime.governance.audit
    chats = [channel for channel in runtime.channels if isinstance(channel, ChatChannel)]
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
        operator_tools=lambda: run_factory.operator_tools(runtime.default_agent),
        unavailable_tools=lambda: run_factory.unavailable_tools(runtime.default_agent),
        tool_problems=run_factory.toolbox.problems,
        image_problem=image_problem_of(runtime),
        skills=run_factory.toolbox.skill_registry,
        stops=stop_board(env, runtime.stores.database),
        reload=lambda: reload_settings(runtime, env),
        agent_definitions=agent_definition_file(env),
        edit_toml=update_values,
        model_checks=ModelChecks(runtime.providers.get, runtime.providers.problem),
        embed=runtime.providers.embeddings(name) if (name := settings.embedding_model) else None,
        canvases=run_factory.canvases,
        ratings=RunRatings(RatingStore(runtime.stores.database)),
        policies=policy_explainer(run_factory, runtime.agents),
        receipts=ReceiptArchive(runtime.stores.receipts, runtime.stores.commands),
        memory=runtime.memory,
        workflows=runtime.workflows,
        genomes=runtime.genomes,
        lineage_audit=lineage_audit(runtime.stores.database, writer),
        genome_rollouts=runtime.genome_rollouts,
        campaigns=campaigns(lambda: campaign_parts(runtime, env)),
        cases=case_folder(env),
        evaluations=runtime.evaluations,
        metrics=metrics,
        damage=DamageReports(runtime.orchestrator, writer),
        on_response=runtime.metrics.http,
        metrics_reader=MetricsReader(MetricsStore(runtime.stores.database)),
        checks=checks,
        on_refused=ignore_refusal if audit is None else audit.record_refusal,
        extra_routes=[
            *channel_routes(runtime.channel_dispatcher, webhooks),
            *chat_channel_routes(chats),
            *notification_routes(runtime.notifications),
            *dashboard_routes(),
        ],
    )
