"""Conversations in chats and by mail, from the user's chair: a real `evoclaw up`, and its end."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path

from evoclaw.cli import exits
from tests.support import fake_discord as discord
from tests.support import fake_matrix as matrix
from tests.support import fake_slack as slack
from tests.support import fake_telegram as telegram
from tests.support.certificates import make_certificates
from tests.support.fake_imap import FakeImap, fake_imap
from tests.support.mail_server import PASSWORD, USER, MailServer, mail_server
from tests.support.notification_services import WEBHOOK_SECRET, notification_services
from tests.support.seat import seat
from tests.support.up_process import PATIENCE, ok, wait_for_state
from tests.support.waiting import until

SERVER = """
[server]
requests_per_minute = 100000
burst = 10000
"""
ANN_MAIL = "ann@home.test"


@dataclass
class Services:
    """The fakes, and settings that use them."""

    telegram: telegram.FakeTelegram
    slack: slack.FakeSlack
    discord: discord.FakeDiscord
    matrix: matrix.FakeMatrix
    imap: FakeImap
    smtp: MailServer
    ca: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "TELEGRAM_TOKEN": telegram.TOKEN,
            "SLACK_TOKEN": slack.BOT_TOKEN,
            "SLACK_APP_TOKEN": slack.APP_TOKEN,
            "DISCORD_TOKEN": discord.TOKEN,
            "MATRIX_TOKEN": matrix.TOKEN,
            "MAIL_PASSWORD": PASSWORD,
        }

    @property
    def phone(self) -> str:
        return f"""
[[channels]]
name = "phone"
kind = "telegram"
senders = {{ {telegram.ANN} = "ann" }}
[channels.telegram]
token_env = "TELEGRAM_TOKEN"
url = "{self.telegram.url}"
"""

    @property
    def others(self) -> str:
        return f"""
[[channels]]
name = "team"
kind = "slack"
senders = ["{slack.ANN}"]
[channels.slack]
token_env = "SLACK_TOKEN"
app_token_env = "SLACK_APP_TOKEN"
url = "{self.slack.url}/api"

[[channels]]
name = "guild"
kind = "discord"
senders = ["{discord.ANN}"]
[channels.discord]
token_env = "DISCORD_TOKEN"
url = "{self.discord.url}/api/v10"

[[channels]]
name = "home"
kind = "matrix"
senders = ["{matrix.ANN}"]
[channels.matrix]
token_env = "MATRIX_TOKEN"
url = "{self.matrix.url}"

[[channels]]
name = "mail"
kind = "email"
senders = ["{ANN_MAIL}"]
[channels.email]
address = "cook@home.test"
imap_server = "127.0.0.1"
imap_port = {self.imap.port}
smtp_server = "127.0.0.1"
smtp_port = {self.smtp.port}
user = "{USER}"
password_env = "MAIL_PASSWORD"
ca_file = "{self.ca}"
poll_s = 0.2
"""


@asynccontextmanager
async def services(folder: Path) -> AsyncGenerator[Services]:
    files = make_certificates(folder)
    async with AsyncExitStack() as stack:
        yield Services(
            await stack.enter_async_context(telegram.fake_telegram()),
            await stack.enter_async_context(slack.fake_slack()),
            await stack.enter_async_context(discord.fake_discord()),
            await stack.enter_async_context(matrix.fake_matrix()),
            await stack.enter_async_context(fake_imap(files)),
            await stack.enter_async_context(mail_server(files)),
            files.ca,
        )


def folder_for(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


async def test_people_talk_to_the_agent_through_every_service(tmp_path: Path) -> None:
    async with (
        services(folder_for(tmp_path, "fakes")) as there,
        seat(
            folder_for(tmp_path, "seat"), SERVER + there.phone + there.others, env=there.env
        ) as place,
    ):

        async def all_connected() -> bool:
            listed = json.loads((await place.type("channels", "--json")).out)
            return [row["state"] for row in listed] == ["connected"] * 5

        await until(all_connected, PATIENCE, "all channels are connected")
        shown = (await place.type("channels")).out
        assert "connected as @cook_bot" in shown
        for name in ("phone", "team", "guild", "home", "mail"):
            tested = await place.type("channels", "test", name)
            assert tested.code == exits.OK, tested.err

        await there.telegram.write("wait gate 4")
        await until(lambda: there.telegram.typed, PATIENCE, "the typing indicator is shown")
        place.up.models.gates["gate"].set()
        await there.telegram.wait_sent(1)
        assert there.telegram.texts == ["word0 word1 word2 word3"]

        await there.slack.write("say hello slack")
        await there.discord.write("say hello discord")
        await there.matrix.write("say hello matrix")
        there.imap.deliver("say hello mail", ANN_MAIL)
        assert (await there.slack.wait_sent(1))[0].text == "hello slack"
        assert (await there.discord.wait_sent(1))[0].text == "hello discord"
        assert (await there.matrix.wait_sent(1))[0].text == "hello matrix"
        await until(lambda: there.smtp.mails, PATIENCE, "the mail is answered")
        assert _text(there.smtp.mails[0]) == "hello mail"

        async def all_have_sent() -> bool:
            listed = json.loads((await place.type("channels", "--json")).out)
            return all(row["last_received_at"] and row["last_sent_at"] for row in listed)

        await until(all_have_sent, PATIENCE, "the last messages of all channels are listed")
        client = await place.up.wait_ready()
        runs = ok(await client.get("/v1/runs"))["items"]
        assert len(runs) == 5
        assert {run["owner"] for run in runs} >= {"ann", f"team:{slack.ANN}", f"mail:{ANN_MAIL}"}


def _text(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content()).strip()


async def test_an_approval_is_pressed_in_telegram_and_the_command_runs_once(
    tmp_path: Path,
) -> None:
    async with (
        services(folder_for(tmp_path, "fakes")) as there,
        seat(folder_for(tmp_path, "seat"), SERVER + there.phone, edge=True, env=there.env) as place,
    ):
        await place.wait_online("local")
        await there.telegram.write('call bash {"command": "echo x >> mark.txt"}\nsay it is done')
        (card,) = await there.telegram.wait_sent(1)
        assert "wants to use bash on local" in card.text
        assert "echo x >> mark.txt" in card.text
        await there.telegram.press(card, "Approve")
        await there.telegram.wait_for(lambda: "it is done" in there.telegram.texts)
        assert place.up.marks("mark.txt") == 1
        logged = await place.type("audit", "search", "--json")
        assert "approved by ann in the channel 'phone'" in logged.out


async def test_a_person_is_paired_with_a_code_of_the_command_line(tmp_path: Path) -> None:
    async with (
        services(folder_for(tmp_path, "fakes")) as there,
        seat(
            folder_for(tmp_path, "seat"),
            SERVER + there.phone.replace("senders = {", "# senders = {"),
            env=there.env,
        ) as place,
    ):
        refused = await place.type("channels", "pair", "nothing")
        assert refused.code != exits.OK
        shown = await place.type("channels", "pair", "phone", "--user", "bob")
        assert shown.code == exits.OK, shown.err
        await there.telegram.write(shown.out.strip(), 8)
        await there.telegram.wait_sent(1)
        await there.telegram.write("say welcome bob", 8)
        await there.telegram.wait_sent(2)
        assert there.telegram.texts[1] == "welcome bob"
        listed = json.loads((await place.type("channels", "--json")).out)
        assert listed[0]["senders"] == ["8"]
        removed = await place.type("channels", "unpair", "phone", "8")
        assert removed.code == exits.OK, removed.err
        assert json.loads((await place.type("channels", "--json")).out)[0]["senders"] == []


async def test_a_broken_token_is_named_and_stops_nothing_else(tmp_path: Path) -> None:
    async with services(folder_for(tmp_path, "fakes")) as there:
        env = there.env | {"TELEGRAM_TOKEN": "110201543:a-token-of-nobody", "MAIL_PASSWORD": "no"}
        async with seat(
            folder_for(tmp_path, "seat"), SERVER + there.phone + there.others, env=env
        ) as place:
            await there.slack.write("say hello slack")
            assert (await there.slack.wait_sent(1))[0].text == "hello slack"
            refusal = "Telegram refused the token (status 401); copy it again from @BotFather"
            await place.up.wait_for_output(f"channel phone: {refusal}")
            assert "a-token-of-nobody" not in place.up.output()
            tested = await place.type("channels", "test", "phone")
            assert (tested.code, tested.err.strip()) == (exits.FAILED, f"phone: {refusal}")
            facts = json.loads((await place.type("doctor", "--json")).out)
            (found,) = [fact for fact in facts if fact["name"] == "channels"]
            assert not found["ok"]
            assert f"phone: {refusal}" in found["says"]
            assert "mail: the mail server 127.0.0.1 refused the password" in found["says"]
            rows = json.loads((await place.type("channels", "--json")).out)
            assert {row["name"]: row["state"] for row in rows}["phone"] == "failed"
            fixes = {row["name"]: row["fix"] for row in rows}
            assert "Correct the environment variable TELEGRAM_TOKEN" in fixes["phone"]
            assert "Correct the environment variable MAIL_PASSWORD" in fixes["mail"]


async def test_a_message_makes_one_run_whenever_the_service_is_killed(tmp_path: Path) -> None:
    async with (
        services(folder_for(tmp_path, "fakes")) as there,
        seat(
            folder_for(tmp_path, "seat"), SERVER + there.phone + there.others, env=there.env
        ) as place,
    ):
        fake = there.telegram
        await fake.wait_for(lambda: fake.polls)
        await there.discord.wait_for(lambda: there.discord.identifies)
        await until(lambda: there.imap.polls, PATIENCE)

        # Killed as soon as the messages were handed over, before anything can be confirmed.
        polls = fake.polls
        await fake.write("say telegram")
        await there.slack.write("say slack")
        await there.discord.write("say discord")
        there.imap.deliver("say mail", ANN_MAIL)
        await fake.wait_for(lambda: fake.polls > polls)
        await place.up.kill()
        _expire_leases(place.up.home, "channel_deliveries")  # an answer may have been under way
        client = await place.up.start()
        await fake.wait_sent(1)
        await there.slack.wait_sent(1)
        await there.discord.wait_sent(1)
        await until(lambda: there.smtp.mails, PATIENCE, "the mail is answered")

        # Killed while the model answers: the message is stored, and comes again.
        update = await fake.write("wait gate 4")
        await until(lambda: place.up.models.held["gate"].is_set(), PATIENCE)
        await place.up.kill()
        place.up.models.gates["gate"].set()
        fake.updates = [update]
        there.imap.uid_validity += 1
        _expire_leases(place.up.home, "channel_deliveries")
        client = await place.up.start()
        await fake.wait_for(lambda: "word0 word1 word2 word3" in fake.texts)
        await fake.wait_for(lambda: not fake.updates)

        runs = ok(await client.get("/v1/runs"))["items"]
        assert sorted(run["asked"] for run in runs) == [
            "say discord", "say mail", "say slack", "say telegram", "wait gate 4",
        ]  # fmt: skip


async def test_an_answer_is_delivered_after_a_kill_during_its_delivery(tmp_path: Path) -> None:
    async with (
        services(folder_for(tmp_path, "fakes")) as there,
        seat(folder_for(tmp_path, "seat"), SERVER + there.phone, env=there.env) as place,
    ):
        fake = there.telegram
        fake.is_held = True
        await fake.write("say hello")
        await fake.wait_sent(1)
        # The service is killed while it waits for the answer of Telegram.
        await place.up.kill()
        await fake.release()
        _expire_leases(place.up.home, "channel_deliveries")
        await place.up.start()
        await fake.wait_sent(2)
        await until(lambda: _states(place.up.home, "channel_deliveries") == ["sent"], PATIENCE)
        await fake.write("say again")
        await fake.wait_sent(3)
        assert fake.texts == ["hello", "hello", "again"]


async def test_a_notification_is_sent_again_once_after_a_kill_during_its_delivery(
    tmp_path: Path,
) -> None:
    async with notification_services() as phones:
        settings = f"""{SERVER}
[[notify]]
name = "hook"
kind = "webhook"
[notify.webhook]
url = "{phones.url}/hook"
secret_env = "HOOK_SECRET"
"""
        env = {"HOOK_SECRET": WEBHOOK_SECRET}
        async with seat(tmp_path, settings, env=env) as place:
            client = await place.up.wait_ready()
            phones.is_held = True
            answer = await client.post("/v1/runs", {"message": "fail 400"})
            run_id = answer.json["run_id"]
            await wait_for_state(client, run_id)
            (held,) = await phones.wait_for("webhook")
            # The service is killed while it waits for the answer of the hook.
            await place.up.kill()
            await phones.release()
            _expire_leases(place.up.home, "notifications")
            await place.up.start()
            first, second = await phones.wait_for("webhook", 2)
            assert first.body["id"] == second.body["id"] == held.body["id"]
            await until(lambda: _states(place.up.home, "notifications") == ["sent"], PATIENCE)
            # It is not sent a third time, also not after another start.
            await place.up.kill()
            _expire_leases(place.up.home, "notifications")
            await place.up.start()
            tested = await place.type("notify", "test", "hook")
            assert tested.code == exits.OK, tested.err
            assert [one.body["reason"] for one in phones.of("webhook")] == [
                "failed", "failed", "test",
            ]  # fmt: skip


def _expire_leases(home: Path, table: str) -> None:
    """Two minutes pass: what a dead process claimed is due again."""
    with closing(sqlite3.connect(home / "evoclaw.db")) as connection, connection:
        connection.execute(f"UPDATE {table} SET next_at = 0 WHERE state = 'due'")


def _states(home: Path, table: str) -> list[str]:
    with closing(sqlite3.connect(home / "evoclaw.db")) as connection:
        return [row[0] for row in connection.execute(f"SELECT state FROM {table}").fetchall()]
