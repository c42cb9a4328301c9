"""An account at a Matrix homeserver."""

from __future__ import annotations

import re
from pathlib import Path

from evoclaw.orchestrator.channels.chat.settings import MatrixAccountSettings
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.providers.scripted import says
from tests.support.chat_kitchen import BOIL, chat_kitchen
from tests.support.fake_matrix import (
    ANN,
    BOT,
    EVE,
    ROOM,
    TOKEN,
    FakeMatrix,
    fake_matrix,
    too_many,
)
from tests.support.waiting import until

SECRETS = {"TOKEN": TOKEN}


def account(fake: FakeMatrix) -> ChannelSettings:
    table = MatrixAccountSettings(token_env="TOKEN", url=fake.url)
    return ChannelSettings(name="home", kind="matrix", senders={ANN: "ann"}, matrix=table)


async def test_a_message_is_answered_and_older_ones_are_not(tmp_path: Path) -> None:
    async with fake_matrix() as fake:
        await fake.write("from before the bot came")
        async with chat_kitchen(tmp_path, account(fake), SECRETS, says("one")) as (made, channel):
            await fake.wait_for(lambda: fake.syncs)
            await until(lambda: channel.status.state == "connected")
            await fake.write("hello")
            (sent,) = await fake.wait_sent(1)
            assert (sent.conversation, sent.text) == (ROOM, "one")
            assert sent.body["msgtype"] == "m.notice"
            assert channel.status.account == BOT
            assert [run.asked for run in await made.runs.list("local")] == ["hello"]


async def test_an_invitation_is_accepted_from_allowed_people_only(tmp_path: Path) -> None:
    async with (
        fake_matrix() as fake,
        chat_kitchen(tmp_path, account(fake), SECRETS) as (_, channel),
    ):
        await fake.invite("!evil:home.test", EVE)
        await fake.invite("!good:home.test", ANN)
        await fake.wait_for(lambda: "!good:home.test" not in fake.invitations)
        assert BOT in fake.members["!good:home.test"]
        assert "!evil:home.test" not in fake.members
        assert channel.counts["refused: unknown_sender"]


async def test_a_gap_in_a_sync_is_filled(tmp_path: Path) -> None:
    async with fake_matrix() as fake:
        fake.timeline_limit = 1
        async with chat_kitchen(
            tmp_path, account(fake), SECRETS, says("a"), says("b"), says("c")
        ) as (made, channel):
            await until(lambda: channel.status.state == "connected")
            async with fake.changed:  # no sync ends before all three are written
                for number in range(3):
                    content = {"msgtype": "m.text", "body": f"message {number}"}
                    event = {"type": "m.room.message", "event_id": f"$g{number}", "sender": ANN}
                    fake.timeline.append((ROOM, event | {"content": content}))
                fake.changed.notify_all()
            await fake.wait_sent(3)
            asked = [run.asked for run in await made.runs.list("local")]
            assert sorted(asked) == ["message 0", "message 1", "message 2"]


async def test_an_approval_is_answered_with_a_code(tmp_path: Path) -> None:
    clock = [1_793_016_000.0]
    async with (
        fake_matrix() as fake,
        chat_kitchen(
            tmp_path, account(fake), SECRETS, BOIL, says("boiled"), clock=lambda: clock[0]
        ) as (made, channel),
    ):
        await until(lambda: channel.status.state == "connected")
        await fake.write("boil eggs")
        (card,) = await fake.wait_sent(1)
        found = re.search(r"approve ([a-z2-7]{8})", card.text)
        assert found is not None, card.text
        await fake.write("approve aaaaaaaa")
        await fake.wait_sent(2)
        assert "no longer valid" in fake.texts[1]
        # The same code is worth nothing from another person, and later.
        await fake.write(f"approve {found[1]}", EVE)
        clock[0] += 1_801
        await fake.write(f"approve {found[1]}")
        await fake.wait_for(lambda: sum("no longer valid" in text for text in fake.texts) == 2)
        assert made.ran == []
        await fake.write("/status")
        await fake.wait_for(lambda: sum("Approval needed" in text for text in fake.texts) == 2)
        again = re.search(r"approve ([a-z2-7]{8})", fake.texts[-1])
        assert again is not None
        await fake.write(f"Approve {again[1]}")
        await fake.wait_for(lambda: "boiled" in fake.texts)
        assert made.ran == ["eggs"]


async def test_in_a_group_only_mentions_are_answered(tmp_path: Path) -> None:
    async with fake_matrix() as fake:
        fake.members[ROOM] = {BOT, ANN, EVE}
        async with chat_kitchen(tmp_path, account(fake), SECRETS, says("yes")) as (made, channel):
            await until(lambda: channel.status.state == "connected")
            await fake.write("lunch?")
            await fake.write("hello", EVE)
            await fake.write("eggs?", content={"m.mentions": {"user_ids": [BOT]}})
            await fake.wait_sent(1)
            assert [run.asked for run in await made.runs.list("local")] == ["eggs?"]


async def test_encryption_limits_duplicates_and_images(tmp_path: Path) -> None:
    async with (
        fake_matrix() as fake,
        chat_kitchen(tmp_path, account(fake), SECRETS, says("an egg")) as (made, channel),
    ):
        await until(lambda: channel.status.state == "connected")
        await fake.add("m.room.encrypted", ANN, ROOM, {"ciphertext": "?"})
        await fake.wait_sent(1)
        assert fake.texts[0].startswith("I cannot read encrypted messages.")
        fake.refusals = [too_many(200)]
        info = {"mimetype": "image/png", "size": 70}
        image = {"msgtype": "m.image", "url": "mxc://home.test/egg", "info": info}
        await fake.write("egg.png", content=image)
        await fake.wait_sent(2)
        assert fake.texts[1] == "an egg"
        assert "image/png" in repr(made.model.requests[0].messages)
        assert len(fake.transactions) == 2


async def test_a_wrong_token_is_named(tmp_path: Path) -> None:
    async with (
        fake_matrix() as fake,
        chat_kitchen(tmp_path, account(fake), {"TOKEN": "syt_wrong_token"}) as (_, channel),
    ):
        await until(lambda: channel.status.state == "failed")
        assert channel.status.problem == (
            "The Matrix homeserver refused the access token; make a new one"
        )
