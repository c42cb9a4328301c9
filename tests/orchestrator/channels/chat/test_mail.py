"""A mailbox: IMAP in, SMTP out."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from email.message import EmailMessage
from pathlib import Path

import pytest
from msgspec.structs import replace

from evoclaw.core.messages import JSON
from evoclaw.orchestrator.channels.chat.channel import ChatChannel
from evoclaw.orchestrator.channels.chat.mail import MailAccount
from evoclaw.orchestrator.channels.chat.mail_text import html_text, new_text, read_mail
from evoclaw.orchestrator.channels.chat.messages import ConversationMessage
from evoclaw.orchestrator.channels.chat.settings import MailboxSettings
from evoclaw.orchestrator.channels.settings import ChannelSettings
from evoclaw.providers.scripted import ScriptStep, says
from tests.support.certificates import make_certificates
from tests.support.channels import ChannelHarness
from tests.support.chat_fakes import PNG
from tests.support.chat_kitchen import BOIL, chat_kitchen
from tests.support.fake_imap import FakeImap, fake_imap
from tests.support.mail_server import PASSWORD, USER, MailServer, mail_server
from tests.support.waiting import until

ANN = "ann@home.test"
PASSED = "mx.home.test; spf=pass; dkim=pass; dmarc=pass header.from=home.test"


@asynccontextmanager
async def mailbox(
    folder: Path, *steps: ScriptStep, password: str = PASSWORD, **more: JSON
) -> AsyncGenerator[tuple[FakeImap, MailServer, ChannelHarness, ChatChannel]]:
    files = make_certificates(folder)
    async with fake_imap(files) as imap, mail_server(files) as smtp:
        table = MailboxSettings(
            address="cook@home.test",
            imap_server="127.0.0.1",
            imap_port=imap.port,
            smtp_server="127.0.0.1",
            smtp_port=smtp.port,
            ca_file=files.ca,
            user=USER,
            password_env="PASSWORD",
            poll_s=0.05,
        )
        table = replace(table, **more)
        settings = ChannelSettings(name="mail", kind="email", senders={ANN: "ann"}, email=table)
        async with chat_kitchen(folder, settings, {"PASSWORD": password}, *steps) as (
            made,
            made_ch,
        ):
            yield imap, smtp, made, made_ch


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content()).strip()


async def test_a_mail_is_answered_in_its_thread(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("twelve"), says("yes")) as (imap, smtp, made, channel):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("How long?\n\n-- \nAnn, Home Ltd.")
        await until(lambda: smtp.mails)
        (answer,) = smtp.mails
        assert (answer["To"], answer["Subject"]) == (ANN, "Re: Eggs")
        assert answer["In-Reply-To"] == answer["References"] == "<m1@home.test>"
        assert answer["Auto-Submitted"] == "auto-replied"
        assert text_of(answer) == "twelve"
        assert smtp.encrypted == [True]

        quote = f"Really?\n\nOn Monday, Cook wrote:\n> {text_of(answer)}\n"
        imap.deliver(quote, subject="Re: Eggs", In_Reply_To=answer["Message-ID"])
        await until(lambda: len(smtp.mails) == 2)
        runs = await made.runs.list("local")
        assert sorted(run.asked for run in runs) == ["How long?", "Really?"]
        assert len({run.session_id for run in runs}) == 1
        await until(lambda: imap.seen == {1, 2})
        assert [run.owner for run in runs] == ["ann", "ann"]


async def test_the_position_in_a_mailbox_is_known_before_the_first_look(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    async with fake_imap(files) as imap:
        settings = MailboxSettings(
            address="cook@home.test", imap_server="127.0.0.1", imap_port=imap.port,
            smtp_server="127.0.0.1", ca_file=files.ca, user=USER, password_env="PASSWORD",
        )  # fmt: skip
        account = MailAccount(settings, PASSWORD)
        imap.deliver("old")
        async with aclosing(account.receive("")) as batches:
            first = await anext(batches)
        assert (first.events, first.cursor, imap.polls) == ((), "1/1", 0)
        imap.deliver("came just before a crash")
        async with aclosing(account.receive(first.cursor)) as batches:
            assert not (await anext(batches)).events
            (mail,) = (await anext(batches)).events
        assert isinstance(mail, ConversationMessage) and mail.text == "came just before a crash"


async def test_another_thread_is_another_session_and_old_mails_are_skipped(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("one"), says("two")) as (imap, smtp, made, channel):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("first")
        imap.deliver("second", subject="Other")
        await until(lambda: len(smtp.mails) == 2)
        assert len({run.session_id for run in await made.runs.list("local")}) == 2


async def test_strangers_programs_and_lists_get_no_answer(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("hello")) as (imap, smtp, made, channel):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("let me in", "eve@evil.test")
        imap.deliver("I am on holiday", Auto_Submitted="auto-replied")
        imap.deliver("newsletter", List_Id="<eggs.home.test>")
        imap.deliver("bounce", Return_Path="<>")
        imap.deliver("hello")
        await until(lambda: smtp.mails)
        assert [text_of(mail) for mail in smtp.mails] == ["hello"]
        assert [run.asked for run in await made.runs.list("local")] == ["hello"]


async def test_a_mail_is_trusted_only_if_the_own_server_confirmed_it(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("one"), authserv_id="mx.home.test") as (
        imap,
        smtp,
        made,
        channel,
    ):
        await until(lambda: channel.status.state == "connected")
        forged = "mx.home.test; dmarc=fail header.from=home.test"
        imap.deliver("forged", Authentication_Results=forged)
        imap.deliver("by another server", Authentication_Results=PASSED.replace("mx.", "mx2."))
        imap.deliver("real", Authentication_Results=PASSED)
        await until(lambda: smtp.mails)
        assert [run.asked for run in await made.runs.list("local")] == ["real"]
        (first,) = made.model.requests
        assert "untrusted=True" not in repr(first.messages[-1])


async def test_without_confirmation_mails_are_untrusted(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("one")) as (imap, smtp, made, channel):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("anybody could write this")
        await until(lambda: smtp.mails)
        (first,) = made.model.requests
        assert "untrusted=True" in repr(first.messages[-1])


async def test_an_approval_is_answered_with_the_code_of_a_mail(tmp_path: Path) -> None:
    async with mailbox(tmp_path, BOIL, says("boiled"), authserv_id="mx.home.test") as (
        imap,
        smtp,
        made,
        channel,
    ):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("boil eggs", Authentication_Results=PASSED)
        await until(lambda: smtp.mails)
        found = re.search(r"approve ([a-z2-7]{8})", text_of(smtp.mails[0]))
        assert found is not None, text_of(smtp.mails[0])
        imap.deliver(
            f"approve {found[1]}\n\nSent from my phone",
            Authentication_Results=PASSED,
            In_Reply_To=smtp.mails[0]["Message-ID"],
        )
        await until(lambda: "boiled" in [text_of(mail) for mail in smtp.mails])
        assert made.ran == ["eggs"]


async def test_a_lost_connection_and_renumbered_mails_lose_nothing(tmp_path: Path) -> None:
    async with mailbox(tmp_path, says("one"), says("two"), says("three")) as (
        imap,
        smtp,
        made,
        channel,
    ):
        await until(lambda: channel.status.state == "connected")
        imap.deliver("first")
        await until(lambda: imap.seen == {1})
        imap.disconnect()
        imap.deliver("second")
        await until(lambda: len(smtp.mails) == 2)
        imap.uid_validity = 2
        imap.disconnect()
        imap.deliver("third")
        await until(lambda: len(smtp.mails) == 3)
        asked = sorted(run.asked for run in await made.runs.list("local"))
        assert asked == ["first", "second", "third"]


async def test_a_wrong_password_is_named(tmp_path: Path) -> None:
    async with mailbox(tmp_path, password="wrong-password") as (_, _, _, channel):
        await until(lambda: channel.status.state == "failed")
        assert channel.status.problem == (
            "the mail server 127.0.0.1 refused the password of ann; "
            "many servers need an app password"
        )


def test_images_of_a_mail_are_attachments() -> None:
    mail = EmailMessage()
    mail["From"], mail["Message-ID"] = f"Ann <{ANN.upper()}>", "<m1@home.test>"
    mail.set_content("look")
    mail.add_attachment(PNG, maintype="image", subtype="png", filename="egg.png")
    found = read_mail(bytes(mail), "cook@home.test", "")
    assert found is not None
    assert (found.sender, found.text) == (ANN, "look")
    assert found.attachments == (("egg.png", "image/png", PNG),)


@pytest.mark.parametrize(
    "data",
    [b"", b"From: a@b.c, d@e.f\r\n\r\nx", b"From: cook@home.test\r\n\r\nx", b"\xff\x00From: \xff"],
)
def test_a_mail_without_one_other_sender_is_ignored(data: bytes) -> None:
    assert read_mail(data, "cook@home.test", "") is None


def test_quotes_signatures_and_markup_are_removed() -> None:
    assert (
        new_text("Yes.\n\nOn Tue, 3 Nov 2026 at 10:00, Cook\n<c@h.test> wrote:\n> a\n> b") == "Yes."
    )
    assert new_text("> quoted first\nmy answer") == "> quoted first\nmy answer"
    html = "<head><title>t</title></head><p>Hello <b>you</b></p><blockquote>old</blockquote>"
    assert html_text(html) == "Hello you"
