"""A Discord bot on the gateway."""

from __future__ import annotations

from pathlib import Path

from evoclaw.orchestrator.channels.chat.channel import REFUSAL_TEXT
from evoclaw.orchestrator.channels.chat.settings import DiscordBotSettings
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.providers.scripted import says
from tests.support.chat_kitchen import BOIL, chat_kitchen
from tests.support.fake_discord import (
    ANN,
    DIRECT,
    EVE,
    GUILD_CHANNEL,
    TOKEN,
    FakeDiscord,
    fake_discord,
    too_many,
)
from tests.support.waiting import until

SECRETS = {"TOKEN": TOKEN}


def bot(fake: FakeDiscord) -> ChannelSettings:
    table = DiscordBotSettings(token_env="TOKEN", url=f"{fake.url}/api/v10")
    return ChannelSettings(name="guild", kind="discord", senders={ANN: "ann"}, discord=table)


async def test_direct_messages_and_mentions_are_answered(tmp_path: Path) -> None:
    async with (
        fake_discord() as fake,
        chat_kitchen(tmp_path, bot(fake), SECRETS, says("one"), says("two")) as (made, channel),
    ):
        await fake.wait_for(lambda: fake.identifies)
        await fake.write("hello")
        await fake.wait_sent(1)
        await fake.write("not for the bot", channel=GUILD_CHANNEL, mentions=[])
        await fake.write("hello", channel=GUILD_CHANNEL)
        await fake.wait_sent(2)
        assert [(sent.conversation, sent.text) for sent in fake.sent] == [
            (DIRECT, "one"),
            (GUILD_CHANNEL, "two"),
        ]
        assert fake.sent[0].body["allowed_mentions"] == {"parse": []}
        assert channel.status.account == "cook"
        assert [run.asked for run in await made.runs.list("local")] == ["hello", "hello"]


async def test_a_dropped_connection_is_resumed_and_misses_nothing(tmp_path: Path) -> None:
    async with (
        fake_discord() as fake,
        chat_kitchen(tmp_path, bot(fake), SECRETS, says("one"), says("two"), says("three")) as (
            made,
            _,
        ),
    ):
        await fake.wait_for(lambda: fake.identifies)
        await fake.write("first")
        await fake.wait_sent(1)
        await fake.drop()
        await fake.write("second")  # while nobody is connected
        await fake.wait_sent(2)
        await fake.ask_to_reconnect()
        await fake.write("third")
        await fake.wait_sent(3)
        assert (fake.identifies, fake.resumes) == (1, 2)
        assert len(await made.runs.list("local")) == 3


async def test_messages_during_a_lost_session_are_fetched(tmp_path: Path) -> None:
    async with (
        fake_discord() as fake,
        chat_kitchen(tmp_path, bot(fake), SECRETS, says("one"), says("two")) as (made, _),
    ):
        await fake.wait_for(lambda: fake.identifies)
        await fake.write("first")
        await fake.wait_sent(1)
        await fake.forget_session()
        await fake.write("second")
        await fake.wait_sent(2)
        assert fake.identifies == 2
        assert len(await made.runs.list("local")) == 2


async def test_a_connection_without_heartbeats_is_replaced(tmp_path: Path) -> None:
    async with fake_discord() as fake:
        fake.heartbeat_ms, fake.answers_heartbeats = 50, False
        async with chat_kitchen(tmp_path, bot(fake), SECRETS):
            await fake.wait_for(lambda: fake.resumes)
            assert fake.heartbeats


async def test_an_approval_has_buttons_and_only_the_sender_may_press(tmp_path: Path) -> None:
    async with (
        fake_discord() as fake,
        chat_kitchen(tmp_path, bot(fake), SECRETS, BOIL, says("boiled")) as (made, _),
    ):
        await fake.wait_for(lambda: fake.identifies)
        await fake.write("boil eggs")
        (card,) = await fake.wait_sent(1)
        await fake.press(card, "Approve", EVE)
        await fake.press(card, "Approve")
        await fake.wait_for(lambda: "boiled" in fake.texts)
        assert made.ran == ["eggs"]
        assert fake.interactions == [{"type": 7, "data": {"components": []}}]


async def test_long_answers_rate_limits_and_attachments(tmp_path: Path) -> None:
    long = "\n".join(f"line {number:04}" for number in range(350))
    async with (
        fake_discord() as fake,
        chat_kitchen(tmp_path, bot(fake), SECRETS, says(long)) as (made, _),
    ):
        await fake.wait_for(lambda: fake.identifies)
        fake.refusals = [too_many(0.5)]
        file = {"filename": "egg.png", "content_type": "image/png", "url": f"{fake.url}/cdn/egg"}
        await fake.write("what is it?", attachments=[file])
        await fake.wait_for(lambda: fake.sent and "line 0349" in fake.texts[-1])
        assert len(fake.sent) == 2
        assert "image/png" in repr(made.model.requests[0].messages)


async def test_a_stranger_and_a_wrong_token(tmp_path: Path) -> None:
    async with fake_discord() as fake:
        async with chat_kitchen(tmp_path, bot(fake), SECRETS) as (made, _):
            await fake.wait_for(lambda: fake.identifies)
            await fake.write("hello", EVE)
            await fake.wait_sent(1)
            assert fake.texts == [REFUSAL_TEXT]
            assert not await made.runs.list("local")
        async with chat_kitchen(tmp_path, bot(fake), {"TOKEN": "wrong-token-0"}) as (_, channel):
            await until(lambda: channel.status.state == "failed")
            assert channel.status.problem == (
                "Discord refused the token; copy it again from the page of the bot"
            )
