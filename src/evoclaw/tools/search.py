"""The tools `glob` and `grep`."""

from __future__ import annotations

import asyncio
import heapq
import posixpath
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from evoclaw.core.bound import Output
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock
from evoclaw.core.ops import FileOps, FileStat
from evoclaw.tools.define import tool
from evoclaw.tools.finding import (
    Budget,
    LocalTree,
    Name,
    Names,
    ends_of,
    find_lines,
    find_names,
    relative,
)
from evoclaw.tools.ignore import Ignored, visible
from evoclaw.tools.literals import required_text
from evoclaw.tools.matches import UNBOUNDED, Found, Grep, search_file
from evoclaw.tools.patterns import ANY_FOLDERS, Regex, glob_source
from evoclaw.tools.surveying import Surveyable

LONGEST_PATTERN = 4_096
DEFAULT_MS = 5_000
SIDE_BY_SIDE = 8
"""Files searched concurrently, when they are not on this machine."""
MAGIC = "*?[{\\"


@tool("file_read", timeout=5, max_timeout=30, effect="read", resources=("path",))
async def glob(
    ops: FileOps,
    pattern: str,
    path: str = ".",
    order: Literal["path", "newest"] = "path",
    folders: bool = False,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 500,
    timeout_ms: Annotated[int, Meta(ge=1)] = DEFAULT_MS,
) -> Output:
    """Find files by name, such as `*.py`, `src/**/*.{ts,tsx}` or `./*` (one folder only).

    What .gitignore leaves out is not found. A pattern without a slash is looked for at any depth.

    Args:
        ops: The machine's files.
        pattern: `*` and `?` within a name, `**` across folders, `[a-z]`, `{a,b}`.
        path: The folder to look in, relative to the workspace.
        order: By path, or the last changed first.
        folders: List folders too, with a slash at the end.
        limit: How many to list at most.
        timeout_ms: How many milliseconds it may take, 30000 at most.
    """
    fixed, rest = _split(pattern)
    regex = _glob_regex(rest)
    start = posixpath.normpath(posixpath.join((await ops.stat(path)).path, fixed))
    budget = Budget(timeout_ms)
    max_results = limit if order == "path" else UNBOUNDED
    head, tail = ends_of(rest)
    query = Names(regex, start, folders, max_results, order == "newest", head, tail)
    find = find_names if isinstance(ops, Surveyable) else _walk_names
    found = await find(cast("Any", ops), query, budget)
    more = len(found) > limit
    if order == "newest":
        found = heapq.nlargest(limit, found, key=lambda match: match.changed)
    lines = [match.shown for match in found[:limit]]
    note = f"more than {limit} match: make the pattern narrower" if more else budget.stopped
    return _listed(lines, note, f"No file matches '{pattern}'; .gitignore is respected.")


@tool("file_read", timeout=5, max_timeout=30, effect="read", resources=("path",))
async def grep(
    ops: FileOps,
    pattern: str,
    path: str = ".",
    include: str = "",
    mode: Literal["content", "files", "count"] = "content",
    context: Annotated[int, Meta(ge=0, le=20)] = 0,
    ignore_case: bool = False,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100,
    timeout_ms: Annotated[int, Meta(ge=1)] = DEFAULT_MS,
) -> Output:
    r"""Search file contents for a regular expression (RE2 syntax), line by line.

    What .gitignore leaves out and files that are not text are not searched.

    Args:
        ops: The machine's files.
        pattern: Such as `def \w+`; put a backslash before special characters to mean them.
        path: The file or folder to search, relative to the workspace.
        include: Search only files whose name matches this glob, such as `*.py`.
        mode: Show the lines found, only the files, or how many lines each file has.
        context: How many lines to show around each line found.
        ignore_case: Whether `a` also finds `A`.
        limit: How many lines (or files) to show at most.
        timeout_ms: How many milliseconds it may take, 30000 at most.
    """
    _check_pattern(pattern)
    regex = Regex(b"(?m)" + _encoded(pattern), text=True, ignore_case=ignore_case)
    wanted = _glob_regex(include) if include else None
    budget = Budget(timeout_ms)
    max_lines = limit if mode == "content" else UNBOUNDED
    literal = b"" if ignore_case else _encoded(required_text(pattern))
    is_literal = literal == _encoded(pattern)
    query = Grep(regex, context, max_lines, mode == "files", literal, is_literal)
    output = _Gathered(mode, limit)
    about = await ops.stat(path)
    if about.kind == "dir" and isinstance(ops, Surveyable):
        tree = cast("LocalTree", ops)
        await find_lines(tree, about.path, wanted, query, output, budget)
    else:
        await _walk_lines(ops, about, wanted, query, output, budget)
    if not output.room:
        budget.stopped = budget.stopped or f"the limit of {limit} was met"
    hint = "Try another pattern, ignore_case, or another path; .gitignore is respected."
    return _listed(output.lines, budget.stopped, f"Nothing matches '{pattern}'. {hint}")


class _Gathered:
    """Collects matches as lines for the model."""

    def __init__(self, mode: str, limit: int) -> None:
        self._mode, self.room = mode, limit
        self.lines: list[str] = []

    def add(self, found: Found) -> None:
        self.room -= found.count if self._mode == "content" else 1
        if self._mode == "files":
            self.lines.append(found.path)
        elif self._mode == "count":
            self.lines.append(f"{found.path}:{found.count}")
        else:
            self.lines += ["--"] if self.lines and found.spaced else []
            self.lines += found.lines


async def _walk_names(ops: FileOps, asked: Names, budget: Budget) -> list[Name]:
    """Like `find_names`, entry by entry, for files that are not on this machine."""
    found: list[Name] = []
    async with aclosing(_entries(ops, asked.start, budget)) as entries:
        async for entry in entries:
            wanted = entry.kind in ("file", "link") or (entry.kind == "dir" and asked.folders)
            above, slash, name = entry.path.rpartition("/")
            if wanted and asked.covers(above + slash, name):
                found.append(Name(entry.path + "/" * (entry.kind == "dir"), entry.mtime))
                if len(found) > asked.most:
                    break
    return found


async def _walk_lines(
    ops: FileOps,
    about: FileStat,
    wanted: Regex | None,
    asked: Grep,
    gathered: _Gathered,
    budget: Budget,
) -> None:
    """Like `find_lines`, several files concurrently, for files that are not on this machine."""
    async with aclosing(_matches(ops, _names(ops, about, wanted, budget), asked, budget)) as found:
        async for matches in found:
            if asked.most < UNBOUNDED and matches.count > gathered.room:
                bounded = replace(asked, most=gathered.room)
                matches = await _search(ops, matches.path, bounded, budget)
            gathered.add(matches)
            if not gathered.room:
                return


async def _matches(
    ops: FileOps, names: AsyncGenerator[str], asked: Grep, budget: Budget
) -> AsyncGenerator[Found]:
    """Search several files concurrently, to hide network latency; yield in order."""
    async with aclosing(names):
        more = True
        while more:
            batch: list[str] = []
            async for name in names:
                batch.append(name)
                if len(batch) == SIDE_BY_SIDE:
                    break
            more = len(batch) == SIDE_BY_SIDE
            tasks = (_search(ops, name, asked, budget) for name in batch)
            for found in await asyncio.gather(*tasks):
                if found.count:
                    yield found


async def _search(ops: FileOps, path: str, asked: Grep, budget: Budget) -> Found:
    try:
        return await search_file(ops, path, asked, budget.late)
    except ToolFailure:
        # Deleted meanwhile or not readable; the other files can still be searched.
        return Found(path)


async def _names(
    ops: FileOps, about: FileStat, wanted: Regex | None, budget: Budget
) -> AsyncGenerator[str]:
    if about.kind != "dir":
        yield about.path
        return
    async with aclosing(_entries(ops, about.path, budget)) as entries:
        async for entry in entries:
            inside = relative(entry.path, about.path)
            if entry.kind == "file" and (wanted is None or wanted.covers(inside)):
                yield entry.path


async def _entries(ops: FileOps, start: str, budget: Budget) -> AsyncGenerator[FileStat]:
    """The unignored entries below a folder within the budget; none if it does not exist."""
    async with aclosing(visible(ops, start, Ignored(ops, start))) as entries:
        try:
            async for entry in entries:
                if not budget.spend():
                    return
                if entry is not None:
                    yield entry
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.NOT_FOUND:
                raise


def _split(pattern: str) -> tuple[str, str]:
    """Split off the fixed prefix of a pattern: the search starts in that folder."""
    _check_pattern(pattern)
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            "A pattern is relative and stays below `path`. Put the folder into `path`.",
        )
    parts = [part for part in pattern.split("/") if part != "."]
    if "/" not in pattern:
        return ".", pattern
    fixed = 0
    while fixed < len(parts) - 1 and parts[fixed] and not set(parts[fixed]) & set(MAGIC):
        fixed += 1
    return posixpath.join(".", *parts[:fixed]), "./" + "/".join(parts[fixed:])


def _glob_regex(pattern: str) -> Regex:
    _check_pattern(pattern)
    anchored = "/" in pattern
    source = glob_source(_encoded(pattern.removeprefix("./")), braces=True)
    if source is None:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"The pattern '{pattern}' can match nothing: a `[` is not closed, or it ends in `\\`.",
        )
    return Regex(source if anchored else ANY_FOLDERS + source)


def _check_pattern(pattern: str) -> None:
    if not pattern or len(pattern) > LONGEST_PATTERN:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"The pattern must have 1 to {LONGEST_PATTERN} characters.",
        )


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _listed(lines: list[str], note: str, nothing: str) -> Output:
    text = "\n".join(lines) if lines else nothing
    if note:
        text += f"\n\n[Not everything was searched or shown: {note}.]"
    return Output((TextBlock(text),), {"found": len(lines), "complete": not note})
