"""Redact secrets in what is stored or shown: by schema, by name, by pattern, and by value.

Linear in the length of the text: each pattern starts only where a run of its own characters starts,
so that no input makes it backtrack again and again.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from hashlib import blake2b
from typing import TypeAlias

from msgspec import Struct

from evoclaw.core.messages import JSON, is_array, is_object

Span: TypeAlias = tuple[int, int, str]
"""The start and end of a secret, and its kind."""

MAX_JSON_DEPTH, MAX_JSON_NODES = 32, 5_000
"""The limits of a JSON value; what is deeper, or comes after them, is omitted."""
LOOKAHEAD_CHARS = 8_192
"""Characters scanned beyond a length limit, to recognise a secret that starts before it."""
MIN_SECRET_CHARS = 6
"""Characters of a known secret; a shorter one would match in ordinary words."""
MAX_KNOWN_SCHEMAS = 1_024
"""Schemas whose secret fields are remembered: those of the tools in use."""
MAX_VALUE_CHARS = 4_096
"""Characters of a value after a name, such as in `password = "…"`."""
OMITTED = "[left out]"
_SECRET_NAMES = (
    "password|passwd|passphrase|passwort|secret|api[_-]?key|access[_-]?key|private[_-]?key|"
    "client[_-]?secret|auth[_-]?token|access[_-]?token|refresh[_-]?token|id[_-]?token|"
    "bearer[_-]?token|session[_-]?token|webhook[_-]?url|connection[_-]?string"
)
"""A value after one of these names is a secret, whatever it looks like."""
_POSSIBLE_SECRET_NAMES = (
    "pwd|pass|token|key|auth|authorization|credentials?|cookie|session[_-]?id|signature|sig|pin"
)
"""A value after one of these names is a secret if it looks random, or is part of a URL."""
_NAMED_VALUE = (
    rf"(?i)(?<![A-Za-z0-9_.-])[A-Za-z0-9_.-]{{0,40}}?"
    rf"(?:(?P<strong>{_SECRET_NAMES})|(?P<weak>{_POSSIBLE_SECRET_NAMES}))(?:[_-]?[A-Za-z0-9]{{1,12}})?"
    r"[\\\"'\]]{0,4}[ \t]{0,4}(?:=>|:=|=|:)[ \t]{0,4}(?P<open>\\{0,2}[\"'])?"
)
_FLAG_VALUE = (
    rf"(?i)(?<![A-Za-z0-9_-])--?[a-z0-9-]{{0,30}}?(?:{_SECRET_NAMES}|pwd|token|credentials)"
    r"[ \t]{1,4}"
    r"(?P<open>[\"'])?"
)
_UNQUOTED_VALUE = r"[^\s\"'\\&,;<>(){}\[\]|]{1,1024}"
_FULL_NAME = rf"(?:{_SECRET_NAMES}|authorization|cookie|credentials?)".replace("[_-]?", "")
_SHORT_NAMES = frozenset({"pwd", "pass", "pin", "auth", "bearer", "token", "jwt", "otp"})
_PEM_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
_PEM_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
_TOKEN_START = r"(?<![A-Za-z0-9_-])"
_TOKEN_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("aws-key", "a", r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("github-token", "gh", r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9_]{16,}"),
    ("github-token", "github_pat_", r"(?<![A-Za-z0-9])github_pat_[A-Za-z0-9_]{16,}"),
    ("gitlab-token", "gl", _TOKEN_START + r"gl[a-z]{2,6}-[A-Za-z0-9_-]{16,}"),
    ("slack-token", "xox", _TOKEN_START + r"xox[a-z]-[A-Za-z0-9-]{10,}"),
    ("slack-token", "xapp-", _TOKEN_START + r"xapp-[A-Za-z0-9-]{10,}"),
    ("slack-hook", "hooks.", r"hooks\.slack\.com/[a-z]{1,20}/([A-Za-z0-9_/-]{8,})"),
    ("api-key", "k-", _TOKEN_START + r"(?:sk|rk|pk)-[A-Za-z0-9_-]{16,}"),
    ("api-key", "k_", _TOKEN_START + r"(?:sk|rk|pk)_[A-Za-z0-9_-]{16,}"),
    ("google-key", "aiza", _TOKEN_START + r"AIza[A-Za-z0-9_-]{30,}"),
    ("google-key", "ya29.", _TOKEN_START + r"ya29\.[A-Za-z0-9_-]{20,}"),
    ("registry-token", "npm_", _TOKEN_START + r"npm_[A-Za-z0-9_-]{16,}"),
    ("registry-token", "pypi-", _TOKEN_START + r"pypi-[A-Za-z0-9_-]{16,}"),
    ("registry-token", "hf_", _TOKEN_START + r"hf_[A-Za-z0-9_-]{16,}"),
    ("bot-token", ":", r"(?<![A-Za-z0-9])[0-9]{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    ("sendgrid-key", "sg.", _TOKEN_START + r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    (
        "jwt",
        "eyj",
        _TOKEN_START + r"eyJ[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]{1,}){1,4}\.?",
    ),
    (
        "authorization",
        "authorization",
        r"(?i)\bauthorization[\\\"']{0,4}\s{0,4}[:=]\s{0,4}[\\\"']{0,4}"
        r"((?:[a-z]{4,12}[ \t]{1,4})?[^\s\"'\\,;]{3,})",
    ),
    (
        "cookie",
        "cookie",
        r"(?i)\bcookie[\\\"']{0,4}\s{0,4}[:=]\s{0,4}[\\\"']{0,4}([^\r\n\"'\\]{3,})",
    ),
    ("login", "-u", r"(?<![^\s])-u[ =]?[\"']?([^\s:\"']{1,256}:[^\s\"']{1,256})"),
    ("login", "--user", r"(?<![^\s])--user[ =]?[\"']?([^\s:\"']{1,256}:[^\s\"']{1,256})"),
    ("login", "sshpass", r"\bsshpass\s{1,4}-p[ =]?([^\s]{1,256})"),
)
"""The kind, a lower-case substring that every match contains, and the pattern."""
_POSSIBLE_TOKEN_PATTERNS: tuple[tuple[str, str, str], ...] = (
    ("bearer", "bearer", r"(?i)\bbearer[ \t]{1,4}([A-Za-z0-9+/=._~-]{8,})"),
    ("bearer", "basic", r"(?i)\bbasic[ \t]{1,4}([A-Za-z0-9+/=._~-]{8,})"),
    (
        "url-login",
        "://",
        r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,20}://"
        r"([^\s/\"'<>?#]{1,})@(?=[^\s@/]|$)",
    ),
)
"""Patterns that also match ordinary words: the match must look random, or contain a password."""
_NAME_HINTS = (
    "pass", "pwd", "secret", "key", "token", "auth", "cred", "cookie", "session", "sig", "pin",
    "webhook", "connection",
)  # fmt: skip
"""A text without any of these has no name of a secret."""


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile on first use: most processes that import this module never redact."""
    return re.compile(pattern)


class SecretFields(Struct, frozen=True):
    """The fields that a JSON Schema marks as secret."""

    is_secret: bool = False
    fields: dict[str, SecretFields] = {}
    others: SecretFields | None = None
    """For fields that are not named, and for the items of a list."""


class Redactor:
    """Replaces secrets by placeholders; built once, with the secrets known by value."""

    def __init__(self, secrets: Iterable[str] = (), *, key: bytes = b"") -> None:
        """Prepare the known values.

        Args:
            secrets: Values that must never appear, in none of their usual encodings.
            key: With a key, each placeholder has a short keyed hash of the secret: the same
                secret gets the same hash, and cannot be guessed from it.
        """
        values = {secret.strip() for secret in secrets}
        found = {
            form for value in values if len(value) >= MIN_SECRET_CHARS for form in _spellings(value)
        }
        self._known = tuple(sorted(found, key=len))
        self._key = key

    def text(self, text: str, limit: int | None = None) -> str:
        """The text without its secrets; with a limit, cut to about that many characters."""
        seen = text if limit is None else text[: limit + LOOKAHEAD_CHARS]
        end = len(seen) if limit is None else min(limit, len(seen))
        pieces: list[str] = []
        at = 0
        found = sorted(self._spans(seen))
        if not found and end == len(text):
            return text
        for start, stop, kind in _merge_spans(found):
            if start >= end:
                break
            pieces += (seen[at:start], self._placeholder(kind, seen[start:stop]))
            at = stop
        pieces.append(seen[at : max(at, end)])
        if limit is not None and len(text) > max(at, end):
            pieces.append(f"… [{len(text) - max(at, end)} more]")
        return "".join(pieces)

    def error(self, error: BaseException, limit: int = 1_000) -> str:
        """An exception in one line: its type and its message."""
        return self.text(f"{type(error).__name__}: {error}", limit)

    def value(
        self, value: JSON, marks: SecretFields | None = None, *, limit: int | None = None
    ) -> JSON:
        """A JSON value without its secrets; field names are redacted too."""
        return _JsonRedactor(self, limit).value(value, marks, 0)

    def placeholder(self, kind: str, value: JSON) -> str:
        """The placeholder for a value."""
        return self._placeholder(
            kind, value if isinstance(value, str) else repr(value)[:MAX_VALUE_CHARS]
        )

    def _placeholder(self, kind: str, secret: str) -> str:
        if not self._key:
            return f"[redacted:{kind}]"
        data = secret.encode("utf-8", "surrogatepass")
        return f"[redacted:{kind}#{blake2b(data, key=self._key[:64], digest_size=3).hexdigest()}]"

    def _spans(self, text: str) -> Iterator[Span]:
        for form in self._known:
            if len(form) > len(text):
                break
            at = text.find(form)
            while at >= 0:
                yield at, at + len(form), "known"
                at = text.find(form, at + len(form))
        if len(text) < MIN_SECRET_CHARS:
            return
        lower = text.lower()
        yield from _token_spans(text, lower)
        if any(hint in lower for hint in _NAME_HINTS):
            yield from _named_value_spans(text)
        if "PRIVATE KEY" in text:
            yield from _private_key_spans(text)


class _JsonRedactor:
    """Redacts one JSON value recursively, within limits of depth and size."""

    def __init__(self, redactor: Redactor, limit: int | None) -> None:
        self._redactor, self._limit, self._left = redactor, limit, MAX_JSON_NODES

    def value(self, value: JSON, marks: SecretFields | None, depth: int) -> JSON:
        self._left -= 1
        if marks is not None and marks.is_secret and value is not None:
            return self._redactor.placeholder("marked", value)
        if isinstance(value, str):
            return self._redactor.text(value, self._limit)
        if self._left < 0 or depth > MAX_JSON_DEPTH:
            return OMITTED
        if is_object(value):
            return self._object(value, marks, depth)
        if is_array(value):
            return [self.value(item, marks and marks.others, depth + 1) for item in value]
        if isinstance(value, bool | int | float | None):
            return value
        return self._redactor.text(str(value), self._limit)

    def _object(
        self, value: dict[str, JSON], marks: SecretFields | None, depth: int
    ) -> dict[str, JSON]:
        label = value.get("name", value.get("key", value.get("header")))
        pair = isinstance(label, str) and is_secret_name(label[-120:])
        found: dict[str, JSON] = {}
        for name, member in value.items():
            text = str(name)
            below = None if marks is None else marks.fields.get(text, marks.others)
            secret = is_secret_name(text[-120:]) or (pair and text in ("value", "content"))
            if secret and member is not None and not isinstance(member, bool):
                found[self._redactor.text(text, 200)] = self._redactor.placeholder("named", member)
            else:
                found[self._redactor.text(text, 200)] = self.value(member, below, depth + 1)
        return found


def secret_fields_of(schema: Mapping[str, JSON]) -> SecretFields | None:
    """The fields with `writeOnly` or `format: password` in a JSON Schema; None if it has none."""
    return _secret_fields_of(_SameSchema(schema))


class _SameSchema:
    """A key for what is found once in a schema: equal if it is the same object."""

    __slots__ = ("schema",)

    def __init__(self, schema: Mapping[str, JSON]) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameSchema) and other.schema is self.schema


@lru_cache(MAX_KNOWN_SCHEMAS)
def _secret_fields_of(same: _SameSchema) -> SecretFields | None:
    return _secret_fields(same.schema, same.schema, 0)


def _secret_fields(node: JSON, root: Mapping[str, JSON], depth: int) -> SecretFields | None:
    if not is_object(node) or depth > MAX_JSON_DEPTH:
        return None
    if node.get("writeOnly") is True or node.get("format") == "password":
        return SecretFields(True)
    found: list[SecretFields] = []
    fields = {
        name: _secret_fields(sub, root, depth + 1) for name, sub in _members(node, "properties")
    }
    secret = {name: marks for name, marks in fields.items() if marks is not None}
    rest = [
        _secret_fields(node.get(keyword), root, depth + 1)
        for keyword in ("items", "additionalProperties")
    ]
    for schema in _alternatives(node, root):
        marks = _secret_fields(schema, root, depth + 1)
        found += [] if marks is None else [marks]
    others = _merge_secret_fields([marks for marks in rest if marks is not None])
    if secret or others is not None:
        found.append(SecretFields(False, secret, others))
    return _merge_secret_fields(found)


def _members(node: dict[str, JSON], word: str) -> Iterable[tuple[str, JSON]]:
    value = node.get(word)
    return value.items() if is_object(value) else ()


def _alternatives(node: dict[str, JSON], root: Mapping[str, JSON]) -> Iterator[JSON]:
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        value = node.get(keyword)
        if is_array(value):
            yield from value
    target = node.get("$ref")
    if isinstance(target, str) and target.startswith("#/"):
        found: JSON = root
        for step in target[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None  # pyright: ignore
        yield found


def _merge_secret_fields(all_marks: list[SecretFields]) -> SecretFields | None:
    if len(all_marks) < 2:
        return all_marks[0] if all_marks else None
    names = {name for marks in all_marks for name in marks.fields}
    fields = {
        n: _merge_secret_fields([m.fields[n] for m in all_marks if n in m.fields]) for n in names
    }
    return SecretFields(
        any(marks.is_secret for marks in all_marks),
        {name: marks for name, marks in fields.items() if marks is not None},
        _merge_secret_fields([marks.others for marks in all_marks if marks.others is not None]),
    )


@lru_cache(4096)
def is_secret_name(name: str) -> bool:
    """Whether a field or variable of this name contains a secret."""
    last = re.split(r"[^A-Za-z0-9]|(?<=[a-z0-9])(?=[A-Z])", name)[-1].lower()
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return last in _SHORT_NAMES or bool(_compiled(_FULL_NAME).search(plain))


def secrets_in(env: Mapping[str, str]) -> tuple[str, ...]:
    """The values of environment variables with names of secrets."""
    return tuple(
        value
        for name, value in env.items()
        if len(value) >= MIN_SECRET_CHARS
        and (is_secret_name(name) or name.upper().endswith("_KEY"))
    )


def _token_spans(text: str, lower: str) -> Iterator[Span]:
    for kind, hint, pattern in _TOKEN_PATTERNS:
        if hint in lower:
            for match in _compiled(pattern).finditer(text):
                yield (*match.span(match.lastindex or 0), kind)
    for kind, hint, pattern in _POSSIBLE_TOKEN_PATTERNS:
        if hint in lower:
            for match in _compiled(pattern).finditer(text):
                value = match[1]
                if looks_random(value) or (kind == "url-login" and ":" in value.strip(":")):
                    yield (*match.span(1), kind)


def _named_value_spans(text: str) -> Iterator[Span]:
    """Values after names. In a URL the name alone decides; the scan continues after a secret."""
    for pattern in (_NAMED_VALUE, _FLAG_VALUE):
        at = 0
        while match := _compiled(pattern).search(text, at):
            at = match.end()
            sure = pattern is _FLAG_VALUE or match["strong"] is not None
            sure = sure or text[match.start() - 1 : match.start()] in ("?", "&", "#")
            stop = _value_end(text, match)
            value = text[at:stop]
            if value and not value.startswith("[redacted:") and (sure or looks_random(value)):
                while more := _compiled(_UNQUOTED_VALUE).match(text, stop):
                    stop = more.end()
                yield at, stop, "named"
                at = stop


def _value_end(text: str, match: re.Match[str]) -> int:
    """The end of the value after a name: its closing quote, or the next space."""
    start, opened = match.end(), match["open"]
    stop = text.find(opened, start, start + MAX_VALUE_CHARS) if opened else -1
    if stop < 0:
        bare = _compiled(_UNQUOTED_VALUE).match(text, start)
        stop = start if bare is None else bare.end()
    return stop


def _private_key_spans(text: str) -> Iterator[Span]:
    at = 0
    while header := _compiled(_PEM_BEGIN).search(text, at):
        end = _compiled(_PEM_END).search(text, header.end())
        at = len(text) if end is None else end.end()
        yield header.start(), at, "private-key"


def looks_random(text: str) -> bool:
    """Whether a text looks random rather than written by a person."""
    if len(text) < 8:
        return False
    text = text[:256]
    kinds = sum(any(map(test, text)) for test in (str.isdigit, str.isupper, str.islower))
    counts = [text.count(char) for char in set(text)]
    entropy = -sum(count / len(text) * math.log2(count / len(text)) for count in counts)
    return (kinds >= 2 and entropy >= 2.8) or (len(text) >= 20 and entropy >= 3.7)


def _merge_spans(spans: Iterable[Span]) -> Iterator[Span]:
    """Merge overlapping spans; the kind of the first counts."""
    found: Span | None = None
    for start, stop, kind in spans:
        if found is None or start >= found[1]:
            if found is not None:
                yield found
            found = (start, stop, kind)
        elif stop > found[1]:
            found = (found[0], stop, found[2])
    if found is not None:
        yield found


def _spellings(secret: str) -> Iterator[str]:
    """The usual encodings of a value."""
    from urllib.parse import quote, quote_plus

    yield secret
    yield quote(secret, safe="")
    yield quote_plus(secret)
    yield json.dumps(secret)[1:-1]
    data = secret.encode("utf-8", "surrogatepass")
    yield data.hex()
    yield data.hex().upper()
    for before in range(3):
        # Inside longer base64 text: the characters that depend on the secret alone.
        encoded = b64encode(b"\0" * before + data).decode().rstrip("=")
        skip = (0, 2, 3)[before]
        stop = len(encoded) - (1 if (len(data) + before) % 3 else 0)
        if stop - skip >= MIN_SECRET_CHARS + 2:
            yield encoded[skip:stop]
            yield encoded[skip:stop].translate(_URLSAFE)


_URLSAFE = str.maketrans("+/", "-_")
