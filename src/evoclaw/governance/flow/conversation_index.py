"""An index of a conversation by who wrote what: trusted and untrusted words, numbers and ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from evoclaw.core.arguments import BadArguments, parse_arguments
from evoclaw.core.labels import MEMORY_SOURCE, NOTE_SOURCE, Label
from evoclaw.core.messages import (
    JSON,
    ErrorKind,
    ImageBlock,
    Message,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    UserMessage,
    is_array,
    is_object,
    label_of,
)
from evoclaw.core.tools import Effect, Tool
from evoclaw.governance.flow.text_tokens import (
    MentionedTimes,
    is_address,
    is_long_code,
    normalize,
    numbers_in,
    parse_moment,
    parse_number,
    tokenize,
    without_possessive,
)
from evoclaw.governance.flow.tool_verbs import ToolVerbs

MAX_INDEXED_CHARS = 400_000
"""Characters of a trusted message that are indexed; text beyond them does not count as trusted."""
MAX_INDEXED_FIELDS = 20_000
"""Fields of a result that are indexed."""
MAX_NAME_CHARS = 64
NO_EFFECT_ERRORS = frozenset(
    {ErrorKind.PERMISSION_DENIED, ErrorKind.INVALID_PARAMS, ErrorKind.NOT_FOUND}
)
"""Errors of calls that cannot have changed anything."""
_SYNTAX = re.compile(r"[;|&<>$`(){}\[\]\\*\n\"=]")
_POSSESSIVES = ("'s", "’s")
_NAME_KEYS = ("name", "title", "subject", "label")

ToolLookup = Callable[[str], Tool | None]


class ConversationIndex:
    """An index of one history, which passes each message to `add` once."""

    __slots__ = (
        "_lookup", "_pending_calls", "_phrases", "_private_words", "_raw", "_verbs", "acted",
        "laundered", "moments", "named_ids", "numbers", "public_words", "sources", "stored_ids",
        "stored_values", "tainted", "user_stems",
    )  # fmt: skip

    def __init__(self, lookup: ToolLookup, asking: ToolVerbs) -> None:
        """Start empty; `lookup` finds tools by name."""
        self._lookup, self._verbs = lookup, asking
        self._pending_calls: dict[str, tuple[ToolCall, bool]] = {}
        self._raw: list[str] = []
        self._phrases: list[str] = []
        """Trusted texts as tokens separated by one space."""
        self._private_words: set[str] = set()
        self.public_words: set[str] = set()
        """Trusted words that are not private: a call may send them out."""
        self.numbers: set[float] = set()
        self.moments = MentionedTimes()
        self.user_stems: set[str] = set()
        """The stems of the words that the user wrote."""
        self.stored_values: set[str] = set()
        """Complete field values from the user's own stores, as text."""
        self.stored_ids: set[str] = set()
        """Ids of records in the user's own stores."""
        self.named_ids: set[str] = set()
        """The ids of records whose name the user gave."""
        self.tainted = False
        """Whether the conversation contains untrusted text."""
        self.laundered = False
        """Whether untrusted text may have been written to where trusted tools read."""
        self.acted = False
        self.sources: list[tuple[str, str]] = []
        """Untrusted texts, each with the tool it came from."""

    def add(self, message: Message) -> None:
        """Index a message."""
        match message:
            case SystemMessage(text):
                self._add_trusted(text)
            case UserMessage():
                self._add_user(message)
            case Reply():
                for asked in message.calls:
                    self._pending_calls[asked.id] = asked, self.tainted
            case ToolResult():
                self._add_result(message)

    def _add_user(self, message: UserMessage) -> None:
        for block in message.blocks:
            if isinstance(block, ImageBlock):
                self.tainted = self.tainted or block.label.untrusted
            elif block.label.untrusted:
                self._add_untrusted(block.text, block.label)
            elif not {MEMORY_SOURCE, NOTE_SOURCE} & {*block.label.sources}:
                # Recalled notes are the model's own words, other notes those of EvoClaw.
                self.user_stems |= self._verbs.stems(
                    self._add_trusted(block.text, secret=block.label.private)
                )

    def _add_result(self, result: ToolResult) -> None:
        asked, after_taint = self._pending_calls.pop(result.call_id, (None, self.tainted))
        clean = not after_taint or (asked is not None and self._vouched(asked))
        self._note_effect(result, clean=clean)
        label = label_of(result)
        for block in result.blocks:
            if isinstance(block, ImageBlock):
                continue
            if label.untrusted:
                self._add_untrusted(block.text, label)
            elif clean and not self.laundered and result.error is None:
                self._add_trusted(block.text, secret=label.private)
        if label.untrusted:
            self.tainted = True

    def _note_effect(self, result: ToolResult, *, clean: bool) -> None:
        """Note what a call did: after it wrote untrusted text, later reads are untrusted too."""
        tool = self._lookup(result.name)
        if result.error in NO_EFFECT_ERRORS:
            return
        if tool is None or tool.has_side_effects or tool.sends:
            self.acted = True
        writes = tool is None or tool.effect is Effect.WRITE
        self.laundered = self.laundered or (writes and not clean)

    def _vouched(self, asked: ToolCall) -> bool:
        """Whether all arguments of a call are trusted, so that its result echoes no other text."""
        try:
            arguments = parse_arguments(asked.arguments)
        except BadArguments:
            return False
        return all(self.grounded(value) for value in leaves(arguments))

    def _add_trusted(self, text: str, *, secret: bool = False) -> list[str]:
        normal = normalize(text[:MAX_INDEXED_CHARS])
        found = tokenize(normal)
        self._raw.append(normal)
        self._phrases.append(f" {' '.join(found)} ")
        words = self._private_words if secret else self.public_words
        words.update(found)
        if any(mark in normal for mark in _POSSESSIVES):
            words.update(map(without_possessive, found))
        rest = self.moments.add(normal)
        self.numbers.update(numbers_in(found if rest is normal else tokenize(rest)))
        return [without_possessive(token) for token in found]

    def _add_untrusted(self, text: str, label: Label) -> None:
        self.tainted = True
        normal = normalize(text)
        self.sources.append((normal, label.sources[-1] if label.sources else "another agent"))
        if label.private and normal[:1] in ("{", "["):
            try:
                record = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return
            self._index_record(record)

    def _index_record(self, record: JSON) -> None:
        """Index the fields that the store itself wrote: numbers, ids, names of one word."""
        pending: list[JSON] = [record]
        left = MAX_INDEXED_FIELDS
        while pending and left:
            left -= 1
            node = pending.pop()
            if is_object(node):
                self._index_ids(node)
                pending.extend(node.values())
            elif is_array(node):
                pending.extend(node)
            elif (name := _as_single_word(node)) is not None:
                self.stored_values.add(name)

    def _index_ids(self, record: dict[str, JSON]) -> None:
        ids = [str(v) for k, v in record.items() if is_id(k) and isinstance(v, str | int)]
        self.stored_ids.update(normalize(id) for id in ids if len(id) <= MAX_NAME_CHARS)
        if ids and any(self._is_user_given_name(key, value) for key, value in record.items()):
            self.named_ids.update(map(normalize, ids))

    def _is_user_given_name(self, key: str, value: JSON) -> bool:
        """Whether this field is the record's name, and the user has written it."""
        if not isinstance(value, str) or not key.rstrip("_").lower().endswith(_NAME_KEYS):
            return False
        text = normalize(value)
        stem = text.rpartition(".")[0]
        return any(
            self._has_phrase(found) and any(len(token) > 3 for token in found)
            for found in (
                tokenize(text),
                tokenize(stem),
                tokenize(stem.replace("-", " ").replace("_", " ")),
            )
            if found
        )

    def grounded(self, value: JSON) -> bool:
        """Whether trusted text contains the complete value, in any spelling."""
        if value is None or value == "" or isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            return value in self.numbers
        normal = normalize(str(value)).strip()
        if (parsed := parse_number(normal)) is not None:
            return parsed in self.numbers
        if (when := parse_moment(normal)) is not None:
            date, time = when
            known = date is None or self.moments.has_date(date)
            return known and (time is None or self.moments.has_time(time))
        if _SYNTAX.search(normal):
            # Programs interpret this syntax: the user must have written it exactly so.
            return any(normal in text for text in self._raw)
        found = tokenize(normal)
        return not found or self._has_phrase(found)

    def _has_phrase(self, found: list[str]) -> bool:
        phrase = f" {' '.join(found)} "
        return any(phrase in text for text in self._phrases)

    def is_trusted(self, word: str) -> bool:
        """Whether trusted text contains a word, private or not."""
        return word in self.public_words or word in self._private_words

    def source_of(self, value: JSON) -> str:
        """The tool whose result contains a value; empty if none does."""
        normal = normalize(str(value)).strip()
        return next((source for text, source in self.sources if normal and normal in text), "")


def leaves(value: JSON) -> Iterable[JSON]:
    """The values inside a JSON value that are neither objects nor arrays."""
    if is_object(value):
        for child in value.values():
            yield from leaves(child)
    elif is_array(value):
        for child in value:
            yield from leaves(child)
    else:
        yield value


def is_id(key: str) -> bool:
    """Whether a field of this name identifies a record."""
    name = key.rstrip("_").lower()
    return (
        name in ("id", "uuid", "key") or name.endswith(("_id", "-id", "_uuid")) or key[-2:] == "Id"
    )


def _as_single_word(value: JSON) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    text = normalize(str(value)).strip()
    if len(text) > MAX_NAME_CHARS or any(char.isspace() for char in text):
        return None
    if isinstance(value, int | float):
        return text
    return None if not text or is_address(text) or is_long_code(text) else text
