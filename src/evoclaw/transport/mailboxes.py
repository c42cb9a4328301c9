"""The documented JSON of mailboxes: people's messages to an agent, and its replies.

Parsing is lenient, as a person may type the text: JSON, or plain text. An invalid message raises
`WireError`, which carries the message's id if it has one, so that it can be answered.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TypeGuard

import msgspec
from msgspec import Struct, field

from evoclaw.core.messages import JSON, ErrorKind, is_object
from evoclaw.transport.topics import ID_RULE, is_agent_id
from evoclaw.transport.wire import MAX_REQUEST_ID_CHARS, WIRE_VERSION, WireError, convert

MAX_TEXT_CHARS = 64 * 1024
"""Bytes of a payload in an inbox."""
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class InboxMessage(Struct, frozen=True, omit_defaults=True):
    """A person's message to an agent."""

    message: str
    message_id: str = ""
    """Chosen by the sender; a message repeated with the same id is answered once."""
    session: str = ""
    """The sender's name for one of several conversations with the agent."""


class MailboxState(StrEnum):
    """The status of a message in a reply."""

    ACCEPTED = "accepted"
    """The message is stored and will be answered: the sender need not repeat it."""
    ANSWER = "answer"
    WAITING = "waiting"
    """An approval is pending; the answer comes later."""
    FAILED = "failed"
    """The message was not answered; `reason` says why."""
    REFUSED = "refused"
    """The message was not accepted."""


class OutboxMessage(Struct, frozen=True, omit_defaults=True):
    """A reply to a person; may arrive twice, then with the same id."""

    id: str
    """The id of the reply."""
    agent_id: str
    """The agent that replies."""
    message_id: str
    """The id of the message that this answers; empty if it could not be read."""
    state: MailboxState
    """What the reply means."""
    text: str
    """For people."""
    reason: str = ""
    """The machine-readable reason, unless this is a plain answer."""
    session: str = ""
    """The sender's name for the conversation."""
    run_id: str = ""
    """The run that answers; empty: none was started."""
    timestamp: float = 0.0
    """When it was sent, in Unix seconds."""
    v: int = field(default_factory=lambda: WIRE_VERSION)
    """The protocol version."""


def read_inbox(data: bytes) -> InboxMessage:
    """Parse an inbox payload: a JSON object, or plain text."""
    if len(data) > MAX_TEXT_CHARS:
        problem = f"{len(data):,} bytes are more than the {MAX_TEXT_CHARS:,} that are accepted"
        raise WireError(ErrorKind.TOO_LARGE, problem)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise WireError(ErrorKind.INVALID_PARAMS, "it is not UTF-8 text") from None
    if not text.lstrip().startswith("{"):
        return _checked(InboxMessage(text))
    try:
        raw: JSON = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise WireError(
            ErrorKind.INVALID_PARAMS, f"it starts like JSON but is invalid: {problem}"
        ) from None
    message_id = raw.get("message_id") if is_object(raw) else None
    return _checked(convert(raw, InboxMessage, message_id if _is_id(message_id) else ""))


def encode_outbox(message: OutboxMessage) -> bytes:
    """Encode a reply."""
    return msgspec.json.encode(message)


def _checked(message: InboxMessage) -> InboxMessage:
    id_ = message.message_id
    if id_ and not _is_id(id_):
        problem = (
            f"the message_id must be text of at most {MAX_REQUEST_ID_CHARS} characters, on one line"
        )
        raise WireError(ErrorKind.INVALID_PARAMS, problem)
    if message.session and not is_agent_id(message.session):
        raise WireError(ErrorKind.INVALID_PARAMS, f"the session's name must be {ID_RULE}", id_)
    if not message.message.strip():
        raise WireError(ErrorKind.INVALID_PARAMS, "the message has no text", id_)
    return message


def _is_id(given: JSON) -> TypeGuard[str]:
    return (
        isinstance(given, str)
        and 0 < len(given) <= MAX_REQUEST_ID_CHARS
        and not _UNFIT.search(given)
    )
