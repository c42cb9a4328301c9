"""Joining a fleet: what a device says when the broker never lets it in."""

from __future__ import annotations

import asyncio

import pytest

from evoclaw.edge import joining
from evoclaw.edge.joining import JoiningEdge, JoinReply
from evoclaw.transport.link import Link, Party
from evoclaw.transport.memory import MemoryBroker, MemoryLink


class RefusingLink(MemoryLink):
    """A link to a broker that does not know the account."""

    async def run(self, party: Party) -> None:
        party.disconnected("the broker refused the connection: not authorised (code 5)")
        await asyncio.Event().wait()


async def failure(link: Link) -> str:
    async def keep(reply: JoinReply) -> None:
        raise AssertionError("it did not join")

    with pytest.raises(joining.JoinFailed) as failed:
        await JoiningEdge("garage", "token", link).join(keep)
    return str(failed.value)


async def test_a_refused_device_is_told_that_its_name_may_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "JOIN_TIMEOUT_S", 0.2)

    refused = await failure(RefusingLink(MemoryBroker()))
    assert refused.startswith(
        "could not join as 'garage': the broker refused the connection: not authorised"
    )
    assert "another edge has the name" in refused
    assert "evoclaw edges invite NAME" in refused

    unanswered = await failure(MemoryLink(MemoryBroker()))
    assert "no orchestrator answered" in unanswered
    assert "token" not in unanswered
