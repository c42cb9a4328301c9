"""The tool `read_untrusted`: asks about a quarantined text without showing it to the model.

A second model, without tools, reads only that text and answers in the requested fields. Numbers,
booleans and words from a given list cannot carry an instruction, so an answer of those alone is
clean; free text keeps the untrusted label of its source.
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.labels import CLEAN, Label
from evoclaw.core.messages import JSON, ErrorKind, TextBlock, ToolResult, is_object
from evoclaw.core.tools import Call
from evoclaw.tools.define import tool

QUARANTINE_KEY = "quarantined"
"""The key of the quarantined text in the details of a result."""
FIELD_KINDS = ("boolean", "integer", "number", "text")
AnswerField: TypeAlias = str | list[str]
"""One of `FIELD_KINDS`, or a list of words to choose from."""


class UntrustedAnswer(Struct, frozen=True):
    """The answer of the reader."""

    values: dict[str, JSON]
    details: dict[str, JSON] = {}
    """The tokens and the cost."""


class UntrustedReader(Protocol):
    """Reads untrusted text: a model without tools."""

    async def read(
        self, text: str, question: str, fields: dict[str, AnswerField]
    ) -> UntrustedAnswer:
        """Answer a question about a text, in these fields; `ToolFailure` if it cannot."""
        ...


@tool("file_read", timeout=60, max_timeout=120, effect="read", resources=())
async def read_untrusted(
    reader: UntrustedReader,
    call: Call,
    handle: str,
    question: Annotated[str, Meta(min_length=1, max_length=2_000)],
    fields: Annotated[dict[str, AnswerField], Meta(min_length=1, max_length=20)],
) -> ToolOutput:
    """Ask about a text from outside that is kept behind a handle and not shown to you.

    Args:
        reader: Who reads it.
        call: This call.
        handle: The handle, such as 'q-1f00aa-2-0'.
        question: What you want to know about the text.
        fields: The answer's fields, each 'boolean', 'integer', 'number', 'text', or a list of words
            to choose one from. Prefer anything to 'text': text from outside stays untrusted.
    """
    _check(fields)
    text, label = _find(call, handle)
    reading = await reader.read(text, question, fields)
    free = any(kind == "text" for kind in fields.values())
    shown = msgspec.json.encode(reading.values).decode()
    return ToolOutput((TextBlock(shown, label if free else CLEAN),), reading.details)


def _check(fields: dict[str, AnswerField]) -> None:
    for name, kind in fields.items():
        if isinstance(kind, str) and kind not in FIELD_KINDS:
            text = f"Field '{name}' must be one of {', '.join(FIELD_KINDS)}, or a list of words."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)
        if isinstance(kind, list) and not 2 <= len(kind) <= 50:
            text = f"Field '{name}' must have 2 to 50 words to choose from."
            raise ToolFailure(ErrorKind.INVALID_PARAMS, text)


def _find(call: Call, handle: str) -> tuple[str, Label]:
    """The quarantined text of a handle, from the details of a result in the history."""
    handles: list[str] = []
    for message in call.context.history or ():
        stored = message.details.get(QUARANTINE_KEY) if isinstance(message, ToolResult) else None
        if is_object(stored):
            handles.append(str(stored.get("handle")))
            if stored.get("handle") == handle:
                sources = (message.name,) if isinstance(message, ToolResult) else ()
                return str(stored.get("text", "")), Label(untrusted=True, sources=sources)
    known = ", ".join(handles[-10:]) or "none yet"
    raise ToolFailure(ErrorKind.NOT_FOUND, f"There is no handle '{handle}'. There are: {known}.")
