"""Invitations: what their tokens open, for how long, and what happens to an attempt that failed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.edge import joining
from evoclaw.orchestrator.fleet.join_handler import JoinHandler
from evoclaw.orchestrator.fleet.pairing import EdgePairing, InvitingBroker
from evoclaw.transport.broker_accounts import BrokerAccounts
from evoclaw.transport.link import Party
from evoclaw.transport.memory import MemoryBroker, MemoryLink
from evoclaw.transport.wire import Command, Report, ReportType
from evoclaw.trust.pairing import Devices, Invitations


class House:
    """An orchestrator's side of the pairing, and the answers that it sent."""

    def __init__(self, folder: Path) -> None:
        self.accounts = BrokerAccounts(folder)
        self.devices = Devices(folder)
        invitations = Invitations(folder)
        broker = InvitingBroker("mqtt://127.0.0.1:1883")
        self.pairing = EdgePairing(invitations, self.accounts, lambda: broker)
        self.answers: list[dict[str, JSON]] = []
        self.handler = JoinHandler(invitations, self.devices, self.accounts, self._send, "key")

    async def _send(self, agent_id: str, command: Command) -> bool:
        self.answers.append(command.payload)
        return True

    async def invite(self, name: str, lifetime_s: float = 60.0) -> str:
        invited = await self.pairing.invite(name, lifetime_s, self.devices)
        return invited.token.partition(".")[2]

    async def join(self, name: str, token: str, nonce: str, *, kept: bool) -> dict[str, JSON]:
        payload = {"token": token, "nonce": nonce, "kept": kept}
        await self.handler.on_join(Report(name, "", ReportType.JOIN, payload))
        return self.answers[-1]

    def names(self, now: float) -> list[str]:
        return [account.name for account in self.accounts.valid(now)]


async def test_the_account_of_an_invitation_ends_with_it_unless_the_edge_joined(
    tmp_path: Path,
) -> None:
    house = House(tmp_path)
    await house.invite("garage")
    token = await house.invite("shed")
    await house.join("shed", token, "n1", kept=False)
    await house.join("shed", token, "n1", kept=True)
    now = time.time()
    assert house.names(now) == ["garage", "shed"]
    assert house.names(now + 61) == ["shed"]


async def test_the_name_of_an_edge_that_joined_cannot_be_invited_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    token = await house.invite("shed")
    await house.join("shed", token, "n1", kept=True)
    (before,) = house.accounts.all()
    with pytest.raises(ConfigError, match="evoclaw edges revoke shed"):
        await house.invite("shed")
    assert house.accounts.all() == (before,), "the edge keeps its password"
    await house.pairing.revoke("shed", house.devices)
    assert await house.invite("shed")


async def test_an_attempt_to_join_that_broke_off_does_not_block_the_next_invitation(
    tmp_path: Path,
) -> None:
    house = House(tmp_path)
    first = await house.invite("garage")
    assert "password" in await house.join("garage", first, "n1", kept=False)
    refused = await house.join("garage", first, "n2", kept=False)
    assert "another device is joining" in refused["refused"], "two devices, one token"
    second = await house.invite("garage")
    answer = await house.join("garage", second, "n2", kept=True)
    assert answer.get("done") is True, answer


async def test_a_token_joins_only_the_edge_that_it_was_made_for(tmp_path: Path) -> None:
    house = House(tmp_path)
    await house.invite("garage")
    token = await house.invite("shed")
    refused = await house.join("garage", token, "n1", kept=True)
    assert "for another agent" in refused["refused"]
    await house.join("shed", token, "n1", kept=True)
    refused = await house.join("shed", token, "n2", kept=True)
    assert "already been used" in refused["refused"]


async def test_a_device_whose_token_the_broker_refuses_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "JOIN_TIMEOUT_S", 0.05)

    class RefusingLink(MemoryLink):
        """A broker that lets nobody in."""

        async def run(self, party: Party) -> None:
            party.disconnected("the broker refused the connection: not authorised (code 5)")
            await asyncio.Event().wait()

    async def keep(reply: joining.JoinReply) -> None:
        raise AssertionError(reply)

    edge = joining.JoiningEdge("garage", "token", RefusingLink(MemoryBroker()))
    with pytest.raises(joining.JoinFailed, match="Create a new one with `evoclaw edges"):
        await edge.join(keep)
