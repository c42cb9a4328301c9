"""Finds what a genome can only know from cases that no proposer may see.

A text that contains the name, the expected answer or a passage of a validation or sealed case would
pass the case without being better. Texts are compared in lower case without blanks and signs, also
reversed and as decoded base64, hexadecimal, percent encoding and ROT13.
"""

from __future__ import annotations

import base64
import codecs
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from urllib.parse import unquote

from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.evolution.cases import CaseFile, Split
from evoclaw.evolution.checks import (
    AnswerCheck,
    CalledCheck,
    Check,
    CommandCheck,
    FileCheck,
    NotCalledCheck,
    SchemaCheck,
)

MIN_CODE_CHARS = 6
"""An answer with a digit is as telling as a code; a shorter one may be a number that all know."""
MIN_PHRASE_CHARS = 24
"""An answer without a digit that is no ordinary word or name."""
MIN_WORD_CHARS = 4
MIN_WORD_CASES = 3
"""Ordinary words that are answers of so many cases in one text are no accident."""
PASSAGE_CHARS = 40
"""A shared passage of so many letters and digits is a copy."""
_ENCODED = re.compile(r"[A-Za-z0-9+/_=-]{8,}")
_PATTERN_SIGNS = re.compile(r"\\.|\(\?[a-zA-Z]*[:)]?|[\[\](){}.*+?|^$]")


class _Secrets(Struct, frozen=True):
    """What a case knows, normalized."""

    split: Split
    codes: frozenset[str]
    """One of them in a text is a leak."""
    words: frozenset[str]
    """Ordinary words that are answers."""


class LeakCheck:
    """The hidden cases of an agent, ready to be looked for in texts."""

    def __init__(self, cases: Sequence[CaseFile]) -> None:
        """Choose the cases.

        Args:
            cases: All cases of the agent. Those of the train split are not hidden, and what they
                contain is no leak.
        """
        seen = [case for case in cases if case.case.split is Split.TRAIN]
        self._known = _normalize(" ".join(text for case in seen for text in _texts(case)))
        hidden = [case for case in cases if case.case.split is not Split.TRAIN]
        self._secrets = [_secrets(case) for case in hidden]
        self._passages = {
            passage: case.case.split
            for case in hidden
            for text in _texts(case)
            for passage in _passages(_normalize(text))
        }

    def find(self, texts: Iterable[str], known: Iterable[str] = ()) -> list[str]:
        """What new texts give away, in words that name no case; `known` is what is no leak."""
        allowed = self._known + " " + " ".join(map(_normalize, known))
        views = [view for text in texts for view in _views(text)]
        problems: dict[str, None] = {}
        words: set[int] = set()
        for number, secret in enumerate(self._secrets):
            if _any_in(secret.codes, views, allowed):
                problems[f"a text contains the name or the answer of a {secret.split} case"] = None
            if _any_in(secret.words, views, allowed):
                words.add(number)
        for passage in (found for view in views for found in _passages(view)):
            split = self._passages.get(passage)
            if split is not None and passage not in allowed:
                problems[f"a text contains a passage of a {split} case"] = None
        if len(words) >= MIN_WORD_CASES:
            problems["a text contains the answers of several hidden cases"] = None
        return list(problems)


def _any_in(literals: Iterable[str], views: Sequence[str], allowed: str) -> bool:
    return any(literal in view and literal not in allowed for literal in literals for view in views)


def _secrets(case: CaseFile) -> _Secrets:
    codes: set[str] = set()
    words: set[str] = set()
    for literal in _answers(case.case.checks):
        bare = _normalize(literal)
        has_digit = any(sign.isdigit() for sign in bare)
        if len(bare) >= MIN_PHRASE_CHARS or (has_digit and len(bare) >= MIN_CODE_CHARS):
            codes.add(bare)
        elif len(bare) >= MIN_WORD_CHARS:
            words.add(bare)
    name = _normalize(case.name)
    if any(sign.isdigit() for sign in name) and len(name) >= MIN_CODE_CHARS:
        codes.add(name)
    return _Secrets(case.case.split, frozenset(codes), frozenset(words))


def _passages(text: str) -> Iterator[str]:
    return (text[at : at + PASSAGE_CHARS] for at in range(len(text) - PASSAGE_CHARS + 1))


def _texts(case: CaseFile) -> Iterator[str]:
    """All that a case says, but the names of its tools."""
    yield case.name
    yield case.case.message
    for result in case.case.results:
        yield result.text
    yield from _answers(case.case.checks)


def _answers(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        if isinstance(check, AnswerCheck | FileCheck):
            yield from filter(None, (check.equals, check.contains))
            yield from _PATTERN_SIGNS.split(check.matches)
        elif isinstance(check, CommandCheck):
            yield from filter(None, (check.contains,))
        elif isinstance(check, CalledCheck | NotCalledCheck):
            yield from _leaves(check.arguments)
        elif isinstance(check, SchemaCheck):
            yield from _constants(check.schema)


def _constants(schema: JSON) -> Iterator[str]:
    if is_object(schema):
        for key, value in schema.items():
            yield from _leaves(value) if key in ("const", "enum") else _constants(value)
    elif is_array(schema):
        for value in schema:
            yield from _constants(value)


def _leaves(value: JSON) -> Iterator[str]:
    if is_object(value):
        for inner in value.values():
            yield from _leaves(inner)
    elif is_array(value):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _normalize(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(sign for sign in folded if sign.isalnum())


def _views(text: str) -> list[str]:
    """A text, and what it says in the encodings that models read."""
    plain = [text, text[::-1], codecs.encode(text, "rot13"), unquote(text)]
    plain += [decoded for found in _ENCODED.findall(text) for decoded in _decoded(found)]
    return list(dict.fromkeys(map(_normalize, plain)))


def _decoded(token: str) -> Iterator[str]:
    """What a token may mean; most are ordinary words, and mean nothing."""
    bare = token.rstrip("=")
    with suppress(ValueError):
        signs = b"+/" if "+" in token or "/" in token else b"-_"
        yield base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=signs).decode()
    with suppress(ValueError):
        yield bytes.fromhex(token).decode()
