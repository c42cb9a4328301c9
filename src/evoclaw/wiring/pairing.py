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
    from evoclaw.orchestrator.fleet.pairing import EdgePairing, InvitingBroker


def edge_pairing(env: Mapping[str, str]) -> EdgePairing:
    """Invites and revokes the edges of this machine's broker."""
    from evoclaw.config import default_data_folder
    from evoclaw.orchestrator.fleet.pairing import EdgePairing
    from evoclaw.transport.broker_accounts import BrokerAccounts
    from evoclaw.trust.pairing import Invitations

    home = default_data_folder(env)
    return EdgePairing(
        Invitations(home / "pairing"),
        BrokerAccounts(home / "broker"),
        lambda: _inviting_broker(home),
    )


def _inviting_broker(home: Path) -> InvitingBroker | None:
    """The broker of `evoclaw up` as other machines reach it; None while it does not run."""
    from evoclaw.orchestrator.fleet.pairing import InvitingBroker
    from evoclaw.transport.broker_certificates import file_fingerprint
    from evoclaw.wiring.fleet import read_broker_login

    login = read_broker_login(home)
    if login is None:
        return None
    url = login.url if login.invite_url is None else login.invite_url
    if not url:
        raise ConfigError(
            "this machine had no network, or several, when `evoclaw up` started, so the invitation "
            "has no address. Restart it with the address: `evoclaw up --lan ADDRESS`"
        )
    ca = login.ca_file
    return InvitingBroker(url, ca or "", "" if ca is None else file_fingerprint(Path(ca)))


async def join_fleet(
    url: str,
    token: str,
    path: Path,
    capabilities: list[str],
    env: Mapping[str, str],
    *,
    ca_file: Path | None = None,
    ca_sha256: str = "",
    workspace: Path | None = None,
) -> str:
    """Join a fleet and write the `agent.toml` of this edge; returns its agent id.

    `ca_sha256` is the fingerprint of the broker's authority, which is then fetched and kept.
    """
    from evoclaw.config import default_data_folder, write_agent_toml
    from evoclaw.edge.joining import JoiningEdge
    from evoclaw.orchestrator.fleet.pairing import TOKEN_SEPARATOR
    from evoclaw.store.folder_lock import locked_folder
    from evoclaw.transport.address import TlsSettings, parse_url
    from evoclaw.transport.broker_certificates import fetch_authority
    from evoclaw.transport.mqtt import MqttLink
    from evoclaw.transport.private_files import make_private_folder, write_private
    from evoclaw.transport.topics import is_agent_id
    from evoclaw.trust.receipts import DeviceKey

    agent_id, _, secret = token.strip().partition(TOKEN_SEPARATOR)
    if not is_agent_id(agent_id) or not secret:
        raise ConfigError(
            "the token is not valid; copy the whole token that `evoclaw edges invite` printed"
        )
    if path.exists():  # noqa: ASYNC240 - one stat, before anything else runs
        raise ConfigError(f"{path} already exists; move it away, or use another --config")
    folder = default_data_folder(env) / "edge" / agent_id
    in_use = (
        f"an edge {agent_id!r} already runs on this machine, with the data folder "
        f"{folder}; stop it, or invite this one under another name"
    )
    make_private_folder(folder)
    with locked_folder(folder, in_use):
        if ca_sha256 and ca_file is None:
            pem = await asyncio.to_thread(fetch_authority, parse_url(url), ca_sha256)
            ca_file = folder / "ca.pem"
            write_private(ca_file, pem.encode())
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
            if workspace is not None:
                values["workspace"] = str(workspace)
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
        raise ConfigError(f"the key {path} does not exist; the first `evoclaw up` creates it")
    return Signer.load_or_create(path).public_key
