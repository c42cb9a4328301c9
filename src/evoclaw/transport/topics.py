"""The MQTT topics of the wire messages and of mailboxes."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

BROADCAST = "evoclaw/broadcast"
"""Commands for every edge."""

MAX_CACHED_TOPICS = 4096
_AGENTS = "evoclaw/agents"
_HOME_ASSISTANT = "evoclaw/ha"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ID_RULE = "letters, digits, '_' and '-', the first a letter or digit, at most 64 characters"


class TopicKind(StrEnum):
    """The last level of an agent's topic."""

    COMMANDS = "commands"
    REPORTS = "reports"
    STATUS = "status"
    CAPABILITIES = "capabilities"


_KINDS = {str(kind): kind for kind in TopicKind}


class Mailbox(StrEnum):
    """The two mailboxes of a person at an agent."""

    INBOX = "inbox"
    OUTBOX = "outbox"


_BOXES = {str(box): box for box in Mailbox}


class HomeAssistantTopic(StrEnum):
    """The topics of an edge that Home Assistant uses."""

    STATE = "state"
    """Whether it is online, and the figures of its machine; retained."""
    RESULT = "result"
    """When a call on it ended, and whether it failed; retained."""
    COMMAND = "command"
    """Which button was pressed; the last level is the account that pressed it."""


class A2aTopic(StrEnum):
    """The topics of A2A over MQTT, by what they carry."""

    DISCOVERY = "discovery"
    """The card of an agent; retained."""
    REQUEST = "request"
    REPLY = "reply"


A2A_PREFIX = "$a2a"
"""The first level of the topics of A2A, as its profile for MQTT says."""


def is_agent_id(text: str) -> bool:
    """Whether a text is a valid agent id: safe in topics and paths."""
    return _ID.fullmatch(text) is not None


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def topic(agent_id: str, kind: TopicKind) -> str:
    """The topic of an agent; raise `ValueError` for an invalid id."""
    if not is_agent_id(agent_id):
        raise ValueError(f"{agent_id!r} is not an agent id: {ID_RULE}")
    return f"{_AGENTS}/{agent_id}/{kind}"


def every(kind: TopicKind) -> str:
    """The subscription to a kind of message from all agents."""
    return f"{_AGENTS}/+/{kind}"


@lru_cache(maxsize=MAX_CACHED_TOPICS)
def read_topic(name: str) -> tuple[str, TopicKind] | None:
    """The agent and the kind in a topic; None if it is not an agent's topic."""
    head, _, last = name.rpartition("/")
    folder, _, agent_id = head.rpartition("/")
    kind = _KINDS.get(last)
    if kind is None or folder != _AGENTS or not is_agent_id(agent_id):
        return None
    return agent_id, kind


def box_topic(agent_id: str, box: Mailbox, user: str) -> str:
    """The topic of a person's mailbox at an agent; raise `ValueError` for an invalid id."""
    for name in (agent_id, user):
        if not is_agent_id(name):
            raise ValueError(f"{name!r} is not an id: {ID_RULE}")
    return f"{_AGENTS}/{agent_id}/{box}/{user}"


def every_box(box: Mailbox, user: str = "") -> str:
    """The subscription to a kind of mailbox at all agents: of one person, or of all."""
    if user and not is_agent_id(user):
        raise ValueError(f"{user!r} is not an id: {ID_RULE}")
    return f"{_AGENTS}/+/{box}/{user or '+'}"


def read_box_topic(name: str) -> tuple[str, Mailbox, str] | None:
    """The agent, the kind of mailbox and the person in a topic; None for other topics."""
    head, _, user = name.rpartition("/")
    folder, _, last = head.rpartition("/")
    root, _, agent_id = folder.rpartition("/")
    box = _BOXES.get(last)
    if box is None or root != _AGENTS or not (is_agent_id(agent_id) and is_agent_id(user)):
        return None
    return agent_id, box, user


def discovery_topic(prefix: str, device: str) -> str:
    """Where Home Assistant looks for the description of a device; `+` means every one."""
    return f"{prefix}/device/{device}/config"


def a2a_topic(kind: A2aTopic, *levels: str, prefix: str = A2A_PREFIX) -> str:
    """A topic of A2A; the levels are organisation, unit, agent and, of a reply, what is its own."""
    return "/".join((prefix, "v1", kind, *levels))


def home_assistant_topic(edge: str, kind: HomeAssistantTopic, account: str = "") -> str:
    """A topic of an edge for Home Assistant; `+` means every edge or account."""
    for name in (edge, account or "+"):
        if name != "+" and not is_agent_id(name):
            raise ValueError(f"{name!r} is not an id: {ID_RULE}")
    topic_of_edge = f"{_HOME_ASSISTANT}/{edge}/{kind}"
    return f"{topic_of_edge}/{account}" if account else topic_of_edge


def read_button_topic(name: str) -> tuple[str, str] | None:
    """The edge of a pressed button, and the account that pressed it; None for other topics."""
    head, _, account = name.rpartition("/")
    folder, _, last = head.rpartition("/")
    root, _, edge = folder.rpartition("/")
    if root != _HOME_ASSISTANT or last != HomeAssistantTopic.COMMAND:
        return None
    return (edge, account) if is_agent_id(edge) and is_agent_id(account) else None
