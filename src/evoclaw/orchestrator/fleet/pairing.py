"""Invites edges to the fleet, and revokes them."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.hosts import is_loopback
from evoclaw.transport.address import parse_url
from evoclaw.transport.broker_accounts import BrokerAccounts
from evoclaw.transport.topics import ID_RULE, is_agent_id
from evoclaw.trust.pairing import Devices, Invitations

ONLY_LOCAL = (
    "this invitation works only on this machine, because the broker listens on loopback only. For "
    'another machine, restart with `evoclaw up --lan`, or set host = "lan" under [broker] in '
    "evoclaw.toml, and invite again"
)
TOKEN_SEPARATOR = "."
"""Between the agent id and the secret of a token."""


class JoinCredentials(Struct, frozen=True):
    """What a new edge needs to join: the address of the broker, and a token."""

    url: str
    token: str
    """Works once."""
    ca_sha256: str = ""
    """The fingerprint of the authority that signed the broker's certificate; empty without TLS."""
    warning: str = ""
    """Why the edge may not reach the broker, and what to do; empty if it should."""


class BrokerCredentials(Struct, frozen=True):
    """The address of the broker, and an account there."""

    url: str
    username: str
    password: str
    ca_file: str = ""
    """The CA file for the broker's certificate, if it uses TLS."""


class InvitingBroker(Struct, frozen=True):
    """Our own broker, as edges on other machines reach it."""

    url: str
    ca_file: str = ""
    ca_sha256: str = ""


class EdgePairing:
    """The invitations and the broker accounts of edges, where `evoclaw up` runs the broker."""

    def __init__(
        self,
        invitations: Invitations,
        accounts: BrokerAccounts,
        broker: Callable[[], InvitingBroker | None],
    ) -> None:
        """`broker` returns our own broker; None while it does not run."""
        self._invitations, self._accounts, self._broker = invitations, accounts, broker

    def invite(self, agent_id: str, lifetime_s: float) -> JoinCredentials:
        """Create a broker account whose token works once."""
        broker = self._broker_for(agent_id)
        now = time.time()
        token = self._invitations.create(agent_id, lifetime_s, now)
        self._accounts.invite(agent_id, token, now + lifetime_s)
        return JoinCredentials(
            broker.url,
            f"{agent_id}{TOKEN_SEPARATOR}{token}",
            broker.ca_sha256,
            ONLY_LOCAL if is_loopback(parse_url(broker.url).host) else "",
        )

    async def create_account(self, agent_id: str, devices: Devices) -> BrokerCredentials:
        """Create a broker account for a device whose software cannot join with a token."""
        broker = self._broker_for(agent_id)
        password = self._accounts.add(agent_id)
        await devices.invite(agent_id, time.time())
        return BrokerCredentials(broker.url, agent_id, password, broker.ca_file)

    def _broker_for(self, agent_id: str) -> InvitingBroker:
        """Our own broker, for the edge that is to join."""
        if not is_agent_id(agent_id):
            raise ConfigError(f"{agent_id!r} is not a valid agent id: {ID_RULE}")
        broker = self._broker()
        if broker is None:
            raise ConfigError(
                "no broker of `evoclaw up` runs on this machine, so no edge can be invited. With a "
                f"broker of your own: create the account {agent_id!r}, write the agent.toml of the "
                "edge with that account and the key that `evoclaw edges key` prints, start the "
                f"edge, and approve it with `evoclaw edges approve {agent_id}`"
            )
        return broker

    async def revoke(self, agent_id: str, devices: Devices) -> None:
        """Remove the broker account of an edge, and revoke its device with all its tools."""
        if any(account.name == agent_id for account in self._accounts.all()):
            self._accounts.remove(agent_id)
        await devices.revoke(agent_id, time.time())
