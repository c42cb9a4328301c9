"""Joins new edges: a one-time token is exchanged for the password of a broker account.

The token is the password of the edge's account until it has joined. Of two edges with the same
token, the first one joins; the second one is refused.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.transport.broker_accounts import BrokerAccounts
from evoclaw.transport.wire import Command, Report, WireError, convert
from evoclaw.trust.pairing import Devices, Invitations, PairingRefused


class JoinRequest(Struct, frozen=True):
    """The payload of a `join` report."""

    token: str
    nonce: str
    """Chosen by the edge: another nonce with the same token is another edge."""
    kept: bool = False
    """Whether the edge has stored the new password: then the token is redeemed."""
    key: str = ""
    """The public key of its receipts."""


class _JoiningEdge(Struct, frozen=True):
    token: str
    nonce: str
    password: str


class JoinHandler:
    """Handles `join` reports."""

    def __init__(
        self,
        pairings: Invitations,
        devices: Devices,
        accounts: BrokerAccounts,
        send: Callable[[str, Command], Awaitable[bool]],
        public_key: str,
        pin: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """`pin` gets the receipt key of each edge that joined."""
        self._pairings, self._devices, self._accounts = pairings, devices, accounts
        self._send, self._public_key, self._pin = send, public_key, pin
        self._joining: dict[str, _JoiningEdge] = {}
        self.counts: Counter[str] = Counter()

    async def on_join(self, report: Report) -> None:
        """Send a joining edge its password; once it is stored there, set it on the account."""
        try:
            join = convert(report.payload, JoinRequest)
        except WireError:
            self.counts["unreadable join"] += 1
            return
        agent_id, now = report.agent_id, time.time()
        try:
            invitation = self._pairings.check(join.token, now)
            if invitation.agent_id not in (None, agent_id):
                raise PairingRefused("this token is for another agent; ask for one of your own")
            guest = self._joining.get(agent_id)
            if guest is None or guest.token != join.token:
                # With a new token, an attempt with an earlier one is over.
                guest = _JoiningEdge(join.token, join.nonce, secrets.token_urlsafe(24))
                self._joining[agent_id] = guest
            if guest.nonce != join.nonce:
                raise PairingRefused(
                    "another device is joining with this token; ask for a token of your own"
                )
            if join.kept:
                self._pairings.redeem(join.token, now)
        except PairingRefused as refusal:
            self.counts["refused"] += 1
            await self._answer(agent_id, {"nonce": join.nonce, "refused": str(refusal)})
            return
        answer = {
            "nonce": join.nonce,
            "password": guest.password,
            "orchestrator_key": self._public_key,
            "done": join.kept,
        }
        await self._answer(agent_id, answer)
        if join.kept:
            try:
                await self._devices.invite(agent_id, now)
            except EvoClawError:
                self.counts["the store failed"] += 1  # joined, but its tools need an approval
            self._accounts.renew(agent_id, password=guest.password)
            del self._joining[agent_id]
            if self._pin is not None and join.key:
                await self._pin(agent_id, join.key)

    async def _answer(self, agent_id: str, payload: dict[str, JSON]) -> None:
        await self._send(agent_id, Command("joined", payload))
