"""Builds `evoclaw up`: a broker, an orchestrator, the service and an edge on one machine."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.wiring.broker_endpoint import BrokerEndpoint, broker_endpoint
from evoclaw.wiring.fleet import BrokerLogin, open_fleet, write_broker_login
from evoclaw.wiring.home_assistant import open_home_assistant
from evoclaw.wiring.store import open_stores

if TYPE_CHECKING:
    from evoclaw.config import EvoClawConfig
    from evoclaw.observe.audit.settings import AuditSettings
    from evoclaw.orchestrator.fleet.join_handler import JoinHandler
    from evoclaw.orchestrator.orchestrator import Orchestrator
    from evoclaw.transport.broker import EmbeddedBroker
    from evoclaw.trust.pairing import Devices
    from evoclaw.wiring.runtime import Runtime
    from evoclaw.wiring.store import Stores

ORCHESTRATOR_USERNAME = "orchestrator"


class Application(Struct, frozen=True):
    """The running application."""

    broker_url: str
    """The address of the broker."""
    orchestrator: Orchestrator
    api_url: str = ""
    """The address of the service; empty if it is not started."""
    runtime: Runtime | None = None
    env: Mapping[str, str] = {}
    invite_url: str = ""
    """The address of the broker for edges on other machines; empty if it serves none."""
    owns_broker: bool = True
    """Whether this process runs the broker."""

    @property
    def active_runs(self) -> int:
        """How many runs are active."""
        return 0 if self.runtime is None else self.runtime.runs.active_count

    async def drain(self) -> None:
        """Start no more runs, and wait for active runs to end, up to `runs.drain_s`."""
        if self.runtime is not None:
            await self.runtime.runs.drain(self.runtime.settings.runs.drain_s)

    def problems(self) -> list[str]:
        """What the settings ask for and this machine does not have, one line each."""
        from evoclaw.wiring.agents import agent_problems

        found = agent_problems(self.env)
        if self.runtime is not None:
            model = self.runtime.providers.problem(self.runtime.default_agent.model)
            found += [model.rstrip()] if model else []
        return found

    def reload(self) -> str:
        """Reload the settings; returns what changed, for a log line."""
        if self.runtime is None:
            return "nothing to reload: this process runs without a service"
        from evoclaw.wiring.settings_reload import reload_settings

        done = reload_settings(self.runtime, self.env)
        changed = ", ".join(done.changed)
        text = f"settings reloaded: {changed}" if changed else "settings unchanged"
        if done.needs_restart:
            text += f"; needs a restart: {', '.join(done.needs_restart)}"
        if done.kept_by_edge:
            edge, kept = self.orchestrator.default_edge, ", ".join(done.kept_by_edge)
            text += f"; the edge {edge} keeps its copy of {kept} until a restart"
        return text


class _LocalEdge(Struct, frozen=True):
    """The edge on this machine."""

    agent_id: str
    workspace: Path
    model: str
    settings: EvoClawConfig
    """Its tables about commands, hosts, rules and the audit are those of the edge too."""


@asynccontextmanager
async def open_application(
    *,
    host: str,
    port: int,
    engine: str,
    agent_id: str | None,
    workspace: Path,
    model: str,
    env: Mapping[str, str],
    lan: str = "",
    tls: tuple[Path, Path, Path] | None = None,
    api: Mapping[str, object] | None = None,
) -> AsyncGenerator[Application]:
    """Start broker, orchestrator, service and edge; all are stopped when the block ends.

    `lan` serves edges on other machines, as in `broker_endpoint`. `tls` is the certificate of the
    broker, its key and the CA file. `api` overrides settings of the service; None starts no
    service. If the settings name a broker, that broker is used: then its owner makes the accounts,
    and no edge is started on this machine. `agent_id` names the edge on this machine: None starts
    none, empty is the name of its first start.
    """
    from evoclaw.config import default_data_folder
    from evoclaw.config.agent_toml import edge_name
    from evoclaw.wiring.settings import orchestrator_settings

    if api is not None:
        _require_server_packages()
    home, settings = default_data_folder(env), orchestrator_settings(env)
    own = not settings.broker.is_configured
    async with AsyncExitStack() as stack:
        stack.enter_context(_lock_data_folder(home))
        broker, url, invite_url = _OwnBroker(home, engine), settings.broker.url, ""
        if own:
            lan = lan or settings.broker.host
            at = broker_endpoint(home, host=host, port=port, lan=lan, tls=tls)
            url = await broker.start(at, stack)
            invite_url = broker.login.invite_url or ""
        stored = await stack.enter_async_context(_audited_stores(home, settings.audit, env))
        fleet = open_fleet(env, database=stored.database, devices=stored.devices)
        orchestrator = await stack.enter_async_context(fleet)
        if own:
            joining = _joining(home, orchestrator, broker.running, stored.devices)
            orchestrator.report_receiver.on_join = joining.on_join
            if agent_id is not None:
                agent_id = agent_id or edge_name(home)
                _check_own_name(stored.devices, agent_id, home)
                await _approve_own_edge(stored.devices, agent_id)
                local = _LocalEdge(agent_id, workspace, model, settings)
                await _start_edge(local, home, broker, orchestrator, stack, env)
                orchestrator.default_edge = agent_id
        home_assistant = open_home_assistant(
            orchestrator, settings, stored, env, has_channels=api is not None
        )
        await stack.enter_async_context(home_assistant)
        if api is None:
            yield Application(url, orchestrator, env=env, invite_url=invite_url, owns_broker=own)
            return
        from evoclaw.wiring.a2a import open_a2a_mqtt
        from evoclaw.wiring.http import serving_http
        from evoclaw.wiring.runtime import open_runtime

        # Tools of this machine work where its edge works.
        folder = workspace if own and agent_id is not None else None
        runtime = await stack.enter_async_context(open_runtime(orchestrator, stored, env, folder))
        server = replace(settings.server, **api)
        api_url = await stack.enter_async_context(serving_http(runtime, server, env))
        await stack.enter_async_context(open_a2a_mqtt(runtime, server, env))
        yield Application(url, orchestrator, api_url, runtime, env, invite_url, own)


def _require_server_packages() -> None:
    """Raise `ConfigError` if the packages of the HTTP service are not installed."""
    for name in ("litestar", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(name) is None:
            raise ConfigError(
                f"the HTTP service cannot start: the package {name} is not installed. Run "
                "`pip install 'evoclaw[server]'`, or start without the service: "
                "`evoclaw up --no-api`"
            )


@asynccontextmanager
async def _audited_stores(
    home: Path, audit: AuditSettings, env: Mapping[str, str]
) -> AsyncGenerator[Stores]:
    """The stores; if they are damaged, the audit says so, too: nothing else will run."""
    from evoclaw.core.labels import LOCAL_PRINCIPAL
    from evoclaw.core.redaction import secrets_in
    from evoclaw.observe.audit.sink import AuditContext
    from evoclaw.observe.audit.writer import open_audit
    from evoclaw.store.databases.database import DamagedStore

    async with AsyncExitStack() as stack:
        try:
            stored = await stack.enter_async_context(open_stores(env))
        except DamagedStore as damage:
            if audit.enabled:
                context = AuditContext(principal=LOCAL_PRINCIPAL, agent_id="orchestrator")
                with open_audit(home, audit, secrets=secrets_in(env)) as writer:
                    writer.record("damage", context, reason=str(damage))
            raise
        yield stored


def _lock_data_folder(home: Path) -> AbstractContextManager[None]:
    """Lock the data folder: a second orchestrator would resume the runs of this one."""
    from evoclaw.store.folder_lock import locked_folder

    text = (
        f"another `evoclaw up` uses the data folder {home}; stop it, or set EVOCLAW_HOME "
        "to another folder"
    )
    return locked_folder(home, text)


class _OwnBroker:
    """The broker that this process runs, and the login for other processes of this user."""

    running: EmbeddedBroker
    login: BrokerLogin

    def __init__(self, home: Path, engine: str) -> None:
        self._home, self._engine = home, engine

    async def start(self, at: BrokerEndpoint, stack: AsyncExitStack) -> str:
        """Start the broker and write its login file; returns its address."""
        from evoclaw.transport.broker import EmbeddedBroker
        from evoclaw.transport.broker_accounts import BrokerRole
        from evoclaw.transport.broker_engines import BrokerTlsFiles

        files = None if at.tls is None else BrokerTlsFiles(*at.tls[:2])
        self.running = broker = EmbeddedBroker(
            self._home / "broker", engine=self._engine, host=at.host, port=at.port, tls=files
        )
        await stack.enter_async_context(broker)
        url, invite_url = (at.url(host, broker.port) for host in (at.local_host, at.invite_host))
        password = await broker.renew(ORCHESTRATOR_USERNAME, BrokerRole.ORCHESTRATOR)
        ca_file = None if at.tls is None else str(at.tls[2])
        self.login = BrokerLogin(url, ORCHESTRATOR_USERNAME, password, ca_file, invite_url)
        write_broker_login(self._home, self.login)
        stack.callback(_remove_broker_login, self._home)
        return url


async def _start_edge(
    local: _LocalEdge,
    home: Path,
    broker: _OwnBroker,
    orchestrator: Orchestrator,
    stack: AsyncExitStack,
    env: Mapping[str, str],
) -> None:
    """Run the edge on this machine as a process of its own.

    Of the secrets in the environment it gets only those that the endpoint of its model reads.
    """
    from evoclaw.providers.registry import endpoint_variables, open_provider
    from evoclaw.transport.child_process import supervised

    if local.model:
        async with open_provider(local.model, env):
            pass  # A wrong name or a missing key fails here, not in the edge again and again.
    config = await _write_agent_toml(local, home, broker.login, broker.running)
    await _pin_edge_key(orchestrator, local.agent_id, config.parent)
    command = (sys.executable, "-m", "evoclaw", "edge", "--config", str(config))
    passed_on = {name: value for name, value in env.items() if name.startswith("OTEL_")}
    passed_on |= {"EVOCLAW_HOME": str(home), **endpoint_variables(local.model, env)}
    edge = supervised("the edge on this machine", config.parent, *command, env=passed_on)
    await stack.enter_async_context(edge)


async def _pin_edge_key(orchestrator: Orchestrator, agent_id: str, folder: Path) -> None:
    """Pin the device key of the edge on this machine, so its receipts can be verified."""
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.trust.receipts import DeviceKey

    if isinstance(verifier := orchestrator.report_receiver.receipts, ReceiptVerifier):
        await verifier.pin(agent_id, DeviceKey.load_or_create(folder / "device.key").public_key)


async def _approve_own_edge(devices: Devices, agent_id: str) -> None:
    """Let the edge of this machine in without an invitation, unless it was revoked."""
    if devices.get(agent_id) is None:
        await devices.invite(agent_id, time.time())


def _check_own_name(devices: Devices, agent_id: str, home: Path) -> None:
    """Raise `ConfigError` if another party has the name for the edge of this machine."""
    from evoclaw.trust.pairing import DeviceState

    device = devices.get(agent_id)
    advice = "name the edge on this machine with `evoclaw up --name NAME`"
    if agent_id == ORCHESTRATOR_USERNAME:
        raise ConfigError(f"{agent_id!r} is the name of the orchestrator itself; {advice}")
    is_ours = (home / "edge" / agent_id / "agent.toml").exists()
    if device is not None and device.state is not DeviceState.REVOKED and not is_ours:
        raise ConfigError(
            f"{agent_id!r} is the name of an edge that has joined; {advice}, or remove that edge "
            f"first with `evoclaw edges revoke {agent_id}`"
        )


def _joining(
    home: Path, orchestrator: Orchestrator, broker: EmbeddedBroker, devices: Devices
) -> JoinHandler:
    from evoclaw.orchestrator.fleet.join_handler import JoinHandler
    from evoclaw.orchestrator.receipts.verifier import ReceiptVerifier
    from evoclaw.trust.grants import Signer
    from evoclaw.trust.pairing import Invitations

    key = Signer.load_or_create(home / "orchestrator.key").public_key
    pairings = Invitations(home / "pairing")
    send, verifier = orchestrator.requests.send_to_stranger, orchestrator.report_receiver.receipts
    pin = verifier.pin if isinstance(verifier, ReceiptVerifier) else None
    return JoinHandler(pairings, devices, broker.accounts, send, key, pin)


async def _write_agent_toml(
    local: _LocalEdge, home: Path, login: BrokerLogin, broker: EmbeddedBroker
) -> Path:
    """Write the `agent.toml` of the edge on this machine; it holds every capability."""
    from evoclaw.config import write_agent_toml
    from evoclaw.transport.private_files import make_private_folder, write_private
    from evoclaw.trust.grants import Signer

    folder = home / "edge" / local.agent_id
    make_private_folder(folder)
    password = await broker.renew(local.agent_id)
    write_private(folder / "password", password.encode())
    values: dict[str, JSON] = {
        "agent_id": local.agent_id,
        "agent_type": "desktop",
        "capabilities": ["*"],
        "workspace": str(local.workspace),
        "data": str(folder),
        "orchestrator_keys": [Signer.load_or_create(home / "orchestrator.key").public_key],
        "broker": {
            "url": login.url,
            "username": local.agent_id,
            "password_file": str(folder / "password"),
        },
    }
    if login.ca_file is not None:
        values["broker"]["ca_file"] = login.ca_file
    if local.model:
        general = local.settings.orchestrator
        values["model"] = {
            "name": local.model,
            "max_retries": general.max_retries,
            "calls_in_text": general.calls_in_text,
        }
        values["embedded"] = msgspec.to_builtins(local.settings.embedded)
    values |= _shared_tables(local.settings)
    path = folder / "agent.toml"
    write_agent_toml(path, values, replace=True)
    return path


def _shared_tables(settings: EvoClawConfig) -> dict[str, JSON]:
    """The tables of `evoclaw.toml` that hold for every command on this machine."""
    from evoclaw.config.agent_toml import WITHOUT_EFFECT

    tables = {
        "policy": settings.policy, "flow": settings.flow, "network": settings.network,
        "sandbox": settings.sandbox_settings, "audit": settings.audit,
    }  # fmt: skip
    values: dict[str, JSON] = msgspec.to_builtins(tables, order="deterministic")
    # Its cold tier is its own: two chains must not be shipped to the same tables.
    unshared = [("audit", "cold"), ("audit", "cold_token_file"), *WITHOUT_EFFECT]
    for table, key in (keys for keys in unshared if len(keys) == 2):
        values.get(table, {}).pop(key, None)
    if settings.policy.rules:
        # On the edge, a relative path would start at the data folder of the edge.
        values["policy"]["rules"] = str(settings.data / settings.policy.rules)
    return values


def _remove_broker_login(home: Path) -> None:
    from evoclaw.wiring.fleet import BROKER_LOGIN_FILE

    (home / BROKER_LOGIN_FILE).unlink(missing_ok=True)
