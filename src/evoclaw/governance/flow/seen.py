"""What a run has seen so far, parted by who wrote it: indexed once per message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from evoclaw.core.arguments import BadArguments, parse_arguments
from evoclaw.core.labels import MEMORY, Label
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
from evoclaw.governance.flow.asked import Asking
from evoclaw.governance.flow.atoms import (
    Moments,
    atoms,
    bare,
    is_address,
    is_code,
    moment,
    number,
    numbers,
    plain,
)

MOST_TEXT = 400_000
"""Characters of one trusted message that are indexed; what is beyond is not vouched for."""
MOST_FIELDS = 20_000
"""Fields of one result that are listed."""
LONGEST_NAME = 64
NOT_DONE = frozenset({ErrorKind.PERMISSION_DENIED, ErrorKind.INVALID_PARAMS, ErrorKind.NOT_FOUND})
"""How calls fail that cannot have changed anything."""
_SYNTAX = re.compile(r"[;|&<>$`(){}\[\]\\*\n\"=]")
_OWNED = ("'s", "’s")
_NAMES = ("name", "title", "subject", "label")

Lookup = Callable[[str], Tool | None]


class Seen:
    """An index of one history. It is a `Writer`: the history tells it each message once."""

    __slots__ = (
        "_asked", "_asking", "_lookup", "_phrases", "_raw", "_secret", "acted", "found_ids",
        "ids", "laundered", "listed", "moments", "numbers", "open", "said", "sources", "tainted",
    )  # fmt: skip

    def __init__(self, lookup: Lookup, asking: Asking) -> None:
        """Begin with nothing seen; tools are looked up by name."""
        self._lookup, self._asking = lookup, asking
        self._asked: dict[str, tuple[ToolCall, bool]] = {}
        self._raw: list[str] = []
        self._phrases: list[str] = []
        """Trusted texts as atoms with one blank between."""
        self._secret: set[str] = set()
        self.open: set[str] = set()
        """Trusted words that are no secret: they may leave."""
        self.numbers: set[float] = set()
        self.moments = Moments()
        self.said: set[str] = set()
        """The stems of what the user wrote."""
        self.listed: set[str] = set()
        """Whole fields of the user's own stores, as text."""
        self.found_ids: set[str] = set()
        """Ids of records in the user's own stores."""
        self.ids: set[str] = set()
        """Those of them whose record bears a name that the user gave."""
        self.tainted = False
        """Whether anything untrusted was seen."""
        self.laundered = False
        """Whether untrusted text may have been written where trusted tools read."""
        self.acted = False
        self.sources: list[tuple[str, str]] = []
        """Untrusted texts and the tools they came through."""

    def add(self, message: Message) -> None:
        """Take in one message."""
        match message:
            case SystemMessage(text):
                self._trust(text)
            case UserMessage():
                self._add_user(message)
            case Reply():
                for asked in message.calls:
                    self._asked[asked.id] = asked, self.tainted
            case ToolResult():
                self._add_result(message)

    def _add_user(self, message: UserMessage) -> None:
        for block in message.blocks:
            if isinstance(block, ImageBlock):
                self.tainted = self.tainted or block.label.untrusted
            elif block.label.untrusted:
                self._distrust(block.text, block.label)
            elif MEMORY not in block.label.sources:  # recalled words are as the model's own
                self.said |= self._asking.stems(self._trust(block.text, secret=block.label.private))

    def _add_result(self, result: ToolResult) -> None:
        asked, after_taint = self._asked.pop(result.call_id, (None, self.tainted))
        clean = not after_taint or (asked is not None and self._vouched(asked))
        self._note_effect(result, clean=clean)
        label = label_of(result)
        for block in result.blocks:
            if isinstance(block, ImageBlock):
                continue
            if label.untrusted:
                self._distrust(block.text, label)
            elif clean and not self.laundered and result.error is None:
                self._trust(block.text, secret=label.private)
        if label.untrusted:
            self.tainted = True

    def _note_effect(self, result: ToolResult, *, clean: bool) -> None:
        """A call that wrote what outsiders may have worded makes what is read later theirs too."""
        tool = self._lookup(result.name)
        if result.error in NOT_DONE:
            return
        if tool is None or tool.presses or tool.sends:
            self.acted = True
        writes = tool is None or tool.effect is Effect.WRITE
        self.laundered = self.laundered or (writes and not clean)

    def _vouched(self, asked: ToolCall) -> bool:
        """Whether a call said nothing that was not trusted: then its result echoes nothing else."""
        try:
            arguments = parse_arguments(asked.arguments)
        except BadArguments:
            return False
        return all(self.grounded(value) for value in leaves(arguments))

    def _trust(self, text: str, *, secret: bool = False) -> list[str]:
        told = plain(text[:MOST_TEXT])
        found = atoms(told)
        self._raw.append(told)
        self._phrases.append(f" {' '.join(found)} ")
        words = self._secret if secret else self.open
        words.update(found)
        if any(mark in told for mark in _OWNED):
            words.update(map(bare, found))
        left = self.moments.add(told)
        self.numbers.update(numbers(found if left is told else atoms(left)))
        return [bare(atom) for atom in found]

    def _distrust(self, text: str, label: Label) -> None:
        self.tainted = True
        told = plain(text)
        self.sources.append((told, label.sources[-1] if label.sources else "another agent"))
        if label.private and told[:1] in ("{", "["):
            try:
                record = msgspec.json.decode(text)
            except (msgspec.DecodeError, RecursionError):
                return
            self._list(record)

    def _list(self, record: JSON) -> None:
        """Note the fields that the store itself wrote: numbers, ids, names of one word."""
        open_: list[JSON] = [record]
        left = MOST_FIELDS
        while open_ and left:
            left -= 1
            node = open_.pop()
            if is_object(node):
                self._list_record(node)
                open_.extend(node.values())
            elif is_array(node):
                open_.extend(node)
            elif (name := _as_name(node)) is not None:
                self.listed.add(name)

    def _list_record(self, record: dict[str, JSON]) -> None:
        ids = [str(v) for k, v in record.items() if is_id(k) and isinstance(v, str | int)]
        self.found_ids.update(plain(one) for one in ids if len(one) <= LONGEST_NAME)
        if ids and any(self._named(key, value) for key, value in record.items()):
            self.ids.update(map(plain, ids))

    def _named(self, key: str, value: JSON) -> bool:
        """Whether this is the record's name, and the user has named it."""
        if not isinstance(value, str) or not key.rstrip("_").lower().endswith(_NAMES):
            return False
        told = plain(value)
        stem = told.rpartition(".")[0]
        return any(
            self._holds(found) and any(len(atom) > 3 for atom in found)
            for found in (atoms(told), atoms(stem), atoms(stem.replace("-", " ").replace("_", " ")))
            if found
        )

    def grounded(self, value: JSON) -> bool:
        """Whether trusted text holds a value, whole, in whatever spelling."""
        if value is None or value == "" or isinstance(value, bool):
            return True
        if isinstance(value, int | float):
            return value in self.numbers
        told = plain(str(value)).strip()
        if (figure := number(told)) is not None:
            return figure in self.numbers
        if (when := moment(told)) is not None:
            date, time = when
            known = date is None or self.moments.has_date(date)
            return known and (time is None or self.moments.has_time(time))
        if _SYNTAX.search(told):
            # What a machine reads otherwise than people do must have been written just so.
            return any(told in text for text in self._raw)
        found = atoms(told)
        return not found or self._holds(found)

    def _holds(self, found: list[str]) -> bool:
        phrase = f" {' '.join(found)} "
        return any(phrase in text for text in self._phrases)

    def is_trusted(self, word: str) -> bool:
        """Whether trusted text holds a word, be it secret or not."""
        return word in self.open or word in self._secret

    def source_of(self, value: JSON) -> str:
        """The tool whose result holds a value, for people to look at; empty if none does."""
        told = plain(str(value)).strip()
        return next((source for text, source in self.sources if told and told in text), "")


def leaves(value: JSON) -> Iterable[JSON]:
    """The values inside of a value that are neither objects nor arrays."""
    if is_object(value):
        for child in value.values():
            yield from leaves(child)
    elif is_array(value):
        for child in value:
            yield from leaves(child)
    else:
        yield value


def is_id(key: str) -> bool:
    """Whether a field of this name says which record it is."""
    told = key.rstrip("_").lower()
    return (
        told in ("id", "uuid", "key") or told.endswith(("_id", "-id", "_uuid")) or key[-2:] == "Id"
    )


def _as_name(value: JSON) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    told = plain(str(value)).strip()
    if len(told) > LONGEST_NAME or any(char.isspace() for char in told):
        return None
    if isinstance(value, int | float):
        return told
    return None if not told or is_address(told) or is_code(told) else told
