"""Looking through a whole tree in one go, off the event loop, where the files are on this machine.

A visitor is told each folder and works on its entries in order; a sub-folder that it yields is gone
into before it goes on. Machines that are far away are walked instead, see `tools.ignore.visible`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from evoclaw.tools.ignore import LONGEST, Ignored, Rules

RULES = ".gitignore"


class Folder(Protocol):
    """One folder, while it is visited."""

    @property
    def path(self) -> str:
        """As tools name it; empty for the workspace itself."""
        ...

    @property
    def entries(self) -> Sequence[tuple[str, str]]:
        """The name and kind of what is in it, in sorted order."""
        ...

    def read(self, name: str, start: int, limit: int) -> bytes | None:
        """Read a regular file of this folder; None if that cannot be done."""
        ...

    def changed(self, name: str) -> float:
        """When an entry was changed last."""
        ...


Visit: TypeAlias = Callable[[Folder], Iterator[str]]


@runtime_checkable
class Surveyable(Protocol):
    """Files that can be looked through in one go."""

    async def survey(self, path: str, visit: Visit) -> None:
        """Have every folder from this one on visited, in a thread; raise what the visitor does."""
        ...


class Sight:
    """What of a folder is not left out by the rules there and above it."""

    def __init__(self, above: Sequence[tuple[str, Rules]]) -> None:
        """Begin with the rules of the folders above the start, the nearest first."""
        self._rules: dict[str, list[tuple[str, Rules]]] = {}
        self._above = list(above)

    @classmethod
    async def below(cls, ignored: Ignored) -> Sight:
        """Read the rules that hold from above."""
        return cls(await ignored.above())

    def look(self, folder: Folder) -> list[tuple[str, str]]:
        """The name and kind of what may be seen."""
        rules = self._in_force(folder)
        if not rules:
            return [one for one in folder.entries if one[0] != ".git"]
        return [
            (name, kind)
            for name, kind in folder.entries
            if name != ".git" and not _hidden(rules, folder.path, name, kind)
        ]

    def _in_force(self, folder: Folder) -> list[tuple[str, Rules]]:
        above = self._rules.get(posixpath.dirname(folder.path), self._above)
        if not folder.path:
            above = self._above
        own = folder.read(RULES, 0, LONGEST) if (RULES, "file") in folder.entries else None
        text = (own or b"").removeprefix(b"\xef\xbb\xbf")
        found = [(folder.path, Rules(text)), *above] if text.strip() else above
        self._rules[folder.path] = found
        return found


def _hidden(rules: Sequence[tuple[str, Rules]], folder: str, name: str, kind: str) -> bool:
    path = f"{folder}/{name}" if folder else name
    for above, one in rules:
        relative = path[len(above) :].lstrip("/")
        found = one.verdict(relative.encode(errors="surrogateescape"), folder=kind == "dir")
        if found is not None:
            return found
    return False
