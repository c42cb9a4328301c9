"""What a scripted model does, turn by turn: the lines of `tests.support.model_server`."""

from __future__ import annotations

import json
from typing import Any


def script(*turns: str) -> str:
    """The turns of one message; the last one must answer."""
    return "\n".join(turns)


def call(tool: str, **arguments: Any) -> str:
    """A turn that calls a tool."""
    return f"call {tool} {json.dumps(arguments)}"


def say(text: str) -> str:
    """A turn that answers."""
    return f"say {text}"
