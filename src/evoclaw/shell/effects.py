"""The effects of one call, as far as they are known before it runs."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

_SIGNS = re.compile(r"[\\*?\[\]{},~]")


class Unreadable(Exception):
    """The effects of a command cannot be determined by reading it; the text says why."""


class PathAccess(StrEnum):
    """What is done to a path."""

    READ = "read"
    WRITE = "write"


class Word(Struct, frozen=True, gc=False):
    r"""One word of a command, after quotes were taken away.

    In `pattern`, `\x` is the character x itself, `*`, `?` and `[…]` stand for file names, and NUL
    for text that is only known when the command runs.
    """

    pattern: str
    text: str | None
    """The word itself, when it is known."""
    many: bool = False
    """It may become several words, or none."""

    @property
    def loose(self) -> bool:
        """Only running it tells what it is, and whether it is one word: any word may come of it."""
        return self.text is None and (
            self.pattern[:1] in "\0-" or (self.many and "\0" in self.pattern)
        )

    @property
    def shown(self) -> str:
        """For people."""
        return self.pattern.replace("\0", "…") if self.text is None else self.text


class ProgramEffect(Struct, frozen=True, gc=False):
    """One program that would be started, or one builtin of the shell."""

    name: str
    """Without its folder; empty if it is only known at run time."""
    words: tuple[Word, ...] = ()
    """Its arguments."""
    path: str = ""
    """As it was written, when that has a folder."""
    plain: bool = False
    """It is known to start no other program that its arguments name."""

    @property
    def shown(self) -> str:
        """For people."""
        return " ".join((self.path or self.name or "…", *(word.shown for word in self.words)))


class PathEffect(Struct, frozen=True, gc=False):
    """One path that would be read or written."""

    pattern: str
    """Like a word's, absolute, not yet without its `..`; empty if it can be any path."""
    access: PathAccess
    by: str = ""
    """The program; empty for a redirection of several, and for tools other than a shell."""
    tree: bool = False
    """Everything below it, too."""
    sure: bool = True
    """False for a word that need not be a path at all."""

    @property
    def known(self) -> bool:
        """Whether it is one path, and which."""
        return bool(self.pattern) and not any(sign in self.pattern for sign in "\0*?[")


class HostEffect(Struct, frozen=True, gc=False):
    """A host that would be contacted."""

    name: str
    """Lower case, without a dot at its end; empty if it can be any."""
    by: str = ""
    sure: bool = True
    """False for a word that need not be a host at all."""


class SettingEffect(Struct, frozen=True, gc=False):
    """A variable that a command would set."""

    name: str
    dangerous: bool = False
    """Programs run or load its value."""


class Effects(Struct, frozen=True, gc=False):
    """All that a call would do."""

    programs: tuple[ProgramEffect, ...] = ()
    places: tuple[PathEffect, ...] = ()
    hosts: tuple[HostEffect, ...] = ()
    settings: tuple[SettingEffect, ...] = ()
    code: tuple[str, ...] = ()
    """Programs that are given code in another language, which is not analysed."""
    unreadable: str = ""
    """Why the effects are incomplete; empty if they are complete."""

    @property
    def reads(self) -> tuple[PathEffect, ...]:
        """What would be read."""
        return tuple(place for place in self.places if place.access is PathAccess.READ)

    @property
    def writes(self) -> tuple[PathEffect, ...]:
        """What would be written, made, moved or removed."""
        return tuple(place for place in self.places if place.access is PathAccess.WRITE)


NO_EFFECTS = Effects()


def literal(text: str) -> Word:
    """A word that is exactly this text."""
    return Word(escape(text), text)


ANY_WORD = Word("\0", None, many=True)
"""Words that are only known at run time."""


def escape(text: str) -> str:
    """The pattern that means exactly this text."""
    return _SIGNS.sub(r"\\\g<0>", text) if _SIGNS.search(text) else text


def unescape(pattern: str) -> str | None:
    """The one text that a pattern means; None if it may mean several."""
    if "\0" in pattern:
        return None
    if "\\" not in pattern:
        return None if "*" in pattern or "?" in pattern or "[" in pattern else pattern
    out: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "\\":
            out.append(next(signs, "\\"))
        elif sign in "*?[":
            return None
        else:
            out.append(sign)
    return "".join(out)


def names(text: str) -> frozenset[str]:
    """Names, one after the other."""
    return frozenset(text.split())
