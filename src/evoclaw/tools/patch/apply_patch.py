"""The tool `apply_patch`: applies all changes of a patch, or rolls all of them back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.core.ops import FileOps
from evoclaw.tools.define import tool
from evoclaw.tools.patch.begin_patch import BEGIN, parse_begin_patch
from evoclaw.tools.patch.hunk_location import HunkSearchBudget, PatchedFile, apply_hunks
from evoclaw.tools.patch.hunks import Action, FileChange, invalid_patch, quote
from evoclaw.tools.patch.unified import parse_unified_diff

MAX_PATCH_CHARS = 2 << 20
MAX_FILES = 200
CRLF_HEADER = re.compile(r"^(?:\*\*\* Begin Patch|--- [^\n]*|diff --git [^\n]*)\r$", re.MULTILINE)
"""Header lines: if one ends with a carriage return, all lines of the patch do."""


MAX_FILE_BYTES = 10 << 20
MAX_TOTAL_BYTES = 64 << 20
"""Of all files together: the old contents stay in memory until the last file is written."""
MAX_LISTED_FILES = 50
"""In the result."""
ACTION_LETTERS = {Action.ADD: "A", Action.UPDATE: "M", Action.MOVE: "R", Action.DELETE: "D"}


@tool("file_write", timeout=5, max_timeout=30, effect="write", acts=False)
async def apply_patch(ops: FileOps, patch: str, dry_run: bool = False) -> ToolOutput:
    """Change several places or files at once, all or nothing. Read the files first.

    Takes a unified diff (as git diff prints it; correct counts in each @@ line), or this form. An
    example that changes one line of lamp.py and adds a file:
    *** Begin Patch
    *** Update File: lamp.py
    @@ def switch():
     power = 40
    -color = "red"
    +color = "green"
    *** Add File: docs/lamp.txt
    +The lamp is green.
    *** End Patch
    Lines with a space stay. The text after @@, which may be left out, is a line above the change.
    `*** Delete File: path` deletes, and `*** Move to: path` below an Update line renames.

    Args:
        ops: The machine's files.
        patch: The patch. Paths are relative to the workspace.
        dry_run: Only say what would change.
    """
    changes = await asyncio.to_thread(parse_patch, patch)
    steps = await _plan(ops, changes)
    if not dry_run:
        await _apply(ops, steps)
    return _answer(steps, dry_run)


@dataclass(slots=True)
class _FileStep:
    """The content of a file before and after; None: the file does not exist."""

    change: FileChange
    before: bytes | None
    after: bytes | None
    notes: list[str] = field(default_factory=list[str])

    @property
    def target_path(self) -> str:
        return self.change.target or self.change.path


async def _plan(ops: FileOps, changes: Sequence[FileChange]) -> list[_FileStep]:
    budget = HunkSearchBudget()
    total_bytes = 0
    steps: list[_FileStep] = []
    for change in changes:
        step = await _step(ops, change, budget)
        total_bytes += len(step.before or b"") + len(step.after or b"")
        if total_bytes > MAX_TOTAL_BYTES:
            raise ToolFailure(
                ErrorKind.TOO_LARGE,
                "The files of the patch are too large to be changed together. Nothing was "
                "written. Make several smaller patches.",
            )
        steps.append(step)
    return steps


async def _step(ops: FileOps, change: FileChange, budget: HunkSearchBudget) -> _FileStep:
    name = quote(change.path)
    notes = ["its file mode was not changed"] if change.changes_mode else []
    if change.action is Action.ADD:
        await _refuse_existing(ops, change.path)
        return _FileStep(change, None, b"".join(hunk.new for hunk in change.hunks), notes)
    before = await _content(ops, change)
    if change.action is Action.DELETE and not change.hunks_cover_file:
        return _FileStep(change, before, None)
    if change.target:
        await _refuse_existing(ops, change.target)
        notes.append("it has the file mode of a new file")
    done = PatchedFile(before)
    if change.hunks:
        done = await asyncio.to_thread(apply_hunks, before, change.hunks, name, budget)
    if change.action is Action.DELETE:
        if done.data:
            raise invalid_patch(
                f"{name} is to be deleted, but the patch does not have all its lines. Read the "
                "file again, or use '*** Delete File: '."
            )
        return _FileStep(change, before, None)
    if done.data == before and not change.target:
        raise invalid_patch(f"The patch changes nothing in {name}.")
    return _FileStep(change, before, done.data, notes + done.moved)


async def _refuse_existing(ops: FileOps, path: str) -> None:
    """Refuse to create a file that exists."""
    try:
        about = await ops.stat(path)
    except ToolFailure as problem:
        if problem.kind is ErrorKind.NOT_FOUND:
            return
        raise
    what = "a folder" if about.kind == "dir" else "a file"
    raise invalid_patch(
        f"{quote(path)} is to be created, but {what} of that name exists. Read it, and update it "
        "instead of adding it."
    )


async def _content(ops: FileOps, change: FileChange) -> bytes:
    path = change.path
    try:
        about = await ops.stat(path)
    except ToolFailure as problem:
        if problem.kind is not ErrorKind.NOT_FOUND or change.action is not Action.UPDATE:
            raise
        raise ToolFailure(
            problem.kind,
            f"{problem.message} A patch creates a file with '*** Add File: ' and '+' lines, or "
            "from '--- /dev/null'.",
        ) from None
    if about.size > MAX_FILE_BYTES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"{quote(path)} has {about.size:,} bytes, too many to patch. Nothing was written. "
            "Use a program for that.",
        )
    return await ops.read(path)


async def _apply(ops: FileOps, steps: Sequence[_FileStep]) -> None:
    """Apply all steps or roll them back, also when the call is cancelled meanwhile."""
    writing = _Transaction(ops)
    task = asyncio.create_task(writing.run(steps))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        writing.cancelled = True
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            # The patch was complete already, but the caller takes a cancelled call as not done.
            await asyncio.wait([asyncio.create_task(writing.roll_back())])
        raise


class _Transaction:
    """Writes and removes files, and keeps the old contents for a rollback."""

    def __init__(self, ops: FileOps) -> None:
        self._ops = ops
        self.cancelled = False
        self._done: list[tuple[str, bytes | None]] = []
        """Each changed path, with its old content."""

    async def run(self, steps: Sequence[_FileStep]) -> None:
        try:
            for path, before, after in _in_order(steps):
                await self._change(path, before, after)
        except ToolFailure as problem:
            failures = await self.roll_back()
            raise _rolled_back_failure(problem, len(self._done), failures) from None
        except BaseException:
            # An unexpected error of `FileOps`: roll back all the same.
            await self.roll_back()
            raise

    async def _change(self, path: str, before: bytes | None, after: bytes | None) -> None:
        if self.cancelled:
            raise ToolFailure(ErrorKind.CANCELLED, "The call was cancelled.")
        if after is None:
            await self._ops.remove(path)
        else:
            await self._ops.write(path, after)
        self._done.append((path, before))

    async def roll_back(self) -> list[str]:
        """Undo the changes in reverse order; returns the paths that could not be restored."""
        failures: list[str] = []
        for path, before in reversed(self._done):
            try:
                if before is None:
                    await self._ops.remove(path)
                else:
                    await self._ops.write(path, before)
            except ToolFailure as problem:
                failures.append(f"{quote(path)} ({problem.message})")
        return failures


def _in_order(steps: Sequence[_FileStep]) -> list[tuple[str, bytes | None, bytes | None]]:
    """Writes before removals: no content is lost if the machine crashes in between."""
    writes: list[tuple[str, bytes | None, bytes | None]] = []
    removals: list[tuple[str, bytes | None, bytes | None]] = []
    for step in steps:
        if step.after is not None:
            moved = bool(step.change.target)
            writes.append((step.target_path, None if moved else step.before, step.after))
        if step.after is None or step.change.target:
            removals.append((step.change.path, step.before, None))
    return writes + removals


def _rolled_back_failure(problem: ToolFailure, done: int, failures: Sequence[str]) -> ToolFailure:
    if failures:
        text = (
            f"{problem.message} The patch was aborted, and these files could NOT be restored: "
            f"{'; '.join(failures[:MAX_LISTED_FILES])}. Tell the user."
        )
        return ToolFailure(ErrorKind.EXECUTION_FAILED, text, not_restored=list(failures))
    back = f" The {done} files written so far were restored." if done else ""
    return ToolFailure(problem.kind, f"{problem.message} Nothing of the patch was kept.{back}")


def _answer(steps: Sequence[_FileStep], dry_run: bool) -> ToolOutput:
    added = sum(step.change.added for step in steps)
    removed = sum(_removed_lines(step) for step in steps)
    count = f"{len(steps)} file{'s' if len(steps) > 1 else ''}, +{added} -{removed}"
    preview = f"The patch fits and would change {count}. Nothing was written (dry run)."
    lines = [preview if dry_run else f"Patched {count}."]
    lines += [_line(step) for step in steps[:MAX_LISTED_FILES]]
    if len(steps) > MAX_LISTED_FILES:
        lines.append(f"… and {len(steps) - MAX_LISTED_FILES} more")
    files: list[JSON] = [_facts(step) for step in steps]
    details: dict[str, JSON] = {
        "dry_run": dry_run,
        "files": files,
        "lines_added": added,
        "lines_removed": removed,
    }
    return ToolOutput((TextBlock("\n".join(lines)),), details)


def _removed_lines(step: _FileStep) -> int:
    """The number of lines that a step removes."""
    if step.change.action is not Action.DELETE or step.before is None:
        return step.change.removed
    return step.before.count(b"\n") + (not step.before.endswith(b"\n") and step.before != b"")


def _line(step: _FileStep) -> str:
    change = step.change
    name = f"{change.path} -> {change.target}" if change.target else change.path
    notes = f" ({'; '.join(step.notes)})" if step.notes else ""
    return f"{ACTION_LETTERS[change.action]} {name} +{change.added} -{_removed_lines(step)}{notes}"


def _facts(step: _FileStep) -> dict[str, JSON]:
    change = step.change
    facts: dict[str, JSON] = {
        "path": change.path,
        "action": change.action.value,
        "lines_added": change.added,
        "lines_removed": _removed_lines(step),
    }
    return facts | ({"moved_to": change.target} if change.target else {})


def parse_patch(text: str) -> list[FileChange]:
    """The changes of a patch in its order; `ToolFailure` if it is not valid or too large."""
    if len(text) > MAX_PATCH_CHARS:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch has {len(text):,} characters, more than {MAX_PATCH_CHARS:,}. Nothing was "
            "written. Make several smaller ones, or use write.",
        )
    if "\0" in text:
        raise invalid_patch("The patch has a NUL character. Only text can be patched.")
    if CRLF_HEADER.search(text):
        text = text.replace("\r\n", "\n")
    try:
        lines = text.encode().split(b"\n")
    except UnicodeEncodeError:
        raise invalid_patch("The patch is not valid text: it has lone surrogates.") from None
    if not lines[-1]:
        del lines[-1]
    start = next((at for at, line in enumerate(lines) if line.strip()), 0)
    fenced = bool(lines) and lines[start].strip() == BEGIN
    changes = parse_begin_patch(lines[start:]) if fenced else parse_unified_diff(lines)
    _check(changes)
    return changes


def _check(changes: list[FileChange]) -> None:
    if not changes:
        raise invalid_patch(
            "There is no change in the patch. Give a unified diff, with '--- a/path', "
            "'+++ b/path' and '@@ -line,count +line,count @@' lines, or the form from "
            "'*** Begin Patch' to '*** End Patch'. If the patch is in a file, read it and give its "
            "text."
        )
    if len(changes) > MAX_FILES:
        raise ToolFailure(
            ErrorKind.TOO_LARGE,
            f"The patch changes {len(changes)} files, more than {MAX_FILES}. Nothing was "
            "written. Make several smaller ones.",
        )
    seen: set[str] = set()
    for change in changes:
        for path in {change.path, change.target} - {""}:
            if path in seen:
                raise invalid_patch(
                    f"{quote(path)} is in the patch twice. Put all changes of a file into "
                    "one section, or make two patches."
                )
            seen.add(path)
        if change.path == change.target:
            raise invalid_patch(f"{quote(change.path)} is moved to its own name.")
