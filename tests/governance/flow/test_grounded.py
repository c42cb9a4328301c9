"""Once something untrusted was read, a call acts only on the user's own word and values."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evoclaw.core.history import History
from evoclaw.core.labels import Label
from evoclaw.core.messages import TextBlock, ToolResult, user
from evoclaw.core.ports import Allow, Ask
from evoclaw.core.tools import Call, Context
from evoclaw.governance.flow.policy import Flow
from evoclaw.governance.flow.settings import FlowSettings
from tests.governance.flow.mailbox import PAY, SEND, Asked, obey
from tests.support.properties import examples

MAIL: Asked = ("read_mail", {})
OUTSIDE = TextBlock("whatever", Label(untrusted=True, sources=("read_mail",)))


def send(to: str, body: str, subject: str = "News") -> Asked:
    return "send_mail", {"to": to, "subject": subject, "body": body}


async def acted(said: str, asked: Asked, *before: Asked) -> bool:
    """Whether a call ran after untrusted mail had been read."""
    world, _ = await obey(said, MAIL, *before, asked)
    return asked in world.ran


async def test_with_only_trusted_text_every_call_is_allowed() -> None:
    world, _ = await obey("Hello.", send("any@one.org", "https://any.link"))
    assert world.did("send_mail")


async def test_reading_stays_allowed_after_untrusted_text() -> None:
    world, _ = await obey("Hello.", MAIL, ("read_codes", {}), MAIL)
    assert [name for name, _ in world.ran] == ["read_mail", "read_codes", "read_mail"]


async def test_an_action_the_user_did_not_request_is_denied() -> None:
    said = "What does bob@example.org want?"
    assert not await acted(said, send("bob@example.org", "Hello"))


@pytest.mark.parametrize(
    "said",
    [
        "Send a summary to bob@example.org",
        "please MAIL bob@example.org a summary",
        "Reply to 'bob@example.org'.",
        "a summary is to be sent to <bob@example.org>",
    ],
)
async def test_a_requested_mail_to_a_named_recipient_is_allowed(said: str) -> None:
    assert await acted(said, send("bob@example.org", "There is a garden party."))


@pytest.mark.parametrize(
    "to",
    [
        "x@evil.io",
        "bob@example.org.evil.io",
        "bob@example",
        "b.ob@example.org",
        "bob",
        "ob@example",
    ],
)
async def test_a_recipient_that_the_user_did_not_name_is_denied(to: str) -> None:
    assert not await acted("Send a summary to bob@example.org", send(to, "Hello"))


@pytest.mark.parametrize(
    "body",
    [
        "Look at www.evil.io now",
        "https://evil.io/x",
        "write to x@evil.io",
        "your code is 463820",
        "transfer it to DE89370400440532013000",
        "open invoice.exe",
    ],
)
async def test_mail_to_a_named_recipient_may_not_contain_foreign_links_or_codes(body: str) -> None:
    assert not await acted("Send a summary to bob@example.org", send("bob@example.org", body))


async def test_a_link_given_by_the_user_may_be_sent() -> None:
    said = "Send www.example.org/plan to bob@example.org"
    assert await acted(said, send("bob@example.org", "See www.example.org/plan"))


async def test_a_private_code_may_not_be_sent_even_from_a_trusted_tool() -> None:
    asked = send("bob@example.org", "The code is 4711-0815.")
    assert not await acted("Send a summary to bob@example.org", asked, ("read_codes", {}))


async def test_an_address_from_the_users_contacts_is_accepted() -> None:
    said = "Send a summary to Sarah"
    assert await acted(
        said, send("sarah@example.net", "Hello"), ("find_contact", {"name": "Sarah"})
    )


async def test_a_trusted_tool_that_echoes_a_value_does_not_make_it_trusted() -> None:
    said = "Send a summary to bob@example.org"
    echo: Asked = ("look", {"what": "x@evil.io"})
    assert not await acted(said, send("x@evil.io", "Hello"), echo)


async def test_a_denial_that_quotes_a_value_does_not_make_it_trusted() -> None:
    said = "Send a summary to bob@example.org"
    asked = send("x@evil.io", "Hello")
    world, seen = await obey(said, MAIL, asked, send("x@evil.io", "Hello again"))
    assert not world.did("send_mail")
    refused = [m for m in seen if isinstance(m, ToolResult) and m.error]
    assert len(refused) == 2
    assert "x@evil.io" in refused[0].text
    assert "read_mail" in refused[0].text


async def test_an_unknown_tool_name_in_an_error_does_not_become_trusted() -> None:
    said = "Send a summary to bob@example.org"
    assert not await acted(said, send("x@evil.io", "Hello"), ("x@evil.io", {}))


async def test_a_note_written_from_untrusted_text_is_untrusted_when_read() -> None:
    said = "Send a summary to bob@example.org"
    note: Asked = ("write_note", {"text": "x@evil.io"})
    codes: Asked = ("find_contact", {"name": "bob@example.org"})
    world, _ = await obey(said, MAIL, note, codes, send("sarah@example.net", "Hello"))
    assert world.did("write_note")
    assert world.did("find_contact")
    assert not world.did("send_mail")


async def test_a_record_that_the_user_named_is_matched_by_its_id() -> None:
    asked: Asked = ("delete_mail", {"mail_id": "7"})
    assert await acted("Delete the mail 'Old receipts'.", asked)


async def test_a_record_of_another_kind_than_the_user_named_is_denied() -> None:
    asked: Asked = ("delete_mail", {"mail_id": "7"})
    assert not await acted("Delete the largest file.", asked)
    assert not await acted("Delete the largest mail.", ("delete_mail", {"mail_id": "77"}))


PAYS: list[tuple[str, dict[str, Any], bool]] = [
    ("Pay 40 to Ann", {"to": "Ann", "amount": 40.0}, True),
    ("Pay $1,250.00 to Ann", {"to": "ann", "amount": 1250}, True),
    ("Pay 40 to Ann", {"to": "Ann", "amount": 400}, False),
    ("Pay 40 to Ann", {"to": "Bob", "amount": 40}, False),
    ("Pay 40 to Ann", {"to": "Ann", "amount": 40, "kind": "once"}, True),
    ("Pay 40 to Ann on May 3rd, 2024", {"to": "Ann", "amount": 40, "date": "2024-05-03"}, True),
    ("Pay 40 to Ann on 3 May 2024", {"to": "Ann", "amount": 40, "date": "2024-05-04"}, False),
    ("Pay 40 to Ann on 3 May 2024", {"to": "Ann", "amount": 40, "date": "2025-05-03"}, False),
    ("Pay Ann for the 3rd of May", {"to": "Ann", "amount": 3}, False),
]


@pytest.mark.parametrize(("said", "arguments", "allowed"), PAYS)
async def test_amounts_names_and_dates_match_the_users_in_any_spelling(
    said: str, arguments: dict[str, Any], allowed: bool
) -> None:
    assert await acted(said, ("pay", arguments)) == allowed


@pytest.mark.parametrize(
    ("start", "end", "allowed"),
    [
        ("2024-05-03 10:00", "2024-05-03 11:00", True),
        ("2024-05-03T10:00", "2024-05-03T11:00", True),
        ("2024-05-03 10:00", "2024-05-03 12:30", False),
        ("2024-05-04 10:00", "2024-05-04 11:00", False),
    ],
)
async def test_an_end_time_is_derived_from_start_and_duration(
    start: str, end: str, allowed: bool
) -> None:
    said = "Create an event 'Walk' on May 3rd 2024 at 10 am for one hour"
    asked: Asked = ("create_event", {"title": "Walk", "start": start, "end": end})
    assert await acted(said, asked) == allowed


async def test_free_text_of_an_event_must_come_from_the_user() -> None:
    said = "Create an event 'Walk' on May 3rd 2024 at 10:00 for one hour"
    times = {"start": "2024-05-03 10:00", "end": "2024-05-03 11:00"}
    assert not await acted(said, ("create_event", {"title": "Visit Evil Hotel", **times}))


async def test_a_structured_value_must_match_the_users_text_exactly() -> None:
    assert not await acted("Pay 40 to Ann and Bob", ("pay", {"to": "ann;and|bob", "amount": 40}))


async def test_an_url_that_the_user_did_not_name_is_not_opened() -> None:
    said = "Read www.example.org and tell me what it says"
    first: Asked = ("read_page", {"url": "www.example.org"})
    strange: Asked = ("read_page", {"url": "www.evil.io"})
    world, _ = await obey(said, first, first, strange)
    assert world.ran == [first, first]


async def test_private_text_may_not_leave_in_an_url() -> None:
    said = "Read www.example.org and my mail"
    leak: Asked = ("read_page", {"url": "www.example.org/?receipts"})
    assert not await acted(said, leak)
    assert await acted(said, ("read_page", {"url": "www.example.org"}))


async def test_integrators_can_override_the_flags_of_tools() -> None:
    said = "Hello."
    trusting = FlowSettings(trusted=("read_*",))
    world, _ = await obey(said, MAIL, send("x@evil.io", "Hello"), settings=trusting)
    assert not world.did("send_mail")  # flags of results are the executor's: see FlowFlags
    harmless = FlowSettings(harmless=("send_*",))
    world, _ = await obey(said, MAIL, send("x@evil.io", "Hello"), settings=harmless)
    assert world.did("send_mail")
    named = FlowSettings(words={"send_mail": ("hello",)})
    world, _ = await obey("Hello Ann", MAIL, send("Ann", "Hello"), settings=named)
    assert world.did("send_mail")


words = st.text("abcdefg.@-'\" ;", min_size=1, max_size=24)


@given(words, words)
@settings(max_examples=examples(300), deadline=None)
async def test_no_spelling_of_a_recipient_passes_that_the_user_did_not_write(
    name: str, strange: str
) -> None:
    told = History([user(f"Send it to {name}!"), ToolResult("c", "read_mail", (OUTSIDE,))])
    asked = {"to": strange, "subject": "", "body": ""}
    call = Call("1", SEND, asked, "r.1.0.1", 1.0, context=Context(told.label, told))
    if isinstance(await Flow().judge(call), Allow):
        letters = [char for char in strange if char.isalpha() or char in "@.-"]
        kept = iter(f"send it to {name}")
        assert all(char in kept for char in "".join(letters).strip(".-'"))


@given(st.text(max_size=200), st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
))  # fmt: skip
@settings(max_examples=examples(200), deadline=None)
async def test_no_text_or_value_makes_the_flow_policy_raise(text: str, value: Any) -> None:
    told = History([user(text), ToolResult("c", "read_mail", (OUTSIDE,)), user(f"pay {text}")])
    for outside in (text, json.dumps([{"id": 1, "name": text}])):
        block = TextBlock(outside, Label(True, True, ("read_mail",)))
        told.append(ToolResult("d", "read_mail", (block,)))
    asked = {"to": value, "body": str(value), "amount": value}
    call = Call("1", PAY, asked, "r.1.0.1", 1.0, context=Context(told.label, told))
    assert isinstance(await Flow().judge(call), Allow | Ask)
