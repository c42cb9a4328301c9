"""What a call will use at most, by its arguments, and what it did use, by its result."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from msgspec import Struct

from evoclaw.core.ledgers import ACTION_PREFIX, BYTES, CALLS, DOLLARS, LINES, TOKENS
from evoclaw.core.messages import JSON, ErrorKind, ImageBlock, ToolResult, is_array, is_object
from evoclaw.core.reported_usage import reported_usage
from evoclaw.core.tools import ANY_RESOURCE, Call, Effect
from evoclaw.governance.budget.cost_estimator import to_microdollars
from evoclaw.governance.budget.settings import ActionLimit

RESERVED_RESULT_BYTES = 64_000
"""Bytes reserved for a result before its size is known."""
PROMPT_TOOL = "edge_call"
"""The tool whose `query` the models of edges answer."""
RESERVED_PROMPT_TOKENS = 4_000
"""Tokens reserved for an answer of an edge's model; they count if the edge does not report any."""
NO_CHANGE_ERRORS = frozenset(
    {
        ErrorKind.INVALID_PARAMS,
        ErrorKind.NOT_FOUND,
        ErrorKind.PERMISSION_DENIED,
        ErrorKind.QUEUE_FULL,
        ErrorKind.AGENT_OFFLINE,
        ErrorKind.SANDBOX_UNAVAILABLE,
    }
)
"""Errors after which no file was changed."""
_PATCH_START = "*** Begin Patch"
_PATCH_HEADERS = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_UNIFIED_HEADERS = ("+++ ", "--- ", "rename from ", "rename to ")
_PREFIX = re.compile(r"^[ab]/")
_PATCH = "patch"


class CallUsage(Struct, frozen=True, gc=False):
    """The most that a call uses."""

    amounts: dict[str, int]
    files: tuple[str, ...] = ()
    """The files that it changes."""


ActionMatcher = Callable[[Call], dict[str, int]]


def estimate_usage(call: Call) -> CallUsage:
    """Estimate a call by its arguments: the text in them is the most it can write."""
    if not writes_files(call):
        return CallUsage({CALLS: 1, BYTES: RESERVED_RESULT_BYTES, **_prompt_tokens(call)})
    lines, size = 0, RESERVED_RESULT_BYTES
    for text in _texts(call):
        lines += _lines(text)
        size += _bytes(text)
    patch = call.arguments.get(_PATCH)
    if isinstance(patch, str):
        if call.arguments.get("dry_run") is True:
            return CallUsage({CALLS: 1, BYTES: RESERVED_RESULT_BYTES})
        files, lines = _read_patch(patch)
        return CallUsage({CALLS: 1, BYTES: size, LINES: lines}, files)
    return CallUsage({CALLS: 1, BYTES: size, LINES: lines}, named_files(call))


def _prompt_tokens(call: Call) -> dict[str, int]:
    """The tokens of a query to edges, whose models answer it."""
    if call.tool.name != PROMPT_TOOL or not call.arguments.get("query"):
        return {}
    edges: JSON = call.arguments.get("agent_id")
    return {TOKENS: RESERVED_PROMPT_TOKENS * (len(edges) if is_array(edges) else 1)}


def writes_files(call: Call) -> bool:
    """Whether the call writes files that its arguments name."""
    tool = call.tool
    if tool.effect is not Effect.WRITE or "file_write" not in tool.permissions:
        return False
    return ANY_RESOURCE not in tool.resources or isinstance(call.arguments.get(_PATCH), str)


def named_files(call: Call) -> tuple[str, ...]:
    """The files that a call names in its resource arguments, or in its patch."""
    patch = call.arguments.get(_PATCH)
    if isinstance(patch, str) and writes_files(call):
        return _read_patch(patch)[0]
    given = [call.arguments.get(name) for name in call.tool.resources]
    return tuple(clean_path(path) for path in given if isinstance(path, str))


def file_id(owner: str, path: str) -> str:
    """The reservation id of a file in an account: the same file is counted once."""
    return f"{owner}.file.{hashlib.sha256(path.encode(errors='replace')).hexdigest()}"


def clean_path(path: str) -> str:
    """A path in its normal form."""
    path = path.strip()
    return posixpath.normpath(path) if path else "."


def actual_usage(call: CallUsage, result: ToolResult) -> tuple[dict[str, int], bool]:
    """What a finished call used, and whether it may have changed files."""
    real = dict(call.amounts)
    real[BYTES] = real.get(BYTES, RESERVED_RESULT_BYTES) - RESERVED_RESULT_BYTES + _size(result)
    if (used := reported_usage(result.details)) is not None:
        real[TOKENS] = used[0].input + used[0].output
        real[DOLLARS] = to_microdollars(used[1] or 0.0)
    if result.error in NO_CHANGE_ERRORS:
        if used is None:
            real.pop(TOKENS, None)
        if LINES in real:
            real[LINES] = 0
        return real, False
    if result.error is None and LINES in real:
        real[LINES] = _reported_lines(result.details, real[LINES])
    return real, True


def action_matcher(actions: Mapping[str, ActionLimit]) -> ActionMatcher:
    """Return a function that counts the physical actions of a call, by kind."""
    if not actions:
        return lambda call: {}
    rules = [(ACTION_PREFIX + name, limit) for name, limit in actions.items()]

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
    counts = [
        value for value in _values_at(arguments, rule.times) if isinstance(value, int | float)
    ]
    return max(
        [1, *[int(count) + (count != int(count)) for count in counts if abs(count) < 1 << 53]]
    )


def _fits(wanted: JSON, arguments: Mapping[str, JSON], key: str) -> bool:
    """Whether an argument is one of the wanted values, or contains it; in doubt it matches."""
    choices = wanted if is_array(wanted) else [wanted]
    return any(_same(choice, given) for given in _values_at(arguments, key) for choice in choices)


def _same(wanted: JSON, given: JSON) -> bool:
    if isinstance(wanted, str):
        text = given if isinstance(given, str) else _plain(given)
        return fnmatchcase(text.strip().casefold(), wanted.strip().casefold())
    if isinstance(given, str) or isinstance(wanted, bool) != isinstance(given, bool):
        return _plain(given).strip().casefold() == _plain(wanted).casefold()
    return wanted == given


def _plain(value: JSON) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _values_at(arguments: Mapping[str, JSON], key: str) -> Iterator[JSON]:
    """The values at a key such as `a.b`; of an array, each item."""
    found: list[JSON] = [arguments]
    for part in key.split("."):
        inner = [node[part] for node in found if is_object(node) and part in node]
        found = [item for node in inner for item in (node if is_array(node) else [node])]
    yield from found


def _texts(call: Call) -> Iterator[str]:
    for name, value in call.arguments.items():
        if isinstance(value, str) and name not in call.tool.resources:
            yield value


def _lines(text: str) -> int:
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def _read_patch(patch: str) -> tuple[tuple[str, ...], int]:
    """The files that a patch names, and the number of lines it adds and removes."""
    files: dict[str, None] = {}
    lines, headers = 0, _PATCH_HEADERS if _PATCH_START in patch else _UNIFIED_HEADERS
    for line in patch.splitlines():
        header = next((prefix for prefix in headers if line.startswith(prefix)), None)
        if header is not None:
            if name := _path_in_header(line.removeprefix(header), header):
                files[name] = None
        elif line.startswith(("+", "-")):
            lines += 1
    return tuple(files), lines


def _path_in_header(text: str, header: str) -> str:
    name = text.partition("\t")[0].strip().strip('"')
    if name == "/dev/null" or not name:
        return ""
    return clean_path(_PREFIX.sub("", name) if header in ("+++ ", "--- ") else name)


def _reported_lines(details: Mapping[str, JSON], otherwise: int) -> int:
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
