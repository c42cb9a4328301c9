"""`.gitignore` rules, read through `FileOps`, and a walk that leaves out ignored entries."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from evoclaw.core.errors import ToolFailure
from evoclaw.core.ops import FileOps, FileStat
from evoclaw.tools.patterns import ANY_FOLDERS, RegexSet, glob_to_regex

EXCLUDE_FILE = ".git/info/exclude"
MAX_GITIGNORE_BYTES = 256 << 10
"""Of one file of rules; the rest is not read."""


class GitignoreRules:
    """The rules of one `.gitignore`."""

    def __init__(self, text: bytes) -> None:
        sources: list[bytes] = []
        self._negated: list[bool] = []
        for line in text.split(b"\n"):
            negated, source = _rule(line.removesuffix(b"\r"))
            if source is not None:
                sources.append(source)
                self._negated.append(negated)
        self._set = RegexSet(sources)

    def is_ignored(self, path: bytes, *, folder: bool) -> bool | None:
        """Whether a path, relative to the rules, is ignored; None if no rule matches."""
        found = self._set.last_match(path + b"\0" if folder else path)
        return None if found is None else not self._negated[found]


def _rule(line: bytes) -> tuple[bool, bytes | None]:
    while line.endswith(b" ") and not line.endswith(b"\\ "):
        line = line[:-1]
    if not line or line.startswith(b"#"):
        return False, None
    negated = line.startswith(b"!")
    line = line[1:] if negated else line
    only_folders = line.endswith(b"/")
    line = line[:-1] if only_folders else line
    anchored = b"/" in line
    source = glob_to_regex(line.removeprefix(b"/")) if line.strip(b"/") else None
    if source is None:
        return negated, None
    before = b"" if anchored else ANY_FOLDERS
    # A folder has a NUL behind its name, which no other part of a pattern matches.
    return negated, before + source + (rb"\x00" if only_folders else rb"\x00?")


class GitignoreMatcher:
    """Decides which paths below a start folder are ignored."""

    def __init__(self, ops: FileOps, start: str) -> None:
        self._ops = ops
        self._start = posixpath.normpath(start)
        self._rules: dict[str, GitignoreRules | None] = {}
        self._folders: dict[str, bool] = {}

    async def is_ignored(self, entry: FileStat) -> bool:
        """Whether an entry, or a folder above it, is ignored."""
        above = posixpath.dirname(entry.path)
        return await self._folder_ignored(above) or await self._path_ignored(
            entry.path, folder=entry.kind == "dir"
        )

    async def inherited_rules(self) -> list[tuple[str, GitignoreRules]]:
        """The rules of the folders above the start, nearest first, and of `.git/info/exclude`."""
        folder, found = self._start, list[tuple[str, GitignoreRules]]()
        if folder == ".":
            exclude = await self._text(EXCLUDE_FILE)
            return [("", GitignoreRules(exclude))] if exclude.strip() else []
        while folder and not folder.startswith("/"):
            folder = posixpath.dirname(folder)
            rules = await self._rules_of(folder)
            if rules is not None:
                found.append((folder, rules))
        return found

    async def _folder_ignored(self, folder: str) -> bool:
        """Whether a folder is ignored, and so everything in it; the start never is."""
        if folder in ("", "/") or folder == self._start:
            return False
        known = self._folders.get(folder)
        if known is None:
            known = await self._folder_ignored(
                posixpath.dirname(folder)
            ) or await self._path_ignored(folder, folder=True)
            self._folders[folder] = known
        return known

    async def _path_ignored(self, path: str, *, folder: bool) -> bool:
        if posixpath.basename(path) == ".git":
            return True
        above = posixpath.dirname(path)
        while True:
            rules = await self._rules_of(above)
            if rules is not None:
                relative = path[len(above) :].lstrip("/")
                found = rules.is_ignored(relative.encode(errors="surrogateescape"), folder=folder)
                if found is not None:
                    return found
            if above in ("", "/") or (above == self._start and above.startswith("/")):
                return False
            above = posixpath.dirname(above)

    async def _rules_of(self, folder: str) -> GitignoreRules | None:
        if folder not in self._rules:
            text = await self._text(posixpath.join(folder, ".gitignore"))
            if not folder:
                text = await self._text(EXCLUDE_FILE) + b"\n" + text
            self._rules[folder] = GitignoreRules(text) if text.strip() else None
        return self._rules[folder]

    async def _text(self, path: str) -> bytes:
        try:
            text = await self._ops.read(path, limit=MAX_GITIGNORE_BYTES)
        except ToolFailure:
            return b""
        return text.removeprefix(b"\xef\xbb\xbf")


@runtime_checkable
class PrunableWalk(Protocol):
    """A walk that can skip the folder it yielded last."""

    def skip(self) -> None:
        """Do not descend into the folder yielded last."""
        ...


async def walk_unignored(
    ops: FileOps, start: str, ignored: GitignoreMatcher
) -> AsyncGenerator[FileStat | None]:
    """Walk a tree without ignored entries; yields None for each of them, so that it counts."""
    walk = ops.walk(start)
    async for entry in walk:
        if await ignored.is_ignored(entry):
            if entry.kind == "dir" and isinstance(walk, PrunableWalk):
                walk.skip()
            yield None
        else:
            yield entry
