"""The MQTT topics of the wire messages and of mailboxes."""

from __future__ import annotations

import re
from enum import StrEnum

BROADCAST = "evoclaw/broadcast"
"""Commands for every edge."""

_AGENTS = "evoclaw/agents"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ID_RULE = "letters, digits, '_' and '-', beginning with a letter or digit, at most 64"


class TopicKind(StrEnum):
    """The last word of an agent's topic."""

    COMMANDS = "commands"
    REPORTS = "reports"
    STATUS = "status"
    CAPABILITIES = "capabilities"


_KINDS = {str(kind): kind for kind in TopicKind}


class Mailbox(StrEnum):
    """Where a person and an agent leave something for each other."""

    INBOX = "inbox"
    OUTBOX = "outbox"


_BOXES = {str(box): box for box in Mailbox}


def is_agent_id(text: str) -> bool:
    """Whether a text may be an agent's id: nothing that a topic or a path could trip over."""
    return _ID.fullmatch(text) is not None


def topic(agent_id: str, kind: TopicKind) -> str:
    """The topic of one agent; raise `ValueError` for an id that is none."""
    if not is_agent_id(agent_id):
        raise ValueError(f"{agent_id!r} is no agent id: {ID_RULE}")
    return f"{_AGENTS}/{agent_id}/{kind}"


def every(kind: TopicKind) -> str:
    """The subscription to one kind of message from all agents."""
    return f"{_AGENTS}/+/{kind}"


def read_topic(name: str) -> tuple[str, TopicKind] | None:
    """The agent and the kind that a topic names; None if it is not one of ours."""
    head, _, last = name.rpartition("/")
    folder, _, agent_id = head.rpartition("/")
    kind = _KINDS.get(last)
    if kind is None or folder != _AGENTS or not is_agent_id(agent_id):
        return None
    return agent_id, kind


def box_topic(agent_id: str, box: Mailbox, user: str) -> str:
    """The topic of one person's box at one agent; raise `ValueError` for an id that is none."""
    for given in (agent_id, user):
        if not is_agent_id(given):
            raise ValueError(f"{given!r} is no id: {ID_RULE}")
    return f"{_AGENTS}/{agent_id}/{box}/{user}"


def every_box(box: Mailbox, user: str = "") -> str:
    """The subscription to one kind of box at all agents: one person's, or everybody's."""
    if user and not is_agent_id(user):
        raise ValueError(f"{user!r} is no id: {ID_RULE}")
    return f"{_AGENTS}/+/{box}/{user or '+'}"


def read_box_topic(name: str) -> tuple[str, Mailbox, str] | None:
    """The agent, the kind of box and the person that a topic names; None if it is not one."""
    head, _, user = name.rpartition("/")
    folder, _, last = head.rpartition("/")
    root, _, agent_id = folder.rpartition("/")
    box = _BOXES.get(last)
    if box is None or root != _AGENTS or not (is_agent_id(agent_id) and is_agent_id(user)):
        return None
    return agent_id, box, user
