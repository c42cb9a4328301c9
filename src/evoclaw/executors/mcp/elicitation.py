"""Shows the questions of an MCP server to the person of a run, one field of its form at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.executors.mcp.offers import MAX_NOTE_CHARS, one_line

MAX_FIELDS = 20
MAX_OPTIONS = 15
MAX_ATTEMPTS = 3
"""How often a field is asked for, if the answer is not a number, for example."""
MAX_MESSAGE_CHARS = 1_000
DECLINE, SKIP = "Decline", "Leave it empty"
DONE = "I have done that"
Value: TypeAlias = str | int | float | bool | list[str]


class PersonQuestion(Struct, frozen=True):
    """A question to the person of a run."""

    id: str
    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False
    own_words: bool = True
    """Whether free text is an answer too."""


class PersonAnswer(Struct, frozen=True):
    """What the person chose, or wrote."""

    chosen: tuple[str, ...] = ()
    text: str = ""


AskPerson: TypeAlias = Callable[[PersonQuestion], Awaitable[PersonAnswer | None]]
"""Asks the person of a run; None if nobody can be asked."""


class ServerQuestions:
    """The questions that a server asks during one call."""

    def __init__(self, server: str, call_id: str, ask: AskPerson) -> None:
        """Set the server, the id of the call that is the same for all its attempts, the person."""
        self._server, self._call_id, self._ask, self._asked = server, call_id, ask, 0

    async def confirm_url(self, message: str, url: str) -> bool:
        """Ask the person to open an address; whether they did."""
        if not url.startswith("https://"):
            return False
        text = f"{self._intro(message)}\nIt wants you to open {one_line(url, MAX_MESSAGE_CHARS)}"
        answer = await self._put(text, (DONE, DECLINE), own_words=False)
        return answer is not None and answer.chosen == (DONE,)

    async def fill(self, message: str, schema: Mapping[str, JSON]) -> dict[str, Value] | None:
        """Ask for each field of a form; None if the person declines, or cannot be asked."""
        fields, required = schema.get("properties"), schema.get("required")
        if not is_object(fields) or len(fields) > MAX_FIELDS:
            return None
        intro, found = self._intro(message), dict[str, Value]()
        if not fields:
            answer = await self._put(intro, ("Accept", DECLINE), own_words=False)
            return {} if answer is not None and answer.chosen == ("Accept",) else None
        for name, field in fields.items():
            needed = is_array(required) and name in required
            value = await self._field(intro, name, field if is_object(field) else {}, needed=needed)
            if value is _DECLINED:
                return None
            if value is not None:
                assert isinstance(value, (str, int, float, bool, list))
                found[name] = value
        return found

    async def _field(
        self, intro: str, name: str, field: dict[str, JSON], *, needed: bool
    ) -> Value | object | None:
        choices, many = _choices(field)
        title = one_line(str(field.get("title") or name), MAX_NOTE_CHARS)
        about = one_line(str(field.get("description") or ""), MAX_NOTE_CHARS)
        text = f"{intro}\n{title}{': ' + about if about else ''}"
        default = field.get("default")
        use_default = "" if default is None else f"Use the default: {one_line(str(default), 60)}"
        skip = SKIP if default is None and not needed else ""
        options = (*list(choices)[:MAX_OPTIONS], *filter(None, (use_default, skip)), DECLINE)
        problem = ""
        for _ in range(MAX_ATTEMPTS):
            answer = await self._put(text + problem, options, many, own_words=not choices)
            if answer is None or DECLINE in answer.chosen:
                return _DECLINED
            if skip and skip in answer.chosen:
                return None
            if use_default and use_default in answer.chosen:
                return default
            value = _value(field, choices, answer, many=many)
            if value is not None:
                return value
            problem = f"\n(It must be of the type {field.get('type', 'string')}.)"
        return _DECLINED

    async def _put(
        self, text: str, options: tuple[str, ...], multiple: bool = False, *, own_words: bool
    ) -> PersonAnswer | None:
        self._asked += 1
        name = f"{self._call_id}.mcp{self._asked}"
        return await self._ask(PersonQuestion(name, text, options, multiple, own_words))

    def _intro(self, message: str) -> str:
        quoted = one_line(message, MAX_MESSAGE_CHARS).replace('"', "'")
        return f'The MCP server {self._server!r} asks, and will see your answer: "{quoted}"'


_DECLINED = object()


def _choices(field: dict[str, JSON]) -> tuple[dict[str, Value], bool]:
    """The values to choose from, by their titles; and whether several may be chosen."""
    if field.get("type") == "boolean":
        return {"yes": True, "no": False}, False
    many = field.get("type") == "array"
    items = field.get("items")
    source = items if many and is_object(items) else field
    titled = source.get("oneOf") or source.get("anyOf")
    if is_array(titled):
        pairs = [(part.get("title"), part.get("const")) for part in titled if is_object(part)]
        return {_title(title or value): str(value) for title, value in pairs}, many
    values, names = source.get("enum"), field.get("enumNames")
    if not is_array(values):
        return {}, many
    titles = names if is_array(names) and len(names) == len(values) else values
    return {_title(t): str(value) for t, value in zip(titles, values, strict=True)}, many


def _title(text: JSON) -> str:
    return one_line(str(text), MAX_NOTE_CHARS)


def _value(
    field: dict[str, JSON], choices: Mapping[str, Value], answer: PersonAnswer, *, many: bool
) -> Value | None:
    if many:
        return [str(choices[name]) for name in answer.chosen if name in choices]
    if choices:
        return choices.get(answer.chosen[0]) if answer.chosen else None
    text = answer.text.strip()
    try:
        match field.get("type"):
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case _:
                return text or None
    except ValueError:
        return None
