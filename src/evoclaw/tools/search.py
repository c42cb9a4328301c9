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

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind, TextBlock
from evoclaw.core.ops import FileOps, FileStat
from evoclaw.tools.define import tool
from evoclaw.tools.file_search import UNBOUNDED, FileMatches, GrepQuery, search_file
from evoclaw.tools.gitignore import GitignoreMatcher, walk_unignored
from evoclaw.tools.patterns import ANY_FOLDERS, Regex, glob_to_regex, required_literal
from evoclaw.tools.tree_search import (
    GrepOutput,
    NameMatch,
    NameQuery,
    SearchBudget,
    TreeScanner,
    find_lines,
    find_names,
    literal_ends,
    relative_path,
)

MAX_PATTERN_CHARS = 4_096
DEFAULT_TIMEOUT_MS = 5_000
MAX_PARALLEL_FILES = 8
"""Files searched concurrently, when they are not on this machine."""
GLOB_CHARACTERS = "*?[{\\"


@tool("file_read", timeout=5, max_timeout=30, effect="read", resources=("path",))
async def glob(
    ops: FileOps,
    pattern: str,
    path: str = ".",
    order: Literal["path", "newest"] = "path",
    folders: bool = False,
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 500,
    timeout_ms: Annotated[int, Meta(ge=1)] = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    """Find files by name, such as `*.py`, `src/**/*.{ts,tsx}` or `./*` (one folder only).

    Files that .gitignore excludes are not found. A pattern without a slash matches at any depth.

    Args:
        ops: The machine's files.
        pattern: `*` and `?` within a name, `**` across folders, `[a-z]`, `{a,b}`.
        path: The folder to look in, relative to the workspace.
        order: By path, or the last changed first.
        folders: List folders too, with a slash at the end.
        limit: How many to list at most.
        timeout_ms: How many milliseconds it may take, 30000 at most.
    """
    fixed, rest = _split_fixed_prefix(pattern)
    regex = _glob_regex(rest)
    start = posixpath.normpath(posixpath.join((await ops.stat(path)).path, fixed))
    budget = SearchBudget(timeout_ms)
    max_results = limit if order == "path" else UNBOUNDED
    head, tail = literal_ends(rest)
    query = NameQuery(regex, start, folders, max_results, order == "newest", head, tail)
    find = find_names if isinstance(ops, TreeScanner) else _walk_names
    found = await find(cast("Any", ops), query, budget)
    more = len(found) > limit
    if order == "newest":
        found = heapq.nlargest(limit, found, key=lambda match: match.modified_at)
    lines = [match.path for match in found[:limit]]
    note = f"more than {limit} match: make the pattern narrower" if more else budget.stopped
    return _list_output(lines, note, f"No file matches '{pattern}'; .gitignore is respected.")


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
    timeout_ms: Annotated[int, Meta(ge=1)] = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    r"""Search file contents for a regular expression (RE2 syntax), line by line.

    Files that .gitignore excludes, and files that are not text, are not searched.

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
    budget = SearchBudget(timeout_ms)
    max_lines = limit if mode == "content" else UNBOUNDED
    literal = b"" if ignore_case else _encoded(required_literal(pattern))
    is_literal = literal == _encoded(pattern)
    query = GrepQuery(regex, context, max_lines, mode == "files", literal, is_literal)
    output = GrepOutput(mode, limit)
    about = await ops.stat(path)
    if about.kind == "dir" and isinstance(ops, TreeScanner):
        await find_lines(ops, about.path, wanted, query, output, budget)
    else:
        await _walk_lines(ops, about, wanted, query, output, budget)
    if not output.remaining:
        budget.stopped = budget.stopped or f"the limit of {limit} was reached"
    hint = "Try another pattern, ignore_case, or another path; .gitignore is respected."
    return _list_output(output.lines, budget.stopped, f"Nothing matches '{pattern}'. {hint}")


async def _walk_names(ops: FileOps, query: NameQuery, budget: SearchBudget) -> list[NameMatch]:
    """Like `find_names`, entry by entry, for files that are not on this machine."""
    found: list[NameMatch] = []
    async with aclosing(_entries(ops, query.start, budget)) as entries:
        async for entry in entries:
            wanted = entry.kind in ("file", "link") or (entry.kind == "dir" and query.folders)
            above, slash, name = entry.path.rpartition("/")
            if wanted and query.matches(above + slash, name):
                found.append(NameMatch(entry.path + "/" * (entry.kind == "dir"), entry.mtime))
                if len(found) > query.max_results:
                    break
    return found


async def _walk_lines(
    ops: FileOps,
    about: FileStat,
    wanted: Regex | None,
    query: GrepQuery,
    gathered: GrepOutput,
    budget: SearchBudget,
) -> None:
    """Like `find_lines`, several files concurrently, for files that are not on this machine."""
    async with aclosing(_matches(ops, _names(ops, about, wanted, budget), query, budget)) as found:
        async for matches in found:
            if query.max_lines < UNBOUNDED and matches.count > gathered.remaining:
                bounded = replace(query, max_lines=gathered.remaining)
                matches = await _search(ops, matches.path, bounded, budget)
            gathered.add(matches)
            if not gathered.remaining:
                return


async def _matches(
    ops: FileOps, names: AsyncGenerator[str], query: GrepQuery, budget: SearchBudget
) -> AsyncGenerator[FileMatches]:
    """Search several files concurrently, to hide network latency; yield in order."""
    async with aclosing(names):
        more = True
        while more:
            batch: list[str] = []
            async for name in names:
                batch.append(name)
                if len(batch) == MAX_PARALLEL_FILES:
                    break
            more = len(batch) == MAX_PARALLEL_FILES
            tasks = (_search(ops, name, query, budget) for name in batch)
            for found in await asyncio.gather(*tasks):
                if found.count:
                    yield found


async def _search(ops: FileOps, path: str, query: GrepQuery, budget: SearchBudget) -> FileMatches:
    try:
        return await search_file(ops, path, query, budget.is_expired)
    except ToolFailure:
        # Deleted meanwhile or not readable; the other files can still be searched.
        return FileMatches(path)


async def _names(
    ops: FileOps, about: FileStat, wanted: Regex | None, budget: SearchBudget
) -> AsyncGenerator[str]:
    if about.kind != "dir":
        yield about.path
        return
    async with aclosing(_entries(ops, about.path, budget)) as entries:
        async for entry in entries:
            inside = relative_path(entry.path, about.path)
            if entry.kind == "file" and (wanted is None or wanted.matches_all(inside)):
                yield entry.path


async def _entries(ops: FileOps, start: str, budget: SearchBudget) -> AsyncGenerator[FileStat]:
    """The unignored entries below a folder within the budget; none if it does not exist."""
    async with aclosing(walk_unignored(ops, start, GitignoreMatcher(ops, start))) as entries:
        try:
            async for entry in entries:
                if not budget.spend():
                    return
                if entry is not None:
                    yield entry
        except ToolFailure as failure:
            if failure.kind is not ErrorKind.NOT_FOUND:
                raise


def _split_fixed_prefix(pattern: str) -> tuple[str, str]:
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
    while fixed < len(parts) - 1 and parts[fixed] and not set(parts[fixed]) & set(GLOB_CHARACTERS):
        fixed += 1
    return posixpath.join(".", *parts[:fixed]), "./" + "/".join(parts[fixed:])


def _glob_regex(pattern: str) -> Regex:
    _check_pattern(pattern)
    anchored = "/" in pattern
    source = glob_to_regex(_encoded(pattern.removeprefix("./")), braces=True)
    if source is None:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"The pattern '{pattern}' cannot match anything: a `[` is not closed, or it "
            "ends in `\\`.",
        )
    return Regex(source if anchored else ANY_FOLDERS + source)


def _check_pattern(pattern: str) -> None:
    if not pattern or len(pattern) > MAX_PATTERN_CHARS:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"The pattern must have 1 to {MAX_PATTERN_CHARS} characters.",
        )


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _list_output(lines: list[str], note: str, nothing: str) -> ToolOutput:
    text = "\n".join(lines) if lines else nothing
    if note:
        text += f"\n\n[Not everything was searched or shown: {note}.]"
    return ToolOutput((TextBlock(text),), {"found": len(lines), "complete": not note})
