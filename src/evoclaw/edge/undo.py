"""Undo: keeps what calls change in files, and the tool that takes the changes back.

The changes of a call are stored beside the files, or for SSH hosts on the machine of the run, by
the id of the call; the result only names the files. So the tool takes back nothing but what calls
did, whatever its arguments say.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from evoclaw.core.bound_tools import BoundTool, ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.core.pipeline import AroundStep, Execution
from evoclaw.core.tools import UNDO_TOOL
from evoclaw.executors.tracked_files import (
    ChangeLog,
    FileContent,
    RestorableFiles,
    TrackedChange,
    current_change_log,
    current_content,
)
from evoclaw.store.calls.before_images import BeforeImages
from evoclaw.tools.define import tool

CHANGES_KEY = "changes"
"""The detail of a result that names the files which the call changed."""
MAX_NAMED_FILES = 500
"""Files that one result names."""


class CallChanges(Struct, frozen=True, omit_defaults=True):
    """The stored changes of one call."""

    changes: tuple[TrackedChange, ...]
    undone: bool = False
    root: str = ""
    """The folder, or the `ssh://` URL, that the paths are relative to; an edge has one only."""


class KeepBeforeImages(AroundStep):
    """Stores what a call changes in files, so that `undo` can take it back."""

    def __init__(self, images: BeforeImages, root: str = "") -> None:
        self._images, self._root = images, root

    @asynccontextmanager
    async def around(self, execution: Execution) -> AsyncGenerator[None]:
        """Keep the content of each file before the call changes it, and name the files."""
        images = self._images
        log = ChangeLog(images.keep, images.max_file_bytes)
        token = current_change_log.set(log)
        try:
            yield
        finally:
            current_change_log.reset(token)
        result = execution.result
        if result is None:
            return
        # A tool must not supply changes of its own.
        details = {name: of for name, of in result.details.items() if name != CHANGES_KEY}
        call_id, changes = execution.call.request_id, tuple(log.changes)
        stored = msgspec.json.encode(CallChanges(changes, root=self._root))
        if changes and await images.put_call(call_id, stored):
            paths: list[JSON] = list(dict.fromkeys(change.path for change in changes))
            details[CHANGES_KEY] = [{"call": call_id, "paths": paths[:MAX_NAMED_FILES]}]
        execution.result = replace(result, details=details)


class _UndoneFile(Struct, frozen=True):
    """A file with what it held before the first change, and after the last."""

    path: str
    before: FileContent | None
    after: FileContent | None
    interrupted: bool
    """Something else changed it between two of the changes."""


def undo_tool(images: BeforeImages, files: RestorableFiles, root: str = "") -> BoundTool:
    """The tool `undo` over the files below a root, and their before-images."""

    @tool(
        "file_write",
        name=UNDO_TOOL,
        timeout=30,
        max_timeout=120,
        effect="write",
        idempotent=True,
        acts=False,
    )
    async def undo(
        calls: Annotated[list[str], Meta(min_length=1, max_length=1_000)],
        paths: Annotated[list[str], Meta(min_length=1, max_length=MAX_NAMED_FILES)],
    ) -> ToolOutput:
        """Take back what earlier calls changed in files: all of it, or nothing.

        Args:
            calls: The ids of the calls, in the order in which they ran.
            paths: The files that are taken back; all that these calls changed.
        """
        stored = {call_id: await _undoable_changes(images, call_id, root) for call_id in calls}
        changes = [change for found in stored.values() for change in found.changes]
        if surprising := sorted({change.path for change in changes} - set(paths)):
            raise ToolFailure(
                ErrorKind.INVALID_PARAMS,
                f"Nothing was undone: the calls also changed {_named(surprising)}.",
            )
        undone = _summed_up(changes)
        if changed := [file.path for file in undone if not await _is_unchanged(files, file)]:
            raise ToolFailure(
                ErrorKind.CONFLICT,
                f"Nothing was undone: {_named(changed)} changed after the run. Look at "
                f"{'it' if len(changed) == 1 else 'them'}, and restore by hand what you need.",
                changed=list(changed),
            )
        lost = [file for file in undone if not await _take_back(files, images, file)]
        for call_id, found in stored.items():
            await images.put_call(call_id, msgspec.json.encode(replace(found, undone=True)))
        return _answer(undone, lost)

    return undo


async def stored_changes(images: BeforeImages, call_id: str) -> CallChanges | None:
    """The changes of a call; None if they are not kept any more."""
    data = await images.call(call_id)
    return None if data is None else msgspec.json.decode(data, type=CallChanges)


async def _undoable_changes(images: BeforeImages, call_id: str, root: str) -> CallChanges:
    found = await stored_changes(images, call_id)
    if found is None:
        raise ToolFailure(
            ErrorKind.NOT_FOUND,
            "Nothing was undone: what the files held before is not kept any more.",
        )
    if found.root != root:
        raise ToolFailure(
            ErrorKind.CONFLICT, f"Nothing was undone: the changes were made in {found.root}."
        )
    if found.undone:
        raise ToolFailure(
            ErrorKind.CONFLICT, "Nothing was undone: these changes were undone before."
        )
    return found


def _summed_up(changes: Sequence[TrackedChange]) -> list[_UndoneFile]:
    """One entry for each file, from before its first change to after its last."""
    found: dict[str, _UndoneFile] = {}
    for change in changes:
        known = found.get(change.path)
        if known is None:
            found[change.path] = _UndoneFile(change.path, change.before, change.after, False)
        else:
            interrupted = known.interrupted or not _is_same(known.after, change.before)
            found[change.path] = replace(known, after=change.after, interrupted=interrupted)
    return list(found.values())


def _is_same(one: FileContent | None, other: FileContent | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.sha256 == other.sha256


async def _is_unchanged(files: RestorableFiles, file: _UndoneFile) -> bool:
    """Whether a file is as the run left it, or already as it was before."""
    now = await current_content(files, file.path)
    return _is_same(now, file.after) or _is_same(now, file.before)


async def _take_back(files: RestorableFiles, images: BeforeImages, file: _UndoneFile) -> bool:
    """Restore one file; False if its content before was not kept."""
    now, before = await current_content(files, file.path), file.before
    if before is None:
        if now is not None:
            await files.remove(file.path)
        return True
    if _is_same(now, before) and (now is None or now.mode == before.mode):
        return True
    data = await images.content(before.sha256) if before.kept else None
    if data is None:
        return False
    await files.write(file.path, data, mode=before.mode)
    return True


def _answer(undone: Sequence[_UndoneFile], lost: Sequence[_UndoneFile]) -> ToolOutput:
    gone = {file.path for file in lost}
    restored = [file for file in undone if file.path not in gone]
    lines = [
        f"{'deleted' if file.before is None else 'restored'} '{file.path}'"
        + (" (something else had changed it during the run)" if file.interrupted else "")
        for file in restored
    ]
    lines += [f"not restored: '{file.path}', {_why_lost(file.before)}" for file in lost]
    details: dict[str, JSON] = {
        "restored": [file.path for file in restored],
        "not_restored": {file.path: _why_lost(file.before) for file in lost},
    }
    return ToolOutput((TextBlock("\n".join(lines)),), details)


def _why_lost(before: FileContent | None) -> str:
    size = 0 if before is None else before.size
    if before is not None and not before.sha256:
        return f"it had {size:,} bytes before, too many to keep"
    return "what it held before is not kept any more"


def _named(paths: Sequence[str], most: int = 10) -> str:
    more = f" and {len(paths) - most} more files" if len(paths) > most else ""
    return ", ".join(f"'{path}'" for path in paths[:most]) + more
