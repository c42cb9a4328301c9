"""The effects of one call, as far as they are known before it runs."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

_SIGNS = re.compile(r"[\\*?\[\]{},~]")


class Unreadable(Exception):
    """The effects of a command cannot be determined by reading it; the text says why."""


class PathAccess(StrEnum):
    """The access to a path."""

    READ = "read"
    WRITE = "write"


class Word(Struct, frozen=True, gc=False):
    r"""A word of a command, after quote removal.

    In `pattern`, `\x` is the literal character x, `*`, `?` and `[…]` match file names, and NUL is
    text that is only known at run time.
    """

    pattern: str
    text: str | None
    """The literal word, if it is known."""
    many: bool = False
    """Whether it may expand to several words, or none."""

    @property
    def loose(self) -> bool:
        """Whether it is only known at run time, and may expand to any words."""
        return self.text is None and (
            self.pattern[:1] in "\0-" or (self.many and "\0" in self.pattern)
        )

    @property
    def shown(self) -> str:
        """For people."""
        return self.pattern.replace("\0", "…") if self.text is None else self.text


class ProgramEffect(Struct, frozen=True, gc=False):
    """A program that would be started, or a builtin of the shell."""

    name: str
    """The name without its folder; empty if it is only known at run time."""
    words: tuple[Word, ...] = ()
    """Its arguments."""
    path: str = ""
    """The path as written, if it has a folder."""
    plain: bool = False
    """Whether it is known to start no other program from its arguments."""

    @property
    def shown(self) -> str:
        """For people."""
        return " ".join((self.path or self.name or "…", *(word.shown for word in self.words)))


class PathEffect(Struct, frozen=True, gc=False):
    """A path that would be read or written."""

    pattern: str
    """A pattern as in `Word`, absolute, with `..` not yet resolved; empty if it can be any path."""
    access: PathAccess
    by: str = ""
    """The program; empty for a redirection of several, and for tools other than a shell."""
    tree: bool = False
    """Whether everything below it is included."""
    sure: bool = True
    """False for a word that need not be a path at all."""

    @property
    def known(self) -> bool:
        """The literal path, if it is a single one."""
        return bool(self.pattern) and not any(sign in self.pattern for sign in "\0*?[")


class HostEffect(Struct, frozen=True, gc=False):
    """A host that would be contacted."""

    name: str
    """Lower case, without a trailing dot; empty if it can be any."""
    by: str = ""
    sure: bool = True
    """False for a word that need not be a host at all."""


class SettingEffect(Struct, frozen=True, gc=False):
    """A variable that a command would set."""

    name: str
    dangerous: bool = False
    """Whether programs run or load its value."""


class Effects(Struct, frozen=True, gc=False):
    """The effects of a call."""

    programs: tuple[ProgramEffect, ...] = ()
    places: tuple[PathEffect, ...] = ()
    hosts: tuple[HostEffect, ...] = ()
    settings: tuple[SettingEffect, ...] = ()
    code: tuple[str, ...] = ()
    """Programs that get code in another language, which is not analysed."""
    unreadable: str = ""
    """Why the effects are incomplete; empty if they are complete."""

    @property
    def reads(self) -> tuple[PathEffect, ...]:
        """The paths that would be read."""
        return tuple(place for place in self.places if place.access is PathAccess.READ)

    @property
    def writes(self) -> tuple[PathEffect, ...]:
        """The paths that would be written, created, moved or removed."""
        return tuple(place for place in self.places if place.access is PathAccess.WRITE)


NO_EFFECTS = Effects()


def literal(text: str) -> Word:
    """A word with exactly this text."""
    return Word(escape(text), text)


ANY_WORD = Word("\0", None, many=True)
"""Any number of words that are only known at run time."""


def escape(text: str) -> str:
    """The pattern that matches exactly this text."""
    return _SIGNS.sub(r"\\\g<0>", text) if _SIGNS.search(text) else text


def unescape(pattern: str) -> str | None:
    """The only text that a pattern matches; None if there may be several."""
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
    """The names in a list of names separated by blanks."""
    return frozenset(text.split())
