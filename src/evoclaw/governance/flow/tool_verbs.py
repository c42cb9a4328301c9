"""Which words of a user ask for a tool: the verb in the tool's name, and its synonyms."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

_SYNONYMS = (
    # sending a message
    "send write post message mail email reply respond answer tell notify inform forward share text "
    "submit announce publish remind broadcast",
    # paying or giving
    "send give pay transfer refund wire reimburse return remit settle donate",
    # making
    "create add make new write set schedule book plan put insert append generate draft open save "
    "register record note copy",
    # reserving
    "book reserve reservation rent order schedule",
    # buying
    "buy purchase order subscribe",
    # repeating
    "schedule recurring plan",
    # changing
    "update change adjust edit modify set correct fix rename replace amend increase decrease",
    # moving in time or place
    "reschedule move postpone shift delay",
    # removing
    "delete remove cancel drop clear erase purge discard uninstall revoke unsubscribe",
    # inviting
    "invite add include enrol enroll join admit grant share allow",
    # running
    "run execute start launch restart stop install build deploy test",
    # switching
    "turn switch toggle open close lock unlock enable disable activate set",
    "commit push merge",
    "upload publish attach",
    "press click type fill navigate",
)
_IRREGULAR_FORMS = {
    "sent": "send", "wrote": "write", "written": "write", "told": "tell", "paid": "pay",
    "gave": "give", "given": "give", "made": "make", "making": "make", "bought": "buy",
    "ran": "run", "built": "build", "payment": "pay", "reservation": "reserve",
    "booking": "book", "invitation": "invite", "removal": "remove", "deletion": "delete",
    "cancellation": "cancel", "reply": "reply", "replies": "reply", "replied": "reply",
    "modified": "modify", "notified": "notify", "copied": "copy", "e-mail": "email",
}  # fmt: skip
_WORD_BREAK = re.compile(r"[^a-z0-9]+")
_MAX_IGNORED_WORD_CHARS = 2
_SUFFIXES = ("ing", "ed", "es", "s", "d")


def _synonyms_by_word() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in _SYNONYMS:
        words = line.split()
        for word in words:
            found.setdefault(word, set()).update(words)
    return {word: frozenset(same) for word, same in found.items()}


class ToolVerbs:
    """Finds the verbs and objects in tool names, with their synonyms."""

    __slots__ = ("_extra", "_objects", "_synonyms", "_verbs")

    def __init__(self, extra: dict[str, tuple[str, ...]]) -> None:
        """`extra` are further verbs of each tool, from the configuration."""
        self._extra = extra
        self._synonyms = _synonyms_by_word()
        self._verbs: dict[str, frozenset[str]] = {}
        self._objects: dict[str, frozenset[str]] = {}

    def verbs(self, tool: str) -> frozenset[str]:
        """The verbs of a tool, of which the user must have written one; never empty."""
        if tool not in self._verbs:
            self._verbs[tool] = self._find_verbs(tool) | frozenset(self._extra.get(tool, ()))
        return self._verbs[tool]

    def _find_verbs(self, tool: str) -> frozenset[str]:
        words = _words_of(tool)
        for word in words:
            if word in self._synonyms:
                return self._synonyms[word]
        return frozenset(words[:1])

    def object_words(self, tool: str) -> frozenset[str]:
        """The words for what a tool acts on: its name without the verb."""
        if tool not in self._objects:
            words = _words_of(tool)
            verb = next((word for word in words if word in self._synonyms), words[0])
            rest = [word for word in words if word != verb and len(word) > _MAX_IGNORED_WORD_CHARS]
            self._objects[tool] = frozenset(form for word in rest for form in (word, word + "s"))
        return self._objects[tool]

    def stems(self, words: Iterable[str]) -> set[str]:
        """The words and their dictionary forms, as far as the synonyms know them."""
        found: set[str] = set()
        for word in words:
            found.update(self._stem(word))
        return found

    def _stem(self, word: str) -> Iterable[str]:
        yield word
        if word in _IRREGULAR_FORMS:
            yield _IRREGULAR_FORMS[word]
        for suffix in _SUFFIXES:
            if word.endswith(suffix):
                root = word[: -len(suffix)]
                for stem in (root, root + "e", root[:-1] if root[-2:-1] == root[-1:] else root):
                    if stem in self._synonyms:
                        yield stem


def _words_of(tool: str) -> list[str]:
    own = tool.rpartition("__")[2] or tool
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", own).lower()
    return [word for word in _WORD_BREAK.split(split) if word] or [tool]


def mentions_any(words: Set[str], written: Set[str]) -> bool:
    """Whether the user wrote one of the words."""
    return not words.isdisjoint(written)
