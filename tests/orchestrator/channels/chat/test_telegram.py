"""A Telegram bot: allowed people, commands, approvals, limits, and messages that come twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.chat.channel import REFUSAL_TEXT, ChatChannel
from evoclaw.orchestrator.channels.chat.settings import TelegramBotSettings
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.orchestrator.channels.status import channel_view
from evoclaw.providers.scripted import ScriptStep, calls, says
from tests.support.channels import ChannelHarness, open_channel_harness
from tests.support.fake_telegram import ANN, EVE, TOKEN, FakeTelegram, fake_telegram, too_many
from tests.support.waiting import until

BOIL = calls(("boil", {"what": "eggs"}))


def bot(fake: FakeTelegram, **more: JSON) -> ChannelSettings:
    table = TelegramBotSettings(token_env="TOKEN", url=fake.url)
    settings = ChannelSettings(
        name="phone", kind="telegram", senders={str(ANN): "ann"}, telegram=table
    )
    return replace(settings, **more)


@asynccontextmanager
async def kitchen(
    folder: Path,
    *steps: ScriptStep,
    token: str = TOKEN,
    telegram: FakeTelegram | None = None,
    **more: JSON,
) -> AsyncGenerator[tuple[FakeTelegram, ChannelHarness, ChatChannel]]:
    async with AsyncExitStack() as stack:
        fake = telegram or await stack.enter_async_context(fake_telegram())
        made = await stack.enter_async_context(open_channel_harness(folder, *steps))
        channel = made.chat(bot(fake, **more), {"TOKEN": token})
        async with made.dispatcher([channel]).serving():
            yield fake, made, channel


async def test_a_person_writes_and_is_answered_in_the_same_chat(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("twelve minutes"), says("yes")) as (fake, made, channel):
        await fake.write("how long do eggs take?")
        (sent,) = await fake.wait_sent(1)
        assert (sent.conversation, sent.text) == (str(ANN), "twelve minutes")
        assert channel.status.state == "connected"
        assert channel.status.account == "@cook_bot"

        await fake.write("really?")
        await fake.wait_sent(2)
        first, second = await made.runs.list("local")
        assert first.session_id == second.session_id
        assert first.owner == "ann"


async def test_a_message_that_arrives_twice_starts_one_run(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("twelve"), says("never")) as (fake, made, _):
        update = await fake.write("how long?")
        await fake.wait_sent(1)
        await fake.wait_for(lambda: not fake.updates)
        update["update_id"] += 1
        fake.updates.append(update)
        await fake.notify()
        await fake.wait_for(lambda: not fake.updates)
        assert len(await made.runs.list("local")) == 1
        assert fake.texts == ["twelve"]


async def test_an_unknown_sender_is_refused_once_and_then_ignored(tmp_path: Path) -> None:
    async with fake_telegram() as fake:
        async with kitchen(tmp_path, says("hello ann"), telegram=fake) as (_, made, channel):
            for text in ("hello", "hello?", "are you there?"):
                await fake.write(text, EVE)
            await fake.write("hello")
            await fake.wait_sent(2)
            assert [(sent.conversation, sent.text) for sent in fake.sent] == [
                (str(EVE), REFUSAL_TEXT),
                (str(ANN), "hello ann"),
            ]
            assert channel.counts["refused: unknown_sender"] == 3
            assert len(await made.runs.list("local")) == 1
        # Also after a restart.
        async with kitchen(tmp_path, says("hello again"), telegram=fake):
            await fake.write("and now?", EVE)
            await fake.write("hello")
            await fake.wait_sent(3)
            assert fake.texts[2:] == ["hello again"]


async def test_a_stranger_in_a_group_is_not_answered_at_all(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("hello ann")) as (fake, _, _):
        await fake.write("/status", EVE, chat=-100)
        await fake.write("hello", chat=-100)
        await fake.wait_sent(1)
        assert [(sent.conversation, sent.text) for sent in fake.sent] == [("-100", "hello ann")]


async def test_a_person_is_added_with_a_one_time_code(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("hello bob"), senders=()) as (fake, made, channel):
        code = await channel.pairing.new_code("bob")
        await fake.write("/pair aaaaaaaaaa", EVE)
        await fake.write(f"/pair {code}", 8)
        await fake.wait_sent(2)
        assert fake.texts[0] == REFUSAL_TEXT
        assert fake.texts[1].startswith("Welcome.")
        await fake.write("hello", 8)
        await fake.wait_sent(3)
        (run,) = await made.runs.list("local")
        assert run.owner == "bob"
        # The code was for one person.
        await fake.write(f"/pair {code}", 9)
        await fake.wait_sent(4)
        assert fake.texts[3] == REFUSAL_TEXT
        assert await channel.pairing.senders() == {"8": "bob"}
        assert await channel.pairing.remove("8")
        await fake.write("hello?", 8)
        await fake.wait_sent(5)
        assert fake.texts[4] == REFUSAL_TEXT


async def test_new_starts_another_session_and_status_reports_nothing(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("one"), says("two")) as (fake, made, _):
        await fake.write("first")
        await fake.wait_sent(1)
        await fake.write("/new")
        await fake.wait_sent(2)
        await fake.write("second")
        await fake.wait_sent(3)
        await fake.write("/status")
        await fake.wait_sent(4)
        assert fake.texts == [
            "one",
            "A new session starts with your next message.",
            "two",
            "Nothing runs here. Write to me to start.",
        ]
        assert len({run.session_id for run in await made.runs.list("local")}) == 2


async def test_stop_cancels_a_run_that_waits(tmp_path: Path) -> None:
    async with kitchen(tmp_path, BOIL, says("never")) as (fake, made, _):
        await fake.write("boil eggs")
        await fake.wait_sent(1)
        await fake.write("/stop")
        await fake.wait_for(lambda: "Stopped 1 run." in fake.texts)
        (run,) = await made.runs.list("local")
        await until(lambda: _has_ended(made, run.run_id))
        assert made.ran == []


async def _has_ended(made: ChannelHarness, run_id: str) -> bool:
    view = await made.runs.get("local", run_id)
    return view is not None and view.state == "ended"


async def test_an_approval_is_asked_with_buttons_and_one_press_answers_it(tmp_path: Path) -> None:
    async with kitchen(tmp_path, BOIL, says("they are boiled")) as (fake, made, _):
        await fake.write("boil eggs")
        (card,) = await fake.wait_sent(1)
        assert "wants to use boil" in card.text
        assert '"what": "eggs"' in card.text
        # Another person cannot answer, also with the same data.
        (row,) = card.body["reply_markup"]["inline_keyboard"]
        await fake.press_data(row[0]["callback_data"], EVE, EVE)
        assert made.ran == []

        await fake.press(card, "Approve")
        await fake.wait_sent(3)
        assert sorted(fake.texts[1:]) == ["The call was approved.", "they are boiled"]
        assert made.ran == ["eggs"]
        assert fake.cleared_buttons == [5]
        assert fake.answered_presses
        # A second press changes nothing.
        await fake.press(card, "Deny")
        await fake.wait_sent(4)
        assert fake.texts[3] == "This call no longer waits for an answer."


async def test_a_button_expires_and_status_asks_again(tmp_path: Path) -> None:
    now = 1_793_016_000.0
    async with fake_telegram() as fake:
        clock = [now]
        async with open_channel_harness(
            tmp_path, BOIL, says("boiled"), clock=lambda: clock[0]
        ) as made:
            channel = made.chat(bot(fake), {"TOKEN": TOKEN})
            async with made.dispatcher([channel]).serving():
                await fake.write("boil eggs")
                (card,) = await fake.wait_sent(1)
                clock[0] += 901
                await fake.press(card, "Approve")
                await fake.wait_sent(2)
                assert "no longer valid" in fake.texts[1]
                assert made.ran == []
                await fake.write("/status")
                await fake.wait_sent(3)
                await fake.press(fake.sent[2], "Deny")
                await fake.wait_for(lambda: "The call was denied." in fake.texts)
                await fake.wait_for(lambda: "boiled" in fake.texts)
                assert made.ran == []


async def test_a_long_answer_is_split_and_continues_after_a_rate_limit(tmp_path: Path) -> None:
    code = "\n".join(f"line {number:04}" for number in range(900))
    async with kitchen(tmp_path, says(f"```\n{code}\n```")) as (fake, _, _):
        fake.refusals = [too_many(1), web.Response(status=502)]
        await fake.write("show me")
        await fake.wait_for(lambda: fake.sent and "line 0899" in fake.texts[-1])
        assert len(fake.sent) == 3
        assert all(text.count("```") == 2 for text in fake.texts)
        assert "".join(fake.texts).count("line 0000") == 1


async def test_a_photo_is_passed_on_and_another_file_is_named(tmp_path: Path) -> None:
    async with kitchen(tmp_path, says("an egg"), says("no")) as (fake, made, _):
        photo = [{"file_id": "small", "file_size": 5}, {"file_id": "large", "file_size": 99}]
        await fake.write("", photo=photo, caption="what is it?")
        await fake.wait_sent(1)
        document = {"file_id": "d", "file_name": "recipe.pdf", "mime_type": "application/pdf"}
        await fake.write("", document=document)
        await fake.wait_sent(2)
        first, second = (request.messages for request in made.model.requests)
        assert "image/png" in repr(first)
        assert "recipe.pdf: not read; only images are" in repr(second)


async def test_a_wrong_token_is_reported_and_the_channel_keeps_trying(
    tmp_path: Path,
) -> None:
    wrong = "110201543:wrong-token-of-nobody"
    async with kitchen(tmp_path, token=wrong) as (_, made, channel):
        await until(lambda: channel.status.state == "failed")
        assert channel.status.problem == (
            "Telegram refused the token (status 401); copy it again from @BotFather"
        )
        view = await channel_view(channel, made.letters)
        assert view.fix == (
            "Correct the environment variable TOKEN, check with `evoclaw channels test phone`, "
            "then restart the service."
        )
        assert view.last_problem == view.problem


async def test_the_state_of_a_channel_says_what_to_do_next(tmp_path: Path) -> None:
    async with kitchen(tmp_path, senders=()) as (fake, made, channel):
        await until(lambda: channel.status.state == "connected")
        since = channel.status.changed_at
        view = await channel_view(channel, made.letters)
        assert view.fix.endswith("Run `evoclaw channels pair phone`.")

        code = await channel.pairing.new_code("bob")
        await fake.write(f"/pair {code}", EVE)
        await fake.wait_sent(1)
        view = await channel_view(channel, made.letters)
        assert (view.fix, view.paired, view.account) == ("", {str(EVE): "bob"}, "@cook_bot")
        assert (view.state, view.changed_at) == ("connected", since)


async def test_a_channel_whose_service_is_unreachable_reconnects_by_itself(tmp_path: Path) -> None:
    nothing = FakeTelegram(url="http://127.0.0.1:9")
    async with kitchen(tmp_path, telegram=nothing) as (_, made, channel):
        await until(lambda: channel.status.state == "failed")
        view = await channel_view(channel, made.letters)
        assert "cannot be reached" in view.problem
        assert view.fix.startswith("The channel reconnects by itself.")
