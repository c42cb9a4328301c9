"""Parses `git status` and describes the changed files for the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CLOSED
from evoclaw.tools.git.safety import LISTING, SUBMODULES, Repository, split

SHOWN = 200
"""Of each kind of change."""
NAMED = 5
"""In a sentence."""
SAME = "."
WORDS = {
    "A": "added",
    "C": "copied",
    "D": "deleted",
    "M": "modified",
    "R": "renamed",
    "T": "type changed",
    "U": "in conflict",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs from the last commit."""

    path: str
    """Relative to the repository's folder; ends with a slash if it is a folder."""
    staged: str
    """The staged change as git's letter; `.` is unchanged, `?` is untracked."""
    unstaged: str
    """The change that is not staged, as git's letter."""
    before: str = ""
    """The old path of a renamed or copied file."""
    torn: bool = False
    """A merge left it in conflict."""

    def below(self, folder: str) -> bool:
        """Whether the path is this file or lies in this folder."""
        return folder == SAME or f"{self.path}/".startswith(f"{folder}/")


@dataclass(frozen=True, slots=True)
class Changes:
    """The output of `git status`."""

    about: Mapping[str, str]
    """The branch headers of the output, such as `branch.head`."""
    files: Sequence[Change]
    cut: bool
    """The output was too long; files are missing."""


async def find_changes(repository: Repository, *options: str, paths: Sequence[str] = ()) -> Changes:
    """Run `git status`."""
    how = ("--porcelain=v2", "-z", SUBMODULES, *options)
    done = await repository.git("status", *how, "--", *paths)
    cut = done.stdout_bytes > LISTING
    pieces = iter(split(done.stdout[: LISTING // 2] if cut else done.stdout))
    about: dict[str, str] = {}
    files: list[Change] = []
    for piece in pieces:
        if piece.startswith("# "):
            name, _, value = piece[2:].partition(" ")
            about[name] = value
        else:
            files.append(_change(piece, pieces))
    return Changes(about, files, cut)


def _change(entry: str, more: Iterator[str]) -> Change:
    kind, _, rest = entry.partition(" ")
    if kind == "?":
        return Change(rest, "?", "?")
    # The number of fields before the path.
    fields = rest.split(" ", {"1": 7, "2": 8, "u": 9}[kind])
    before = next(more, "") if kind == "2" else ""
    return Change(fields[-1], fields[0][0], fields[0][1], before, kind == "u")


def branch_line(about: Mapping[str, str]) -> str:
    """The current branch, its commit and its distance from the upstream branch."""
    head = about.get("branch.head", "")
    line = f"On branch {head}" if head != "(detached)" else "On no branch (detached)"
    oid = about.get("branch.oid", "")
    line += ", no commit yet" if oid == "(initial)" else f" at {oid[:10]}"
    if upstream := about.get("branch.upstream"):
        ahead, _, behind = about.get("branch.ab", "").partition(" ")
        apart = f"{ahead[1:]} ahead, {behind[1:]} behind" if behind else "which is gone"
        line += f"; follows {upstream}: {apart}" if behind else f"; follows {upstream}, {apart}"
    return f"{line}."


def listed(files: Sequence[Change]) -> list[str]:
    """The lines of a status: changes grouped by kind."""
    parts = (
        ("In conflict", [shown(file.path) for file in files if file.torn]),
        ("Staged", [_line(file, file.staged) for file in files if _counts(file, file.staged)]),
        (
            "Not staged",
            [_line(file, file.unstaged) for file in files if _counts(file, file.unstaged)],
        ),
        ("Untracked", [shown(file.path) for file in files if file.staged == "?"]),
    )
    lines: list[str] = []
    for title, entries in parts:
        if entries:
            lines += [f"{title} ({len(entries)}):", *(f"  {entry}" for entry in entries[:SHOWN])]
        if len(entries) > SHOWN:
            lines.append(f"  [… {len(entries) - SHOWN:,} more]")
    return lines


def _counts(change: Change, letter: str) -> bool:
    return not change.torn and letter not in ".?"


def _line(change: Change, letter: str) -> str:
    name = shown(change.path)
    if change.before and letter in "RC":
        name = f"{shown(change.before)} -> {name}"
    return f"{WORDS.get(letter, letter)}: {name}"


def shown(path: str) -> str:
    """A path on one line, with unprintable characters escaped."""
    return path if path.isprintable() else repr(path)


def refuse_ours(paths: Iterable[str]) -> None:
    """Refuse files of EvoClaw's own folder: git runs outside the sandbox that hides it."""
    if ours := [path for path in paths if CLOSED in path.casefold().split("/")]:
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"{some(ours)}: EvoClaw's own keys and settings are there. Nothing was done. "
            "Name other `paths`, or go on without it.",
        )


def some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    paths = [shown(name) for name in names]
    more = f" and {len(paths) - NAMED:,} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more


def some_filtered(filtered: Mapping[str, str]) -> str:
    """The first few files that have a filter, with its name."""
    return some(f"{path} (filter {name})" for path, name in filtered.items())
