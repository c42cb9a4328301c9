"""Where on the broker each of the four wire messages goes."""

from __future__ import annotations

import re
from enum import StrEnum

BROADCAST = "evoclaw/broadcast"
"""Commands for every edge."""

_AGENTS = "evoclaw/agents"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ID_RULE = "letters, digits, '_' and '-', beginning with a letter or digit, at most 64"


class Kind(StrEnum):
    """The last word of an agent's topic."""

    COMMANDS = "commands"
    REPORTS = "reports"
    STATUS = "status"
    CAPABILITIES = "capabilities"


_KINDS = {str(kind): kind for kind in Kind}


def is_agent_id(text: str) -> bool:
    """Whether a text may be an agent's id: nothing that a topic or a path could trip over."""
    return _ID.fullmatch(text) is not None


def topic(agent_id: str, kind: Kind) -> str:
    """The topic of one agent; raise `ValueError` for an id that is none."""
    if not is_agent_id(agent_id):
        raise ValueError(f"{agent_id!r} is no agent id: {ID_RULE}")
    return f"{_AGENTS}/{agent_id}/{kind}"


def every(kind: Kind) -> str:
    """The subscription to one kind of message from all agents."""
    return f"{_AGENTS}/+/{kind}"


def read_topic(name: str) -> tuple[str, Kind] | None:
    """The agent and the kind that a topic names; None if it is not one of ours."""
    head, _, last = name.rpartition("/")
    folder, _, agent_id = head.rpartition("/")
    kind = _KINDS.get(last)
    if kind is None or folder != _AGENTS or not is_agent_id(agent_id):
        return None
    return agent_id, kind
