"""A Slack app in Socket Mode."""

from __future__ import annotations

from pathlib import Path

from evoclaw.orchestrator.channels.chat.channel import REFUSAL_TEXT
from evoclaw.orchestrator.channels.chat.settings import SlackAppSettings
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.providers.scripted import says
from tests.support.channels import ChannelHarness
from tests.support.chat_fakes import json_response
from tests.support.chat_kitchen import BOIL, chat_kitchen
from tests.support.fake_slack import (
    ANN,
    APP_TOKEN,
    BOT_TOKEN,
    DIRECT,
    EVE,
    FakeSlack,
    fake_slack,
)
from tests.support.waiting import until

SECRETS = {"BOT": BOT_TOKEN, "APP": APP_TOKEN}


def app(fake: FakeSlack) -> ChannelSettings:
    table = SlackAppSettings(token_env="BOT", app_token_env="APP", url=f"{fake.url}/api")
    return ChannelSettings(name="team", kind="slack", senders={ANN: "ann"}, slack=table)


async def test_a_direct_message_is_answered_and_acknowledged(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, says("a < b & c")) as (made, channel),
    ):
        await fake.write("is 1 &lt; 2? see <https://eggs.test|eggs>")
        (sent,) = await fake.wait_sent(1)
        assert (sent.conversation, sent.text) == (DIRECT, "a &lt; b &amp; c")
        await fake.wait_for(lambda: not fake.pending)
        assert channel.status.account == "@cook in Kitchen"
        (run,) = await made.runs.list("local")
        assert (run.owner, run.asked) == ("ann", "is 1 < 2? see https://eggs.test")


async def test_a_mention_in_a_channel_is_answered_in_a_thread(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, says("one"), says("two")) as (made, _),
    ):
        event = await fake.write("hello", channel="C1")
        await fake.wait_sent(1)
        assert fake.sent[0].conversation == f"C1/{event['ts']}"
        await fake.write("again", channel="C1", thread_ts=event["ts"])
        await fake.wait_sent(2)
        assert fake.sent[1].conversation == f"C1/{event['ts']}"
        first, second = await made.runs.list("local")
        assert first.session_id == second.session_id


async def test_an_envelope_that_comes_again_after_a_reconnect_starts_no_second_run(
    tmp_path: Path,
) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, says("one"), says("never")) as (made, _),
    ):
        event = await fake.write("hello")
        await fake.wait_sent(1)
        await fake.refresh()
        await until(lambda: fake.connections >= 2)
        envelope = {"type": "event_callback", "event_id": "Ev1", "event": event}
        await fake._arrive({"type": "events_api", "payload": envelope})  # pyright: ignore[reportPrivateUsage]
        await fake.wait_for(lambda: not fake.pending)
        assert len(await made.runs.list("local")) == 1


async def test_other_bots_edits_and_strangers_are_not_answered(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, says("hello ann")),
    ):
        await fake.write("I am a bot", bot_id="B1")
        await fake.write("changed", subtype="message_changed")
        await fake.write("hello", EVE, channel="D0EVE")
        await fake.write("hello?", EVE, channel="D0EVE")
        await fake.write("hello")
        await fake.wait_sent(2)
        assert fake.texts == [REFUSAL_TEXT, "hello ann"]


async def test_an_approval_is_a_block_with_buttons(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, BOIL, says("boiled")) as (made, _),
    ):
        await fake.write("boil eggs")
        (card,) = await fake.wait_sent(1)
        await fake.press(card, "Approve", EVE)
        await fake.press(card, "Approve")
        await fake.wait_for(lambda: "boiled" in fake.texts)
        assert made.ran == ["eggs"]
        await fake.wait_for(lambda: fake.updated)
        assert fake.updated[0]["blocks"] == []


async def test_a_rate_limit_delays_an_answer_and_a_missing_scope_is_named(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS, says("one"), says("two")) as (made, _),
    ):
        limited = {"ok": False, "error": "ratelimited"}
        fake.refusals = [json_response(limited, 429, Retry_After="1")]
        await fake.write("hello")
        await fake.wait_sent(1)
        fake.missing_scope = "chat:write"
        await fake.write("again")
        await until(lambda: _problem(made, "lacks the scope 'chat:write'"))


async def _problem(made: ChannelHarness, text: str) -> bool:
    statement = "SELECT problem FROM channel_deliveries"
    rows = await made.database.read(lambda c: c.execute(statement).fetchall())
    return any(text in row[0] for row in rows)


async def test_a_wrong_token_is_named(tmp_path: Path) -> None:
    async with (
        fake_slack() as fake,
        chat_kitchen(tmp_path, app(fake), SECRETS | {"APP": "xapp-wrong-token"}) as (_, channel),
    ):
        await until(lambda: channel.status.state == "failed")
        assert channel.status.problem == (
            "Slack refused the app-level token: invalid_auth; "
            "copy it again from the settings of the app"
        )
