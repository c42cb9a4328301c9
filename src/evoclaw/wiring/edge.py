"""Builds the edge that an `agent.toml` describes."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evoclaw.config import EdgeConfig
    from evoclaw.edge.device import DeviceLimits, OrchestratorClock
    from evoclaw.edge.edge import Edge
    from evoclaw.edge.plans import GrantCheck
    from evoclaw.store.calls.journal import Journal
    from evoclaw.transport.link import Link
    from evoclaw.wiring.record_key import KeyLocation

logger = logging.getLogger(__name__)
PASSWORD_VARIABLE = "EVOCLAW_EDGE_PASSWORD"


@asynccontextmanager
async def open_edge(
    path: Path | None, env: Mapping[str, str], *, new_key: bool = False
) -> AsyncGenerator[Edge]:
    """The edge of an `agent.toml` and the environment; closed when the block ends.

    With `new_key`, an edge whose key is lost sets its journal aside and continues with a new key.
    """
    from evoclaw.config import broker_password, read_agent_toml
    from evoclaw.edge.assemble import assemble
    from evoclaw.edge.device import EdgeIdentity, OrchestratorClock
    from evoclaw.edge.model_receiver import ModelReceiver, unrecorded
    from evoclaw.governance.stops import cancel_on_stop
    from evoclaw.observe.tracing.tracing import open_tracing
    from evoclaw.providers.models.store import ModelStore, models_folder
    from evoclaw.store.calls.artifacts import ArtifactStore
    from evoclaw.store.calls.before_images import BeforeImages
    from evoclaw.transport.broker_accounts import client_id
    from evoclaw.transport.private_files import make_private_folder
    from evoclaw.trust.receipts import DeviceKey
    from evoclaw.wiring.edge_runtime import open_edge_runtime
    from evoclaw.wiring.record_key import edge_key

    config = read_agent_toml(path, env)
    password = broker_password(config.broker, env, PASSWORD_VARIABLE)
    async with AsyncExitStack() as stack:
        make_private_folder(config.data)
        stack.enter_context(_lock_data_folder(config.data))
        tracing = await stack.enter_async_context(open_tracing(env, "evoclaw-edge"))
        key = edge_key(config, env)
        journal = await stack.enter_async_context(await _open_journal(key, new_key=new_key))
        limits = config.limits
        images = BeforeImages(
            config.data / "undo",
            cipher=key.cipher(),
            max_file_bytes=limits.undo_bytes,
            retention_s=limits.undo_hours * 3600,
        )
        clock = OrchestratorClock()
        device = await open_edge_runtime(
            config, env, stack, tracing, images if limits.undo_hours else None
        )
        audit = device.call_audit
        if journal.database.set_aside is not None and audit is not None:
            audit.damaged(f"{journal.database.path.name} was set aside")
        models = ModelStore(models_folder(env))
        note_model = unrecorded if audit is None else audit.model_installed
        receiver = ModelReceiver(models, config.accept_models, installed=note_model)
        stack.push_async_callback(receiver.close)
        name = client_id(config.agent_id, password) if password else ""
        edge = await assemble(
            EdgeIdentity(config.agent_id, config.agent_type, config.summary, name),
            _link(config, password),
            journal,
            device.ports,
            has_model=device.has_model,
            limits=_limits(config),
            check=_grant_check(config, clock),
            clock=clock,
            accepts=config.accepted,
            signed=frozenset(config.senders),
            skills=device.skill_tools,
            artifacts=ArtifactStore(
                config.data / "artifacts", max_artifact_bytes=limits.artifact_bytes
            ),
            find_model_file=models.find_file,
            model_receiver=receiver,
            images=images,
            key=DeviceKey.load_or_create(config.data / "device.key"),
            notes=device.call_audit,
            damage=_damage(config.data),
            tracing=tracing,
            model=device.model,
        )

        def end_calls() -> None:
            for live in edge.calls.live:
                edge.calls.cancel(live.request_id)

        await stack.enter_async_context(cancel_on_stop(device.stops, end_calls))
        if device.added is not None:
            await stack.enter_async_context(
                device.added.watching(edge.parts.executor, edge.advertise)
            )
        yield edge


def describe_edge(path: Path, env: Mapping[str, str]) -> str:
    """What tools may do on an edge and where, in one line for people."""
    from evoclaw.config import read_agent_toml
    from evoclaw.wiring.edge_runtime import permitted_tools

    config = read_agent_toml(path, env)
    held = config.capabilities
    everything = "*" in held
    may = [
        words
        for permission, words in (
            ("file_read", "read"), ("file_write", "write"), ("shell", "run commands in"),
        )
        if everything or permission in held
    ]  # fmt: skip
    names = ", ".join(permitted_tools(config, env)) or "none"
    rights = f"may {' and '.join(may)} {config.workspace}" if may else "may not use files"
    return f"{config.agent_id}: {rights}; tools: {names}"


async def _open_journal(key: KeyLocation, *, new_key: bool) -> Journal:
    from evoclaw.store.calls.journal import Journal
    from evoclaw.store.databases.sqlite_file import move_aside
    from evoclaw.wiring.record_key import KEY_ID_FILE

    path = key.folder / "journal.db"
    if new_key and (problem := key.problem()):
        aside = move_aside(path, "damaged")
        (key.folder / KEY_ID_FILE).unlink()
        logger.error("the journal was moved to %s: %s", aside, problem)
    journal = await Journal.open(path, set_aside=True, cipher=key.cipher())
    if journal.database.set_aside is not None:
        logger.error(
            "the journal was damaged: moved to %s, and started an empty one",
            journal.database.set_aside,
        )
    return journal


def _damage(folder: Path) -> str:
    """The journals that were set aside, until a person has removed them."""
    names = [path.name for path in folder.glob("journal.db.damaged-*")]
    files = sorted(name for name in names if not name.endswith(("-wal", "-shm")))
    if not files:
        return ""
    return (
        f"its journal was damaged and is set aside as {', '.join(files[-3:])}; what it "
        "did before is unknown. Check what it changed, then remove these files on the edge"
    )


def _lock_data_folder(folder: Path) -> AbstractContextManager[None]:
    """Lock the data folder: a second edge would treat calls of this one as interrupted."""
    from evoclaw.store.folder_lock import locked_folder

    text = (
        f"another edge uses the data folder {folder}; stop it, or set `data` in "
        "agent.toml to another folder"
    )
    return locked_folder(folder, text)


def _link(config: EdgeConfig, password: str) -> Link:
    from evoclaw.transport.mqtt import MqttLink

    broker = config.broker
    return MqttLink(broker.address(password), keep_alive=broker.keep_alive_s, qos=broker.qos)


def _grant_check(config: EdgeConfig, clock: OrchestratorClock) -> GrantCheck:
    from evoclaw.edge.plans import no_grants

    if not config.orchestrator_keys:
        return no_grants
    from evoclaw.edge.grant_check import SignedGrantCheck
    from evoclaw.trust.grants import Verifier

    only = {name: Verifier(*keys) for name, keys in config.senders.items() if keys}
    return SignedGrantCheck(config.agent_id, Verifier(*config.orchestrator_keys), clock, only=only)


def _limits(config: EdgeConfig) -> DeviceLimits:
    from evoclaw.edge.device import DeviceLimits

    limits = config.limits
    return DeviceLimits(
        concurrency=limits.concurrency,
        queue=limits.queue,
        heartbeat_s=config.heartbeat_s,
        output_bytes=limits.output_bytes,
        dedupe_retention_s=limits.dedupe_hours * 3600,
    )
