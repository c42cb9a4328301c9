"""How a call is shown in an editor: its title, its kind, its files, its diff or its command."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from acp.helpers import image_block, text_block, tool_content, tool_diff_content
from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    TerminalToolCallContent,
    ToolCallLocation,
    ToolKind,
)
from msgspec import Struct

from evoclaw.core.messages import JSON, ImageBlock, ToolResult
from evoclaw.orchestrator.sanitizing import one_line, plain_text

Content: TypeAlias = ContentToolCallContent | FileEditToolCallContent | TerminalToolCallContent
MAX_SHOWN_CHARS = 100_000
"""Characters of a command or a result that an editor is sent."""
MAX_DIFF_BYTES = 1 << 20
"""A larger file is shown without what it held before."""
_KINDS: dict[str, ToolKind] = {
    **dict.fromkeys(("read", "image", "git_status", "git_diff", "git_log"), "read"),
    **dict.fromkeys(("write", "edit", "apply_patch"), "edit"),
    **dict.fromkeys(("glob", "grep", "codesearch", "websearch"), "search"),
    **dict.fromkeys(("bash", "git_commit", "git_branch"), "execute"),
    **dict.fromkeys(("webfetch", "browser"), "fetch"),
    **dict.fromkeys(("todowrite", "todoread"), "think"),
}


class PatchedPart(Struct, frozen=True):
    """A part of a file that a patch replaces."""

    path: str
    old: str | None
    """None if the patch creates the file."""
    new: str


PatchReader: TypeAlias = Callable[[str], Sequence[PatchedPart]]
"""Reads the text of a patch; nothing if it is not valid."""


class CallView(Struct, frozen=True):
    """A call as an editor shows it."""

    title: str
    kind: ToolKind
    locations: list[ToolCallLocation]
    content: list[Content]

    @property
    def has_diff(self) -> bool:
        """Whether it shows what the call changes in files."""
        return any(isinstance(part, FileEditToolCallContent) for part in self.content)


class CallViews:
    """Shows the calls of a session in its workspace."""

    def __init__(self, workspace: Path, read_patch: PatchReader, *, live: bool = True) -> None:
        """Choose the workspace.

        Args:
            workspace: The folder that relative paths start from.
            read_patch: Reads the text of a patch.
            live: Whether the calls are about to run: then a file still holds what it held before.
        """
        self._workspace, self._read_patch, self._live = workspace, read_patch, live

    def of(self, name: str, arguments: dict[str, JSON]) -> CallView:
        """A call of a tool with these arguments."""
        content = self._content(name, arguments)
        paths = [part.path for part in content if isinstance(part, FileEditToolCallContent)]
        if not paths and isinstance(path := arguments.get("path"), str):
            paths = [self._absolute(path)]
        offset = arguments.get("offset")
        line = offset if name == "read" and isinstance(offset, int) and offset > 0 else None
        locations = [ToolCallLocation(path=path, line=line) for path in dict.fromkeys(paths)]
        return CallView(_title(name, arguments), _KINDS.get(name, "other"), locations, content)

    def _content(self, name: str, arguments: dict[str, JSON]) -> list[Content]:
        match name, arguments:
            case "write", {"path": str(path), "content": str(new)}:
                return [tool_diff_content(self._absolute(path), new, self._text_before(path))]
            case "edit", {"path": str(path), "old_string": str(old), "new_string": str(new)}:
                return [tool_diff_content(self._absolute(path), new, old)]
            case "apply_patch", {"patch": str(patch)}:
                parts = self._read_patch(patch)
                diffs: list[Content] = [
                    tool_diff_content(self._absolute(part.path), part.new, part.old)
                    for part in parts
                ]
                return diffs or [fenced(patch)]
            case _, {"command": str(command)}:
                return [fenced(command)]
            case _:
                return []

    def _absolute(self, path: str) -> str:
        return str(self._workspace / path)

    def _text_before(self, path: str) -> str | None:
        """What a file of the workspace holds now; None if there is no such text."""
        if not self._live:
            return None
        try:
            file = (self._workspace / path).resolve()
            if not file.is_relative_to(self._workspace) or not file.is_file():
                return None
            return file.read_text() if file.stat().st_size <= MAX_DIFF_BYTES else None
        except (OSError, ValueError):
            return None


def result_content(result: ToolResult) -> list[Content]:
    """The result of a call: its text as code, and its images."""
    text: list[Content] = [fenced(result.text)] if result.text.strip() else []
    images = [
        tool_content(image_block(block.data, block.media_type))
        for block in result.blocks
        if isinstance(block, ImageBlock)
    ]
    return [*text, *images]


def fenced(text: str) -> Content:
    """Text that an editor shows as it is: a code block that the text itself cannot end."""
    shown = plain_text(text, MAX_SHOWN_CHARS)
    longest = max((len(ticks) for ticks in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return tool_content(text_block(f"{fence}\n{shown}\n{fence}"))


def _title(name: str, arguments: dict[str, JSON]) -> str:
    for key in ("command", "path", "pattern", "url", "query"):
        if isinstance(value := arguments.get(key), str):
            return one_line(f"{name}: {value}")
    if not arguments or name == "apply_patch":
        return one_line(name)
    return one_line(f"{name}: {msgspec.json.encode(arguments).decode()}")
