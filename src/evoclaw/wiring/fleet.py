"""Builds an orchestrator that is connected to the fleet, and runs whose calls go to edges."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.pipeline import Step
from evoclaw.core.ports import Approver, Ports, Provider
from evoclaw.core.tools import Tool

if TYPE_CHECKING:
    from evoclaw.core.state import PreparedRun
    from evoclaw.governance.autonomy import Level
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.store.databases.database import Database
    from evoclaw.transport.address import Address
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.trust.pairing import Devices

BROKER_LOGIN_FILE = "orchestrator.json"
"""In the data folder: `evoclaw up` writes the login of its broker here, readable by this user."""
PASSWORD_VARIABLE = "EVOCLAW_BROKER_PASSWORD"


class BrokerLogin(Struct, frozen=True):
    """The address of the broker, and the account of the orchestrator there."""

    url: str
    username: str = ""
    password: str = ""
    ca_file: str | None = None
    """The CA file of the broker's certificate, if it uses TLS."""
    invite_url: str | None = None
    """The address for edges on other machines; empty if this machine had none, None: the same."""


@asynccontextmanager
async def open_fleet(
    env: Mapping[str, str],
    *,
    database: Database | None = None,
    devices: Devices | None = None,
) -> AsyncGenerator[Orchestrator]:
    """An orchestrator that is connected to the broker while the block runs."""
    from evoclaw.config import default_data_folder
    from evoclaw.governance.shared_stops import sync_stops
    from evoclaw.governance.stops import Stops
    from evoclaw.orchestrator.emergency_stop import StoppableGrants, enforce_stops
    from evoclaw.orchestrator.fleet.approved_tools import ApprovedTools, watch_approvals
    from evoclaw.orchestrator.fleet.grant_signer import GrantSigner
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.store.calls import command_tables, receipts
    from evoclaw.store.calls.commands import CommandStore
    from evoclaw.store.governance import stops as stop_tables
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.trust.grants import Signer
    from evoclaw.wiring.oversight import stop_board, stop_files
    from evoclaw.wiring.receipts import open_receipt_verifier
    from evoclaw.wiring.settings import orchestrator_settings
    from evoclaw.wiring.store import connect_database, open_devices

    home = default_data_folder(env)
    address = find_broker(home, env)
    signer = Signer.load_or_create(home / "orchestrator.key")
    async with AsyncExitStack() as stack:
        parts = (command_tables.SCHEMA, receipts.SCHEMA, stop_tables.SCHEMA)
        connected = await stack.enter_async_context(
            connect_database(env, *parts, existing=database)
        )
        # Stops must be known before the first command is sent.
        await stack.enter_async_context(sync_stops(stop_board(env, connected)))
        # The file of the service belongs to it alone.
        alone = database is not None and database.dialect == "sqlite"
        store = CommandStore(connected, defer_outcomes=alone)
        settings = orchestrator_settings(env)
        broker = settings.broker
        link = MqttLink(address, keep_alive=broker.keep_alive_s, qos=broker.qos)
        if devices is None:
            devices = await stack.enter_async_context(open_devices(env, database=database))
        permit = ApprovedTools(devices)
        stops = Stops(*stop_files(env))
        grants = StoppableGrants(stops, GrantSigner(signer))
        orchestrator = Orchestrator(
            link, store, grants=grants, permit=permit, refusal=permit.refusal
        )
        required = settings.orchestrator.require_receipts
        verifier = await stack.enter_async_context(open_receipt_verifier(store, required=required))
        orchestrator.report_receiver.receipts = verifier
        await stack.enter_async_context(orchestrator.connected())
        await stack.enter_async_context(enforce_stops(stops, orchestrator, store))
        await stack.enter_async_context(
            watch_approvals(
                devices, permit, orchestrator.fleet, abandon=orchestrator.requests.abandon
            )
        )
        yield orchestrator


@asynccontextmanager
async def fleet_ports(
    *,
    model: str | None,
    on: str,
    level: Level,
    tools: Sequence[str] | None = None,
    approver: Approver,
    env: Mapping[str, str],
    run: PreparedRun,
    timeout_s: float,
    undo: bool = False,
) -> AsyncGenerator[Ports]:
    """The ports of a run whose calls go to one edge, to any, or to those the model chooses.

    To `undo` another run, it is offered that tool, and has no model.
    """
    from evoclaw.executors.call_steps import WithoutUndoTool
    from evoclaw.orchestrator.fleet.edge_routes import fleet_routes
    from evoclaw.orchestrator.fleet.forwarded_calls import forwarded_calls, only_reads
    from evoclaw.providers.registry import open_provider
    from evoclaw.providers.scripted import DIRECT_MODEL, DirectProvider
    from evoclaw.wiring.governance import governed_ports, open_governance
    from evoclaw.wiring.local_run import capabilities_for_level
    from evoclaw.wiring.model_tools import model_steps
    from evoclaw.wiring.settings import model_for_run, provider_options

    name = DIRECT_MODEL if undo else await model_for_run(model, env)
    capabilities = capabilities_for_level(level, env)
    async with AsyncExitStack() as stack:
        governance = await stack.enter_async_context(open_governance(env))
        orchestrator = await stack.enter_async_context(open_fleet(env))
        provider: Provider = DirectProvider()
        if not undo:
            options = provider_options(governance.settings)
            provider = await stack.enter_async_context(open_provider(name, env, options))
        routes = await fleet_routes(orchestrator, on, capabilities, timeout_s)
        named = named_tools(tools, [tool for route in routes for tool in route.executor.tools()])
        governance = replace(
            governance,
            forwarded=forwarded_calls(orchestrator.fleet),
            only_reads=only_reads(orchestrator.fleet),
        )
        yield await stack.enter_async_context(
            governed_ports(
                governance,
                provider=provider,
                model=name,
                routes=routes,
                steps=[
                    *([] if undo else [WithoutUndoTool()]),
                    *image_steps(orchestrator, provider),
                    *named,
                    *model_steps(provider.model, tools),
                ],
                approver=approver,
                level=level,
                capabilities=capabilities,
                workspace=None,
                run=run,
                env=env,
            )
        )


def named_tools(names: Sequence[str] | None, tools: Sequence[Tool]) -> list[Step]:
    """The step that offers only the named tools of other machines; `ConfigError` for others."""
    from evoclaw.orchestrator.agents.offer_steps import AgentTools

    if names is None:
        return []
    known = {name for tool in tools for name in (tool.name, *tool.aliases)}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"unknown tool {', '.join(map(repr, unknown))} in --tools; available there: "
            f"{', '.join(sorted(tool.name for tool in tools)) or 'none'}"
        )
    return [AgentTools(frozenset(names))]


def image_steps(orchestrator: Orchestrator, provider: Provider) -> list[Step]:
    """The step for images from edges: fetched if the model of the run sees them, else left out."""
    from evoclaw.orchestrator.agents.offer_steps import WithoutImageTool
    from evoclaw.orchestrator.fleet.edge_images import FetchImages

    if not provider.profile.images:
        return [WithoutImageTool()]
    return [FetchImages(orchestrator.edge, orchestrator.requests.max_payload)]


def find_broker(home: Path, env: Mapping[str, str]) -> Address:
    """The broker that the settings name, or the one that `evoclaw up` runs on this machine."""
    from evoclaw.config import broker_password
    from evoclaw.transport.address import TlsSettings, parse_url
    from evoclaw.wiring.settings import SETTINGS_FILE, orchestrator_settings

    config = orchestrator_settings(env)
    if config.broker.is_configured:
        return config.broker.address(broker_password(config.broker, env, PASSWORD_VARIABLE))
    login = read_broker_login(home)
    if login is None:
        raise ConfigError(
            "no broker is running or configured: start one with `evoclaw up`, or name one under "
            f"[broker] in {home / SETTINGS_FILE}"
        )
    tls = None if login.ca_file is None else TlsSettings(login.ca_file)
    address = parse_url(login.url, tls=tls)
    return msgspec.structs.replace(address, username=login.username, password=login.password)


def read_broker_login(home: Path) -> BrokerLogin | None:
    """The login of the broker that `evoclaw up` runs on this machine now; None if it runs none."""
    try:
        return msgspec.json.decode((home / BROKER_LOGIN_FILE).read_bytes(), type=BrokerLogin)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as problem:
        raise ConfigError(
            f"cannot read {home / BROKER_LOGIN_FILE}: {problem}; "
            "restart `evoclaw up` to write it again"
        ) from None


def has_own_broker(home: Path) -> bool:
    """Whether `evoclaw up` runs a broker of its own on this machine now."""
    return (home / BROKER_LOGIN_FILE).exists()


def own_broker_accounts(env: Mapping[str, str]) -> BrokerAccounts:
    """The accounts of the broker that `evoclaw up` runs on this machine."""
    from evoclaw.config import default_data_folder
    from evoclaw.transport.broker_accounts import BrokerAccounts

    home = default_data_folder(env)
    if not has_own_broker(home):
        raise ConfigError(
            "no broker of `evoclaw up` runs on this machine: start it, or create the account "
            "at the broker that you use"
        )
    return BrokerAccounts(home / "broker")


def write_broker_login(home: Path, login: BrokerLogin) -> None:
    """Write the login of the broker to a file that only this user may read."""
    from evoclaw.transport.private_files import write_private

    write_private(home / BROKER_LOGIN_FILE, msgspec.json.encode(login))
