from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evoclaw.core.messages import ErrorKind
from evoclaw.transport.mailboxes import (
    MAX_TEXT_CHARS,
    InboxMessage,
    MailboxState,
    OutboxMessage,
    encode_outbox,
    read_inbox,
)
from evoclaw.transport.topics import Mailbox, box_topic, every_box, read_box_topic, read_topic
from evoclaw.transport.wire import WireError

GOLDEN = Path(__file__).parent / "golden"
WHEN = 1739635200.0
TOLD = {
    "outbox_accepted": OutboxMessage(
        "a1", "cook", "m1", MailboxState.ACCEPTED, "This was taken and will be answered.",
        run_id="0123456789abcdef", timestamp=WHEN,
    ),
    "outbox_answer": OutboxMessage(
        "0123456789abcdef.9", "cook", "m1", MailboxState.ANSWER, "Twelve minutes.",
        session="kitchen", run_id="0123456789abcdef", timestamp=WHEN,
    ),
    "outbox_waiting": OutboxMessage(
        "0123456789abcdef.7", "cook", "m1", MailboxState.WAITING,
        "I am waiting for an answer from a person: bash waits for a person.",
        reason="waiting", run_id="0123456789abcdef", timestamp=WHEN,
    ),
    "outbox_failed": OutboxMessage(
        "letter-3.00112233", "cook", "m1", MailboxState.FAILED,
        "This was not answered: the orchestrator is shutting down; try again in a moment.",
        reason="draining", timestamp=WHEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_outbox_messages_are_encoded_as_documented(name: str) -> None:
    written = msgspec.json.format(encode_outbox(TOLD[name]), indent=2) + b"\n"
    assert written.decode() == (GOLDEN / f"{name}.json").read_text()


def test_inbox_messages_are_parsed_as_documented() -> None:
    said = read_inbox((GOLDEN / "inbox_message.json").read_bytes())
    assert said == InboxMessage("How long do eggs take?", "m1", "kitchen")


def test_plain_text_is_an_inbox_message_without_an_id() -> None:
    assert read_inbox("Wie lange? – 3 min".encode()) == InboxMessage("Wie lange? – 3 min")
    assert read_inbox(b'"quoted"') == InboxMessage('"quoted"')


@pytest.mark.parametrize(
    ("payload", "id_"),
    [
        (b'{"message": "hi', ""),
        (b'{"text": "hi"}', ""),
        (b'{"message": 3, "message_id": "m1"}', "m1"),
        (b'{"message": "hi", "message_id": 3}', ""),
        (b'{"message": "hi", "message_id": "a\\nb"}', ""),
        (b'{"message": "  ", "message_id": "m1"}', "m1"),
        (b'{"message": "hi", "message_id": "m1", "session": "a/b"}', "m1"),
        (b"\xff\xfe", ""),
        (b"   ", ""),
        (b'{"a":' * 5000, ""),
    ],
)
def test_an_invalid_inbox_message_is_refused_with_its_message_id(payload: bytes, id_: str) -> None:
    with pytest.raises(WireError) as caught:
        read_inbox(payload)
    assert caught.value.kind is ErrorKind.INVALID_PARAMS
    assert caught.value.request_id == id_


def test_an_inbox_message_over_the_size_limit_is_refused() -> None:
    assert read_inbox(b"x" * MAX_TEXT_CHARS).message == "x" * MAX_TEXT_CHARS
    with pytest.raises(WireError, match="65,537 bytes are more"):
        read_inbox(b"x" * (MAX_TEXT_CHARS + 1))


@given(st.binary(max_size=300))
def test_any_inbox_payload_is_parsed_or_refused(payload: bytes) -> None:
    try:
        said = read_inbox(payload)
    except WireError:
        return
    assert said.message.strip()


def test_a_mailbox_topic_round_trips() -> None:
    name = box_topic("cook", Mailbox.INBOX, "ann")
    assert name == "evoclaw/agents/cook/inbox/ann"
    assert read_box_topic(name) == ("cook", Mailbox.INBOX, "ann")
    assert read_topic(name) is None
    assert read_box_topic("evoclaw/agents/cook/commands") is None


def test_mailbox_subscriptions_cover_one_user_or_all_users() -> None:
    assert every_box(Mailbox.OUTBOX, "ann") == "evoclaw/agents/+/outbox/ann"
    assert every_box(Mailbox.INBOX) == "evoclaw/agents/+/inbox/+"


@pytest.mark.parametrize("hostile", ["+", "#", "a/b", "", "a b", "é", "a" * 65, "$SYS"])
def test_an_invalid_name_has_no_mailbox_topic(hostile: str) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        box_topic("cook", Mailbox.INBOX, hostile)
    with pytest.raises(ValueError, match="is not an id"):
        box_topic(hostile, Mailbox.INBOX, "ann")
    assert read_box_topic(f"evoclaw/agents/cook/inbox/{hostile}") is None
    assert read_box_topic(f"evoclaw/agents/{hostile}/inbox/ann") is None
    if hostile:
        with pytest.raises(ValueError, match="is not an id"):
            every_box(Mailbox.OUTBOX, hostile)
