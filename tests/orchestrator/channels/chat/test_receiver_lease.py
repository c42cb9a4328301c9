"""Two orchestrators with one store and one bot: one of them receives its messages."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from evoclaw.orchestrator.channels.chat.receiver_lease import ReceiverLease
from evoclaw.orchestrator.runs.scheduler import current_process_identity
from evoclaw.providers.scripted import says
from evoclaw.store.channels import SCHEMA, ChannelStore
from tests.orchestrator.channels.chat.test_telegram import bot
from tests.support.budgets import Clock
from tests.support.channels import PATIENCE, open_channel_harness
from tests.support.databases import Place
from tests.support.fake_telegram import TOKEN, fake_telegram
from tests.support.waiting import until

ENV = {"TOKEN": TOKEN}


async def test_one_of_two_orchestrators_polls_the_bot_and_the_other_continues_when_it_stops(
    tmp_path: Path,
) -> None:
    async with (
        fake_telegram() as fake,
        open_channel_harness(tmp_path, says("one")) as first,
        open_channel_harness(tmp_path, says("two")) as second,
    ):
        one, two = (made.chat(bot(fake), ENV, lease_s=0.3) for made in (first, second))
        async with AsyncExitStack() as serving:
            await serving.enter_async_context(first.dispatcher([one]).serving())
            await until(lambda: one.status.state == "connected", PATIENCE)
            async with second.dispatcher([two]).serving():
                await until(lambda: two.status.state == "standby", PATIENCE)
                await fake.write("first?")
                await fake.wait_sent(1)
                await fake.wait_for(lambda: not fake.updates)
                assert fake.conflicts == 0
                await serving.aclose()
                await fake.write("second?")
                await fake.wait_sent(2)
                await until(lambda: two.status.state == "connected", PATIENCE)
        assert len(fake.texts) == len(await second.runs.list("local")) == 2


async def test_the_messages_of_a_dead_orchestrator_are_received_when_its_lease_expires(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with (
        fake_telegram() as fake,
        open_channel_harness(tmp_path, says("hello"), clock=clock) as made,
    ):
        assert await made.letters.claim_receiver("phone", "dead", 10)
        channel = made.chat(bot(fake), ENV, lease_s=0.3)
        async with made.dispatcher([channel]).serving():
            await fake.write("anybody there?")
            await until(lambda: channel.status.state == "standby", PATIENCE)
            assert fake.polls == 0
            clock.now += 10
            await fake.wait_sent(1)
        assert fake.texts == ["hello"]


async def test_an_orchestrator_that_lost_its_lease_stops_receiving(tmp_path: Path) -> None:
    clock = Clock()
    async with (
        fake_telegram() as fake,
        open_channel_harness(tmp_path, clock=clock) as made,
    ):
        channel = made.chat(bot(fake), ENV, lease_s=0.3)
        async with made.dispatcher([channel]).serving():
            await until(lambda: channel.status.state == "connected", PATIENCE)
            clock.now += 1
            # Slower than its lease, as a process that was suspended.
            await until(lambda: made.letters.claim_receiver("phone", "other", 1_000), PATIENCE)
            await until(lambda: channel.status.state == "standby", PATIENCE)
            polls = fake.polls
            await fake.write("for the other")
            assert fake.polls == polls and fake.texts == []


@pytest.mark.parametrize(("started", "is_taken"), [("1", True), ("", False)])
async def test_the_lease_of_a_process_that_is_certainly_dead_is_not_waited_for(
    place: Place, started: str, *, is_taken: bool
) -> None:
    """Another process had its number: it started at another time."""
    machine, pid, ticks, rest = current_process_identity().split("/")
    database = await place.open(SCHEMA)
    try:
        store = ChannelStore(database)
        assert await store.claim_receiver("phone", f"{machine}/{pid}/{started or ticks}/{rest}", 60)
        lease = ReceiverLease("phone", store, 60)
        assert await lease.try_acquire() is is_taken
        assert await ReceiverLease("phone", store, 60).try_acquire() is False, "its own is alive"
    finally:
        await database.close()
