"""Letting edges in and out: invitations, devices, and an edge that joins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON

if TYPE_CHECKING:
    from evoclaw.edge.joining import JoinReply
    from evoclaw.trust.pairing import Devices

SEPARATOR = "."
"""Between the agent's id and the secret of a token."""


class Invited(Struct, frozen=True):
    """What the owner of a new edge needs."""

    url: str
    token: str


def invite(agent_id: str, seconds: float, env: Mapping[str, str]) -> Invited:
    """Make an account that a token opens, once."""
    from evoclaw.config import default_data_folder
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.transport.topics import ID_RULE, is_agent_id
    from evoclaw.trust.pairing import Pairings
    from evoclaw.wiring.fleet import find_broker, is_ours

    home = default_data_folder(env)
    if not is_agent_id(agent_id):
        raise ConfigError(f"{agent_id!r} is no agent id: {ID_RULE}")
    if not is_ours(home):
        raise ConfigError(
            "invitations are for the broker that `evoclaw up` starts, and there is none here. At a "
            f"broker of your own: make an account {agent_id!r} there, write the edge's agent.toml "
            "with that account and the key of `evoclaw agents key`, start it, and let it in with "
            f"`evoclaw agents approve {agent_id}`"
        )
    address = find_broker(home, env)
    token = Pairings(home / "pairing").new(agent_id, seconds, time.time())
    BrokerAccounts(home / "broker").renew(agent_id, password=token)
    kind = "mqtt" if address.tls is None else "mqtts"
    return Invited(f"{kind}://{address.host}:{address.port}", f"{agent_id}{SEPARATOR}{token}")


async def join(
    url: str,
    token: str,
    path: Path,
    capabilities: list[str],
    env: Mapping[str, str],
    *,
    ca_file: Path | None = None,
) -> str:
    """Join a fleet and write this edge's `agent.toml`; its id."""
    from evoclaw.config import default_data_folder, write_agent_toml
    from evoclaw.edge.joining import JoiningEdge
    from evoclaw.transport.address import TlsSettings, parse_url
    from evoclaw.transport.broker_accounts import write_private
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.transport.topics import is_agent_id
    from evoclaw.trust.receipts import DeviceKey

    agent_id, _, secret = token.strip().partition(SEPARATOR)
    if not is_agent_id(agent_id) or not secret:
        raise ConfigError("this is no token; copy all of what `evoclaw agents invite` printed")
    if path.exists():  # noqa: ASYNC240 - one look, before anything else goes on
        raise ConfigError(f"{path} is there already; move it away, or say another --config")
    folder = default_data_folder(env) / "edge" / agent_id
    tls = None if ca_file is None else TlsSettings(str(ca_file))
    address = replace(parse_url(url, tls=tls), username=agent_id, password=secret)

    async def keep(given: JoinReply) -> None:
        values: dict[str, JSON] = {
            "agent_id": agent_id,
            "capabilities": capabilities,
            "data": str(folder),
            "orchestrator_keys": [given.orchestrator_key],
            "broker": {
                "url": url,
                "username": agent_id,
                "password_file": str(folder / "password"),
            },
        }
        if ca_file is not None:
            values["broker"]["ca_file"] = str(ca_file)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "password", given.password.encode())
        await asyncio.to_thread(write_agent_toml, path, values)

    key = DeviceKey.load_or_create(folder / "device.key").public_key
    await JoiningEdge(agent_id, secret, MqttLink(address), key=key).join(keep)
    return agent_id


def public_key(env: Mapping[str, str], file: str | None = None) -> str:
    """What edges know this orchestrator by, or whoever has the secret key in a file."""
    from evoclaw.config import default_data_folder
    from evoclaw.trust.grants import Signer

    path = default_data_folder(env) / "orchestrator.key" if file is None else Path(file)
    if not path.is_file():
        # To make one for a name that was mistyped would be a key that no orchestrator has.
        raise ConfigError(f"there is no key {path}; the first `evoclaw up` makes one")
    return Signer.load_or_create(path).public_key


async def revoke(agent_id: str, env: Mapping[str, str], devices: Devices) -> None:
    """Shut an edge out: no account, no approved tools."""
    from evoclaw.config import default_data_folder
    from evoclaw.transport.broker_accounts import BrokerAccounts

    accounts = BrokerAccounts(default_data_folder(env) / "broker")
    if any(account.name == agent_id for account in accounts.all()):
        accounts.remove(agent_id)
    await devices.revoke(agent_id, time.time())
