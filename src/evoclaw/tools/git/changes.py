"""Which files of a repository are changed, taken from git's own list and worded for the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CLOSED
from evoclaw.tools.git.safety import LISTING, SUBMODULES, Repository, split

SHOWN = 200
"""Files of one kind that are listed."""
NAMED = 5
"""Files that are named within a sentence."""
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
    """One file that is not as the last commit has it."""

    path: str
    """From the repository's folder; a slash at its end says that it is a folder."""
    staged: str
    """How the next commit would change it, as git's letter; `.` is not at all, `?` is untracked."""
    unstaged: str
    """How it differs from what is staged."""
    before: str = ""
    """Its old name."""
    torn: bool = False
    """A merge left it in conflict."""

    def below(self, folder: str) -> bool:
        """Whether it is this file, or lies in this folder."""
        return folder == SAME or f"{self.path}/".startswith(f"{folder}/")


@dataclass(frozen=True, slots=True)
class Changes:
    """What git says of the working files."""

    about: Mapping[str, str]
    """The branch, in git's words."""
    files: Sequence[Change]
    cut: bool
    """There were more."""


async def find_changes(repository: Repository, *options: str, paths: Sequence[str] = ()) -> Changes:
    """Ask git which files are changed."""
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
    # How many fields stand before the path.
    fields = rest.split(" ", {"1": 7, "2": 8, "u": 9}[kind])
    before = next(more, "") if kind == "2" else ""
    return Change(fields[-1], fields[0][0], fields[0][1], before, kind == "u")


def branch_line(about: Mapping[str, str]) -> str:
    """Say which branch it is, and how it stands to the one it follows."""
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
    """List the changes by kind."""
    parts = (
        ("In conflict", [shown(one.path) for one in files if one.torn]),
        ("Staged", [_line(one, one.staged) for one in files if _counts(one, one.staged)]),
        ("Not staged", [_line(one, one.unstaged) for one in files if _counts(one, one.unstaged)]),
        ("Untracked", [shown(one.path) for one in files if one.staged == "?"]),
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
    """A path on one line, odd characters escaped."""
    return path if path.isprintable() else repr(path)


def refuse_ours(paths: Iterable[str]) -> None:
    """Refuse files of our own folder: git runs without the sandbox that hides it from commands."""
    if ours := [path for path in paths if CLOSED in path.casefold().split("/")]:
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"{some(ours)}: EvoClaw's own keys and settings are there. Nothing was done. "
            "Name other `paths`, or go on without it.",
        )


def some(names: Iterable[str]) -> str:
    """The first few names."""
    every = [shown(name) for name in names]
    more = f" and {len(every) - NAMED:,} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def some_filtered(filtered: Mapping[str, str]) -> str:
    """The first few files that have a filter."""
    return some(f"{path} (filter {name})" for path, name in filtered.items())
