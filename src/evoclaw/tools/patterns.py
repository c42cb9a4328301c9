"""Globs and regular expressions, matched in linear time by RE2; a literal to search for first.

The only file that imports `re2`. Everything is bytes, so that any file name and any content can be
matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

SLASH, STAR, BACKSLASH = ord("/"), ord("*"), ord("\\")
ONE_CHARACTER = rb"(?:[^/\x00\x80-\xff]|[\xc0-\xff][\x80-\xbf]*|[\x80-\xbf])"
"""One character except a slash; one byte where the text is not UTF-8. No file name has a NUL."""
ANY_FOLDERS = rb"(?:[^\x00]*/)?"
"""The prefix of a name that may be at any depth."""
POSIX_CLASSES: dict[bytes, str] = {
    b"digit": "0123456789",
    b"xdigit": "0123456789abcdefABCDEF",
    b"lower": "abcdefghijklmnopqrstuvwxyz",
    b"upper": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    b"space": " \t\n\r\v\f",
    b"blank": " \t",
    b"punct": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
}
POSIX_CLASSES[b"alpha"] = POSIX_CLASSES[b"lower"] + POSIX_CLASSES[b"upper"]
POSIX_CLASSES[b"alnum"] = POSIX_CLASSES[b"alpha"] + POSIX_CLASSES[b"digit"]


def _re2() -> Any:
    """The library, imported with the first pattern: many processes never search."""
    import re2  # pyright: ignore[reportMissingTypeStubs]

    return cast("Any", re2)


class Regex:
    """A compiled regular expression over bytes."""

    def __init__(self, source: bytes, *, text: bool = False, ignore_case: bool = False) -> None:
        """Compile; `ToolFailure` if the expression is not valid.

        Args:
            source: The expression in RE2 syntax.
            text: Match within lines of UTF-8, as grep does; otherwise plain bytes.
            ignore_case: Whether `a` matches `A`.
        """
        options = _options(text=text)
        options.case_sensitive = not ignore_case
        options.never_nl = text
        try:
            self._compiled = _re2().compile(source, options)
        except _re2().error as problem:
            reason = _text(problem)
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS,
                f"The pattern is not a valid regular expression ({reason}). The syntax is RE2's: "
                "no look-around, no back-references. Put a backslash before . * + ? ( ) [ ] { } "
                "to mean the character.",
            ) from None

    def matches_all(self, data: bytes) -> bool:
        """Whether all the data matches."""
        return self._compiled.fullmatch(data) is not None

    def find(self, data: bytes, start: int = 0) -> int | None:
        """The index of the next match; None if there is none."""
        found = self._compiled.search(data, start)
        return None if found is None else cast("int", found.start())


class RegexSet:
    """Many expressions matched at once; the last one that matches wins."""

    def __init__(self, sources: Sequence[bytes]) -> None:
        self._set = _re2().Set.FullMatchSet(_options(text=False))
        self._empty = not sources
        for source in sources:
            self._set.Add(source)
        if sources:
            self._set.Compile()

    def last_match(self, data: bytes) -> int | None:
        """The index of the last expression that matches all the data; None if none does."""
        if self._empty:
            return None
        found = cast("list[int]", self._set.Match(data))
        return max(found) if found else None


def _options(*, text: bool) -> Any:
    options = _re2().Options()
    options.log_errors = False
    encodings = _re2().Options.Encoding
    options.encoding = encodings.UTF8 if text else encodings.LATIN1
    return options


def _text(problem: BaseException) -> str:
    first = problem.args[0] if problem.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


def glob_to_regex(glob: bytes, *, braces: bool = False) -> bytes | None:
    r"""The regular expression of a glob, or None if the glob can match nothing.

    `*` and `?` stop at a slash, `**` between slashes does not, `[a-z]`, `[!a]` and `\x` as in
    .gitignore; with `braces`, `{a,b}` is either.
    """
    return _GlobTranslator(glob, braces=braces and _balanced(glob)).regex()


class _GlobTranslator:
    def __init__(self, glob: bytes, *, braces: bool) -> None:
        self._glob, self._braces = glob, braces
        self._at = 0
        self._depth = 0

    def regex(self) -> bytes | None:
        out = bytearray()
        while self._at < len(self._glob):
            piece = self._next()
            if piece is None:
                return None
            out += piece
        return bytes(out)

    def _next(self) -> bytes | None:
        byte = self._glob[self._at]
        if byte == STAR:
            return self._stars()
        if byte == ord("["):
            return self._set()
        self._at += 1
        if byte == ord("?"):
            return ONE_CHARACTER
        if byte == BACKSLASH:
            if self._at == len(self._glob):
                return None
            self._at += 1
            return _literal(self._glob[self._at - 1])
        return self._brace(byte) if self._braces else _literal(byte)

    def _brace(self, byte: int) -> bytes:
        if byte == ord("{"):
            self._depth += 1
            return b"(?:"
        if byte == ord("}"):
            self._depth -= 1
            return b")"
        return b"|" if byte == ord(",") and self._depth else _literal(byte)

    def _stars(self) -> bytes:
        start = self._at
        while self._at < len(self._glob) and self._glob[self._at] == STAR:
            self._at += 1
        before = self._glob[start - 1 : start] if start else b""
        after = self._glob[self._at : self._at + 1]
        bounds = b"{,}" if self._braces else b""
        opens = not before or before in b"/" + bounds
        if self._at - start < 2 or not opens or (after and after not in b"/" + bounds):
            return rb"[^/\x00]*"
        if after == b"/":
            self._at += 1
            return ANY_FOLDERS
        return rb"[^\x00]+"

    def _set(self) -> bytes | None:
        at = self._at + 1
        negated = self._glob[at : at + 1] in (b"!", b"^")
        at += negated
        members: set[int] = set()
        first = True
        while True:
            if at >= len(self._glob):
                return None
            byte = self._glob[at]
            if byte == ord("]") and not first:
                break
            first = False
            named = self._class(at)
            if named is not None:
                members.update(named[0])
                at = named[1]
                continue
            low, at = self._member(at)
            high = low
            if self._glob[at : at + 1] == b"-" and self._glob[at + 1 : at + 2] not in (b"]", b""):
                high, at = self._member(at + 1)
            # As in git, the first member counts even in a reversed range.
            members.update((low, *range(low, high + 1)))
        self._at = at + 1
        chosen = (set(range(256)) - members if negated else members) - {SLASH, 0}
        return _any_of(chosen)

    def _class(self, at: int) -> tuple[bytes, int] | None:
        if self._glob[at : at + 2] != b"[:":
            return None
        end = self._glob.find(b":]", at)
        members = POSIX_CLASSES.get(self._glob[at + 2 : end]) if end >= 0 else None
        return None if members is None else (members.encode(), end + 2)

    def _member(self, at: int) -> tuple[int, int]:
        if self._glob[at] == BACKSLASH and at + 1 < len(self._glob):
            at += 1
        return self._glob[at], at + 1


def _literal(byte: int) -> bytes:
    return b"\\x%02x" % byte


def _any_of(members: set[int]) -> bytes | None:
    return b"[" + b"".join(_literal(byte) for byte in sorted(members)) + b"]" if members else None


def _balanced(glob: bytes) -> bool:
    depth = 0
    for byte in glob:
        depth += (byte == ord("{")) - (byte == ord("}"))
        if depth < 0:
            return False
    return depth == 0


OPTIONAL_QUANTIFIERS = "*?{"
"""Quantifiers that make the character before them optional."""


def required_literal(pattern: str) -> str:
    """The longest literal that every match contains; empty if none is certain."""
    if set(pattern) & set("|("):
        return ""  # a group or an alternative may be missing in a match
    found = _LiteralScanner(pattern).literals()
    return max(found, key=len, default="")


class _LiteralScanner:
    """Scans a pattern for runs of literal characters."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._run, self._found = "", list[str]()

    def literals(self) -> list[str]:
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            self._at += 1
            if char == "\\":
                self._escaped()
            elif char in OPTIONAL_QUANTIFIERS:
                self._run = self._run[:-1]
                self._end(self._after_bracket("}") if char == "{" else self._at)
            elif char == "[":
                # A bracket at the start of a class is one of its members.
                first = self._at + (self._pattern[self._at : self._at + 1] == "^")
                self._end(self._after_bracket("]", first + 1))
            elif char in ".^$+\n\r":
                self._end(self._at)
            else:
                self._run += char
        self._end(self._at)
        return self._found

    def _escaped(self) -> None:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        if char.isascii() and char.isprintable() and not char.isalnum() and char:
            self._run += char
        else:  # a class, an assertion, a number, or the start of a longer escape
            self._end(len(self._pattern) if char in "pPxQ" else self._at)

    def _after_bracket(self, bracket: str, start: int | None = None) -> int:
        """The index after the next unescaped bracket; beyond the pattern if there is none."""
        index = self._at if start is None else start
        while index < len(self._pattern) and self._pattern[index] != bracket:
            index += 2 if self._pattern[index] == "\\" else 1
        # A class within a class, such as [[:alpha:]]: the rest of the pattern is skipped.
        inner = self._pattern[self._at : index]
        return len(self._pattern) if bracket == "]" and "[" in inner else index + 1

    def _end(self, next_at: int) -> None:
        if self._run:
            self._found.append(self._run)
        self._run, self._at = "", next_at
