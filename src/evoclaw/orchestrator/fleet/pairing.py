"""Invites edges to the fleet, and revokes them."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from evoclaw.core.errors import ConfigError
from evoclaw.core.hosts import is_loopback
from evoclaw.transport.address import parse_url
from evoclaw.transport.broker_accounts import BrokerAccounts, BrokerRole
from evoclaw.transport.topics import ID_RULE, is_agent_id
from evoclaw.trust.pairing import Devices, DeviceState, Invitations

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

    async def invite(self, agent_id: str, lifetime_s: float, devices: Devices) -> JoinCredentials:
        """Create a broker account whose token works once, from when this returns.

        Raises `ConfigError` if the name is taken.
        """
        broker = self._broker_for(agent_id)
        self._check_free(agent_id, devices)
        now = time.time()
        token = self._invitations.create(agent_id, lifetime_s, now)
        self._accounts.invite(agent_id, token, now + lifetime_s)
        await self._accounts.wait_until_in_use()
        return JoinCredentials(
            broker.url,
            f"{agent_id}{TOKEN_SEPARATOR}{token}",
            broker.ca_sha256,
            ONLY_LOCAL if is_loopback(parse_url(broker.url).host) else "",
        )

    def _check_free(self, agent_id: str, devices: Devices) -> None:
        """Raise `ConfigError` if an invitation would replace the account of another edge."""
        match self._accounts.role_of(agent_id):
            case None:
                return
            case BrokerRole.ORCHESTRATOR:
                owner, advice = "the orchestrator itself", "choose another name for the edge"
            case BrokerRole.USER | BrokerRole.HOME_ASSISTANT:
                owner, advice = "a person's MQTT account", "choose another name for the edge"
            case BrokerRole.AGENT:
                device = devices.get(agent_id)
                if device is None or device.state is DeviceState.REVOKED:
                    return  # invited before, but not joined
                owner = "an edge that has joined"
                advice = (
                    "choose another name, or, if this is the same machine, remove the edge first "
                    f"with `evoclaw edges revoke {agent_id}`"
                )
        raise ConfigError(f"{agent_id!r} is the name of {owner}; {advice}")

    async def create_account(self, agent_id: str, devices: Devices) -> BrokerCredentials:
        """Create a broker account for a device whose software cannot join with a token."""
        broker = self._broker_for(agent_id)
        self._check_free(agent_id, devices)
        password = self._accounts.add(agent_id)
        await devices.invite(agent_id, time.time())
        await self._accounts.wait_until_in_use()
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
        """Revoke the device of an edge with all its tools, and remove its broker account.

        The orchestrator takes no more part in anything with the edge as soon as the first is
        stored; the broker closes its connection when it has read the accounts again.
        """
        has_account = self._accounts.role_of(agent_id) is BrokerRole.AGENT
        if devices.get(agent_id) is not None or not has_account:  # else it was only invited
            await devices.revoke(agent_id, time.time())
        if has_account:
            self._accounts.remove(agent_id)
