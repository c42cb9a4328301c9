"""What a call will use, as far as it says, and what it did use."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from evoclaw.core.ledgers import ACTION, BYTES, CALLS, LINES
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, ToolResult, is_array, is_object
from evoclaw.core.tools import EVERYTHING, Call, Effect
from evoclaw.governance.budget.settings import ActionLimit

RESULT = 64_000
"""Bytes that an answer may bring, before it is known."""
UNDONE = frozenset(
    {
        ErrorKind.INVALID_PARAMS,
        ErrorKind.NOT_FOUND,
        ErrorKind.PERMISSION_DENIED,
        ErrorKind.QUEUE_FULL,
        ErrorKind.AGENT_OFFLINE,
        ErrorKind.SANDBOX_UNAVAILABLE,
    }
)
"""Failures after which no file was changed."""
_BEGIN = "*** Begin Patch"
_OURS = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_UNIFIED = ("+++ ", "--- ", "rename from ", "rename to ")
_PREFIX = re.compile(r"^[ab]/")
_PATCH = "patch"


class Measured(Struct, frozen=True, gc=False):
    """What a call takes at most."""

    amounts: dict[str, int]
    files: tuple[str, ...] = ()
    """What it changes."""


Matcher = Callable[[Call], dict[str, int]]


def measure(call: Call) -> Measured:
    """What a call says it will do: its own text is the worst case for what it writes."""
    if not writes_files(call):
        return Measured({CALLS: 1, BYTES: RESULT})
    lines, size = 0, RESULT
    for text in _texts(call):
        lines += _lines(text)
        size += _bytes(text)
    patch = call.arguments.get(_PATCH)
    if isinstance(patch, str):
        if call.arguments.get("dry_run") is True:
            return Measured({CALLS: 1, BYTES: RESULT})
        files, lines = _patched(patch)
        return Measured({CALLS: 1, BYTES: size, LINES: lines}, files)
    return Measured({CALLS: 1, BYTES: size, LINES: lines}, named_files(call))


def writes_files(call: Call) -> bool:
    """Whether it is one of the tools that change files by what they are told."""
    tool = call.tool
    if tool.effect is not Effect.WRITE or "file_write" not in tool.permissions:
        return False
    return EVERYTHING not in tool.resources or isinstance(call.arguments.get(_PATCH), str)


def named_files(call: Call) -> tuple[str, ...]:
    """The files that a call names as what it touches."""
    patch = call.arguments.get(_PATCH)
    if isinstance(patch, str) and writes_files(call):
        return _patched(patch)[0]
    given = [call.arguments.get(name) for name in call.tool.resources]
    return tuple(clean_path(one) for one in given if isinstance(one, str))


def file_id(owner: str, path: str) -> str:
    """Under which a file that an account pays for is set aside: once, however it is spelt."""
    return f"{owner}.file.{hashlib.sha256(path.encode(errors='replace')).hexdigest()}"


def clean_path(path: str) -> str:
    """One spelling of a path."""
    path = path.strip()
    return posixpath.normpath(path) if path else "."


def really(call: Measured, result: ToolResult) -> tuple[dict[str, int], bool]:
    """What a call that ran took, and whether it may have changed files."""
    real = dict(call.amounts)
    real[BYTES] = real.get(BYTES, RESULT) - RESULT + _size(result)
    if result.error in UNDONE:
        if LINES in real:
            real[LINES] = 0
        return real, False
    if result.error is None and LINES in real:
        real[LINES] = _told_lines(result.details, real[LINES])
    return real, True


def matcher(actions: Mapping[str, ActionLimit]) -> Matcher:
    """Says which physical actions a call is, and how many of each."""
    if not actions:
        return lambda call: {}
    rules = [(ACTION + name, one) for name, one in actions.items()]

    def match(call: Call) -> dict[str, int]:
        names = (call.tool.name, *call.tool.aliases)
        return {
            kind: _times(rule, call.arguments)
            for kind, rule in rules
            if any(fnmatchcase(name, wanted) for name in names for wanted in rule.tools)
            and all(_fits(wanted, call.arguments, key) for key, wanted in rule.arguments.items())
        }

    return match


def _times(rule: ActionLimit, arguments: Mapping[str, JSON]) -> int:
    if not rule.times:
        return 1
    said = [one for one in _at(arguments, rule.times) if isinstance(one, int | float)]
    return max([1, *[int(one) + (one != int(one)) for one in said if abs(one) < 1 << 53]])


def _fits(wanted: JSON, arguments: Mapping[str, JSON], key: str) -> bool:
    """Whether an argument is the wanted one, or holds it: what is in doubt counts."""
    choices = wanted if is_array(wanted) else [wanted]
    return any(_same(choice, given) for given in _at(arguments, key) for choice in choices)


def _same(wanted: JSON, given: JSON) -> bool:
    if isinstance(wanted, str):
        said = given if isinstance(given, str) else _plain(given)
        return fnmatchcase(said.strip().casefold(), wanted.strip().casefold())
    if isinstance(given, str) or isinstance(wanted, bool) != isinstance(given, bool):
        return _plain(given).strip().casefold() == _plain(wanted).casefold()
    return wanted == given


def _plain(value: JSON) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _at(arguments: Mapping[str, JSON], key: str) -> Iterator[JSON]:
    """The values at `a.b`; every one of an array."""
    found: list[JSON] = [arguments]
    for part in key.split("."):
        inner = [one[part] for one in found if is_object(one) and part in one]
        found = [each for one in inner for each in (one if is_array(one) else [one])]
    yield from found


def _texts(call: Call) -> Iterator[str]:
    for name, value in call.arguments.items():
        if isinstance(value, str) and name not in call.tool.resources:
            yield value


def _lines(text: str) -> int:
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def _patched(patch: str) -> tuple[tuple[str, ...], int]:
    """The files a patch names, and the lines it adds and takes away."""
    files: dict[str, None] = {}
    lines, headers = 0, _OURS if _BEGIN in patch else _UNIFIED
    for line in patch.splitlines():
        header = next((one for one in headers if line.startswith(one)), None)
        if header is not None:
            if name := _named(line.removeprefix(header), header):
                files[name] = None
        elif line.startswith(("+", "-")):
            lines += 1
    return tuple(files), lines


def _named(text: str, header: str) -> str:
    name = text.partition("\t")[0].strip().strip('"')
    if name == "/dev/null" or not name:
        return ""
    return clean_path(_PREFIX.sub("", name) if header in ("+++ ", "--- ") else name)


def _told_lines(details: Mapping[str, JSON], otherwise: int) -> int:
    added, removed = details.get("lines_added"), details.get("lines_removed")
    if isinstance(added, int) and isinstance(removed, int):
        return max(0, added) + max(0, removed)
    lines = details.get("lines")
    return lines if isinstance(lines, int) and lines >= 0 else otherwise


def _size(result: ToolResult) -> int:
    size = 0
    for block in result.blocks:
        text = block.data if isinstance(block, ImageBlock) else block.text
        size += _bytes(text)
    return size


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
