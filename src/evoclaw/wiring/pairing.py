"""Builds the pairing of edges, and joins this machine to a fleet as an edge."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

if TYPE_CHECKING:
    from evoclaw.edge.joining import JoinReply
    from evoclaw.orchestrator.fleet.pairing import EdgePairing


def edge_pairing(env: Mapping[str, str]) -> EdgePairing:
    """Invites and revokes the edges of this machine's broker."""
    from evoclaw.config import default_data_folder
    from evoclaw.orchestrator.fleet.pairing import EdgePairing
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.trust.pairing import Invitations
    from evoclaw.wiring.fleet import find_broker, has_own_broker

    home = default_data_folder(env)
    return EdgePairing(
        Invitations(home / "pairing"),
        BrokerAccounts(home / "broker"),
        lambda: find_broker(home, env) if has_own_broker(home) else None,
    )


async def join_fleet(
    url: str,
    token: str,
    path: Path,
    capabilities: list[str],
    env: Mapping[str, str],
    *,
    ca_file: Path | None = None,
) -> str:
    """Join a fleet and write the `agent.toml` of this edge; returns its agent id."""
    from evoclaw.config import default_data_folder, write_agent_toml
    from evoclaw.edge.joining import JoiningEdge
    from evoclaw.orchestrator.fleet.pairing import TOKEN_SEPARATOR
    from evoclaw.transport.address import TlsSettings, parse_url
    from evoclaw.transport.broker_accounts import write_private
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.transport.topics import is_agent_id
    from evoclaw.trust.receipts import DeviceKey

    agent_id, _, secret = token.strip().partition(TOKEN_SEPARATOR)
    if not is_agent_id(agent_id) or not secret:
        raise ConfigError(
            "the token is not valid; copy the whole token that `evoclaw agents invite` printed"
        )
    if path.exists():  # noqa: ASYNC240 - one stat, before anything else runs
        raise ConfigError(f"{path} already exists; move it away, or use another --config")
    folder = default_data_folder(env) / "edge" / agent_id
    tls = None if ca_file is None else TlsSettings(str(ca_file))
    address = replace(parse_url(url, tls=tls), username=agent_id, password=secret)

    async def save(reply: JoinReply) -> None:
        values: dict[str, JSON] = {
            "agent_id": agent_id,
            "capabilities": capabilities,
            "data": str(folder),
            "orchestrator_keys": [reply.orchestrator_key],
            "broker": {
                "url": url,
                "username": agent_id,
                "password_file": str(folder / "password"),
            },
        }
        if ca_file is not None:
            values["broker"]["ca_file"] = str(ca_file)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "password", reply.password.encode())
        await asyncio.to_thread(write_agent_toml, path, values)

    key = DeviceKey.load_or_create(folder / "device.key").public_key
    await JoiningEdge(agent_id, secret, MqttLink(address), key=key).join(save)
    return agent_id


def public_key(env: Mapping[str, str], file: str | None = None) -> str:
    """The public key of this orchestrator, or of the secret key in a file."""
    from evoclaw.config import default_data_folder
    from evoclaw.trust.grants import Signer

    path = default_data_folder(env) / "orchestrator.key" if file is None else Path(file)
    if not path.is_file():
        # Creating a key for a mistyped name would give one that no orchestrator has.
        raise ConfigError(f"there is no key {path}; the first `evoclaw up` creates one")
    return Signer.load_or_create(path).public_key
