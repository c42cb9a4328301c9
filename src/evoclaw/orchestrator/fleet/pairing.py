"""Invites edges to the fleet, and revokes them."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.transport.address import Address
from evoclaw.transport.broker_accounts import BrokerAccounts
from evoclaw.transport.topics import ID_RULE, is_agent_id
from evoclaw.trust.pairing import Devices, Invitations

TOKEN_SEPARATOR = "."
"""Between the agent id and the secret of a token."""


class JoinCredentials(Struct, frozen=True):
    """What a new edge needs to join: the address of the broker, and a token."""

    url: str
    token: str
    """Works once."""


class EdgePairing:
    """The invitations and the broker accounts of edges, where `evoclaw up` runs the broker."""

    def __init__(
        self,
        invitations: Invitations,
        accounts: BrokerAccounts,
        broker: Callable[[], Address | None],
    ) -> None:
        """`broker` returns the address of our own broker; None while it does not run."""
        self._invitations, self._accounts, self._broker = invitations, accounts, broker

    def invite(self, agent_id: str, lifetime_s: float) -> JoinCredentials:
        """Create a broker account whose token works once."""
        if not is_agent_id(agent_id):
            raise ConfigError(f"{agent_id!r} is not a valid agent id: {ID_RULE}")
        address = self._broker()
        if address is None:
            raise ConfigError(
                "no broker of `evoclaw up` runs on this machine, so no edge can be invited. With a "
                f"broker of your own: create the account {agent_id!r}, write the agent.toml of the "
                "edge with that account and the key that `evoclaw agents key` prints, start the "
                f"edge, and approve it with `evoclaw agents approve {agent_id}`"
            )
        token = self._invitations.create(agent_id, lifetime_s, time.time())
        self._accounts.renew(agent_id, password=token)
        scheme = "mqtt" if address.tls is None else "mqtts"
        url = f"{scheme}://{address.host}:{address.port}"
        return JoinCredentials(url, f"{agent_id}{TOKEN_SEPARATOR}{token}")

    async def revoke(self, agent_id: str, devices: Devices) -> None:
        """Remove the broker account of an edge, and revoke its device with all its tools."""
        if any(account.name == agent_id for account in self._accounts.all()):
            self._accounts.remove(agent_id)
        await devices.revoke(agent_id, time.time())
