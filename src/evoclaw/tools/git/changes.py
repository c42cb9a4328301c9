"""Parses `git status` and describes the changed files for the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import STATE_FOLDER
from evoclaw.tools.git.repository import IGNORE_SUBMODULES, MAX_LISTING_BYTES, Repository, split_nul

MAX_LISTED_ENTRIES = 200
"""Of each kind of change."""
MAX_NAMED_FILES = 5
"""In a sentence."""
REPOSITORY_ROOT = "."
STATUS_WORDS = {
    "A": "added",
    "C": "copied",
    "D": "deleted",
    "M": "modified",
    "R": "renamed",
    "T": "type changed",
    "U": "in conflict",
}


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that differs from the last commit."""

    path: str
    """Relative to the repository's folder; ends with a slash if it is a folder."""
    staged: str
    """The staged change as git's letter; `.` is unchanged, `?` is untracked."""
    unstaged: str
    """The change that is not staged, as git's letter."""
    old_path: str = ""
    """The old path of a renamed or copied file."""
    conflicted: bool = False
    """A merge left it in conflict."""

    def is_below(self, folder: str) -> bool:
        """Whether the path is this file or lies in this folder."""
        return folder == REPOSITORY_ROOT or f"{self.path}/".startswith(f"{folder}/")


@dataclass(frozen=True, slots=True)
class Changes:
    """The output of `git status`."""

    branch: Mapping[str, str]
    """The branch headers of the output, such as `branch.head`."""
    files: Sequence[ChangedFile]
    truncated: bool
    """The output was too long; files are missing."""


async def find_changes(repository: Repository, *options: str, paths: Sequence[str] = ()) -> Changes:
    """Run `git status`."""
    how = ("--porcelain=v2", "-z", IGNORE_SUBMODULES, *options)
    done = await repository.git("status", *how, "--", *paths)
    cut = done.stdout_bytes > MAX_LISTING_BYTES
    pieces = iter(split_nul(done.stdout[: MAX_LISTING_BYTES // 2] if cut else done.stdout))
    about: dict[str, str] = {}
    files: list[ChangedFile] = []
    for piece in pieces:
        if piece.startswith("# "):
            name, _, value = piece[2:].partition(" ")
            about[name] = value
        else:
            files.append(_change(piece, pieces))
    return Changes(about, files, cut)


def _change(entry: str, more: Iterator[str]) -> ChangedFile:
    kind, _, rest = entry.partition(" ")
    if kind == "?":
        return ChangedFile(rest, "?", "?")
    # The number of fields before the path.
    fields = rest.split(" ", {"1": 7, "2": 8, "u": 9}[kind])
    before = next(more, "") if kind == "2" else ""
    return ChangedFile(fields[-1], fields[0][0], fields[0][1], before, kind == "u")


def branch_line(about: Mapping[str, str]) -> str:
    """The current branch, its commit and its distance from the upstream branch."""
    head = about.get("branch.head", "")
    line = f"On branch {head}" if head != "(detached)" else "On no branch (detached)"
    oid = about.get("branch.oid", "")
    line += ", no commit yet" if oid == "(initial)" else f" at {oid[:10]}"
    if upstream := about.get("branch.upstream"):
        ahead, _, behind = about.get("branch.ab", "").partition(" ")
        distance = f"{ahead[1:]} ahead, {behind[1:]} behind" if behind else "which no longer exists"
        line += (
            f"; follows {upstream}: {distance}" if behind else f"; follows {upstream}, {distance}"
        )
    return f"{line}."


def list_changes(files: Sequence[ChangedFile]) -> list[str]:
    """The lines of a status: changes grouped by kind."""
    parts = (
        ("In conflict", [printable_path(file.path) for file in files if file.conflicted]),
        ("Staged", [_line(file, file.staged) for file in files if _is_change(file, file.staged)]),
        (
            "Not staged",
            [_line(file, file.unstaged) for file in files if _is_change(file, file.unstaged)],
        ),
        ("Untracked", [printable_path(file.path) for file in files if file.staged == "?"]),
    )
    lines: list[str] = []
    for title, entries in parts:
        if entries:
            lines += [
                f"{title} ({len(entries)}):",
                *(f"  {entry}" for entry in entries[:MAX_LISTED_ENTRIES]),
            ]
        if len(entries) > MAX_LISTED_ENTRIES:
            lines.append(f"  [… {len(entries) - MAX_LISTED_ENTRIES:,} more]")
    return lines


def _is_change(change: ChangedFile, letter: str) -> bool:
    return not change.conflicted and letter not in ".?"


def _line(change: ChangedFile, letter: str) -> str:
    name = printable_path(change.path)
    if change.old_path and letter in "RC":
        name = f"{printable_path(change.old_path)} -> {name}"
    return f"{STATUS_WORDS.get(letter, letter)}: {name}"


def printable_path(path: str) -> str:
    """A path on one line, with unprintable characters escaped."""
    return path if path.isprintable() else repr(path)


def refuse_evoclaw_files(paths: Iterable[str]) -> None:
    """Refuse files of EvoClaw's own folder: git runs outside the sandbox that hides it."""
    if ours := [path for path in paths if STATE_FOLDER in path.casefold().split("/")]:
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"{name_some(ours)}: EvoClaw's own keys and settings are there. Nothing was done. "
            "Name other `paths`, or continue without it.",
        )


def name_some(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    paths = [printable_path(name) for name in names]
    more = f" and {len(paths) - MAX_NAMED_FILES:,} more" if len(paths) > MAX_NAMED_FILES else ""
    return ", ".join(paths[:MAX_NAMED_FILES]) + more


def name_some_filtered(filtered: Mapping[str, str]) -> str:
    """The first few files that have a filter, with its name."""
    return name_some(f"{path} (filter {name})" for path, name in filtered.items())
