"""Letting a new edge in: a token that works once becomes an account of its own.

The token is the password of the edge's account until it has joined. Of two who bring it, the first
gets in; the second is told that the token is used.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol

from msgspec import Struct

from evoclaw.core.errors import EvoClawError
from evoclaw.core.messages import JSON
from evoclaw.transport.wire import Command, Report, WireError, convert
from evoclaw.trust.pairing import Devices, PairingRefused, Pairings


class Accounts(Protocol):
    """Where edges have their accounts."""

    def renew(self, name: str, *, password: str = "") -> str:
        """Give an account this password."""
        ...


class Join(Struct, frozen=True):
    """The payload of a `join` report."""

    token: str
    nonce: str
    """Of the one who joins: another one with the same token is somebody else."""
    kept: bool = False
    """The new password was written down: the token may go."""
    key: str = ""
    """The public key that its receipts will be signed with."""


class _Guest(Struct, frozen=True):
    nonce: str
    password: str


class Joining:
    """Answers those who want to join."""

    def __init__(
        self,
        pairings: Pairings,
        devices: Devices,
        accounts: Accounts,
        send: Callable[[str, Command], Awaitable[bool]],
        public_key: str,
        pin: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """`pin` is told the key of each device that joined."""
        self._pairings, self._devices, self._accounts = pairings, devices, accounts
        self._send, self._public_key, self._pin = send, public_key, pin
        self._guests: dict[str, _Guest] = {}
        self.counts: Counter[str] = Counter()

    async def take(self, report: Report) -> None:
        """Give a guest its password; when it has it, make that the account's."""
        try:
            join = convert(report.payload, Join)
        except WireError:
            self.counts["unreadable join"] += 1
            return
        agent_id, now = report.agent_id, time.time()
        try:
            invitation = self._pairings.look(join.token, now)
            if invitation.agent_id not in (None, agent_id):
                raise PairingRefused("this token is for another agent; ask for one of your own")
            guest = self._guests.setdefault(agent_id, _Guest(join.nonce, secrets.token_urlsafe(24)))
            if guest.nonce != join.nonce:
                raise PairingRefused("somebody else joins with this token right now")
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
                self.counts["the store failed"] += 1  # it is in, and its tools are to be approved
            self._accounts.renew(agent_id, password=guest.password)
            del self._guests[agent_id]
            if self._pin is not None and join.key:
                await self._pin(agent_id, join.key)

    async def _answer(self, agent_id: str, payload: dict[str, JSON]) -> None:
        await self._send(agent_id, Command("joined", payload))
