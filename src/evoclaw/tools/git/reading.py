"""The tools `git_status`, `git_diff` and `git_log`, which read a repository.

None of them runs a program that the repository configures; see `repository`. A filter, such as Git
LFS, is such a program: results that lack it say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind, TextBlock
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.truncate import REPLACED_BYTES_NOTICE, to_text
from evoclaw.tools.define import replace_surrogates, tool
from evoclaw.tools.git.changes import (
    branch_line,
    find_changes,
    list_changes,
    name_some,
    name_some_filtered,
    refuse_evoclaw_files,
)
from evoclaw.tools.git.repository import (
    DIFF_OPTIONS,
    IGNORE_SUBMODULES,
    MAX_LISTING_BYTES,
    MAX_SHOWN_BYTES,
    Repository,
    open_repository,
    split_nul,
)

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 60, 300
DEFAULT_TIMEOUT_MS = DEFAULT_TIMEOUT_S * 1000
MAX_PATHS = 1_000
MAX_MESSAGE_CHARS = 4_000
"""Of a commit message that is shown."""

Paths = Annotated[tuple[str, ...], Meta(max_length=MAX_PATHS)]
Milliseconds = Annotated[int, Meta(ge=1)]


@tool("git", timeout=DEFAULT_TIMEOUT_S, max_timeout=MAX_TIMEOUT_S, effect="read")
async def git_status(
    exec: ExecOps, files: FileOps, workdir: str = ".", timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS
) -> ToolOutput:
    """Show the branch and which files are staged, changed, in conflict or untracked.

    Args:
        exec: The machine's processes.
        files: The machine's files.
        workdir: A folder of the repository, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    repository = await open_repository(exec, files, workdir)
    found = await find_changes(repository, "--untracked-files=normal", "--branch")
    lines = [branch_line(found.branch), *list_changes(found.files)]
    if not found.files:
        lines.append("Nothing to commit; no file is changed.")
    if found.truncated:
        lines.append("[There are too many files to list; these are the first.]")
    unsure = await repository.filtered(
        change.path for change in found.files if change.unstaged in "MT"
    )
    if unsure:
        lines.append(f"[Filters are not run here; maybe unchanged: {name_some_filtered(unsure)}.]")
    details: dict[str, JSON] = {
        "branch": found.branch.get("branch.head"),
        "upstream": found.branch.get("branch.upstream"),
        "files": [
            [change.staged + change.unstaged, replace_surrogates(change.path)]
            for change in found.files
        ],
        "complete": not found.truncated,
    }
    return text_output(lines, details)


@tool("git", timeout=DEFAULT_TIMEOUT_S, max_timeout=MAX_TIMEOUT_S, effect="read")
async def git_diff(
    exec: ExecOps,
    files: FileOps,
    commit: str = "",
    staged: bool = False,
    paths: Paths = (),
    workdir: str = ".",
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    """Show changes as a unified diff: those not yet staged, those staged, or those of a commit.

    Args:
        exec: The machine's processes.
        files: The machine's files.
        commit: Show what this commit changed; or two with `..` between them, to compare them.
        staged: Show what the next commit would change.
        paths: Only these files or folders, relative to `workdir`.
        workdir: A folder of the repository, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    if commit and staged:
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "Give either `commit` or `staged`, not both.")
    repository = await open_repository(exec, files, workdir)
    what = await _diff_command(repository, commit, staged)
    only = ("--", *repository.paths(paths))
    counts = await _counts(repository, (*what, "--numstat", "-z", *only))
    refuse_evoclaw_files(counts)
    if not counts:
        hint = "" if commit else " New files are shown only when staged; see git_status."
        return text_output([f"No differences.{hint}"], {"files": 0, "added": 0, "deleted": 0})
    done = await repository.git(*what, "--patch", *only, max_output=MAX_SHOWN_BYTES)
    text, lossy = to_text(done.stdout)
    lines = [text.rstrip("\n")]
    added, deleted = (sum(count[i] for count in counts.values()) for i in (0, 1))
    if lossy:
        lines.append(REPLACED_BYTES_NOTICE)
    if done.stdout_bytes > MAX_SHOWN_BYTES:
        lines.append(
            f"[The middle is left out: {len(counts)} files, {added} lines added, {deleted} "
            f"deleted. Name fewer `paths`; the first are {name_some(counts)}.]"
        )
    unfiltered = {} if commit or staged else await repository.filtered(counts)
    if unfiltered:
        lines.append(f"[Compared without the filter of: {name_some_filtered(unfiltered)}.]")
    details: dict[str, JSON] = {"files": len(counts), "added": added, "deleted": deleted}
    return text_output(lines, details)


async def _diff_command(repository: Repository, commit: str, staged: bool) -> tuple[str, ...]:
    """The arguments of the git command that makes the requested diff."""
    if not commit:
        return ("diff", *DIFF_OPTIONS, IGNORE_SUBMODULES, *(("--cached",) if staged else ()))
    dots = "..." if "..." in commit else ".."
    first, between, second = commit.partition(dots)
    if between:
        ends = [await repository.commit(end or "HEAD") for end in (first, second)]
        return ("diff", *DIFF_OPTIONS, IGNORE_SUBMODULES, dots.join(ends))
    found = await repository.commit(commit)
    # A merge is compared with its first parent.
    how = ("--format=", "--no-show-signature", "-m", "--first-parent")
    return ("show", *DIFF_OPTIONS, IGNORE_SUBMODULES, *how, found)


async def _counts(repository: Repository, arguments: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The added and deleted lines of each file."""
    pieces = iter(await repository.names(*arguments))
    counts: dict[str, tuple[int, int]] = {}
    for piece in pieces:
        added, deleted, path = piece.lstrip("\n").split("\t", 2)
        if not path:
            # Renamed: the old and the new name follow.
            path = [next(pieces), next(pieces)][1]
        counts[path] = (int(added), int(deleted)) if added != "-" else (0, 0)
    return counts


@tool("git", timeout=DEFAULT_TIMEOUT_S, max_timeout=MAX_TIMEOUT_S, effect="read")
async def git_log(
    exec: ExecOps,
    files: FileOps,
    max_count: Annotated[int, Meta(ge=1, le=500)] = 10,
    commit: str = "HEAD",
    paths: Paths = (),
    workdir: str = ".",
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    """Show the last commits, the newest first.

    Args:
        exec: The machine's processes.
        files: The machine's files.
        max_count: How many to show at most.
        commit: Where to start: a hash, a branch or a tag.
        paths: Only commits that changed these files or folders, relative to `workdir`.
        workdir: A folder of the repository, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    repository = await open_repository(exec, files, workdir)
    only = repository.paths(paths)
    start = await repository.commit(commit)
    shape = "--format=%H%x00%h%x00%D%x00%an%x00%ae%x00%aI%x00%B%x00"
    how = ("--no-show-signature", "--no-mailmap", "--no-color", "--no-patch", f"-n{max_count}")
    done = await repository.git(
        "log", *how, shape, start, "--", *only, max_output=MAX_LISTING_BYTES
    )
    # Of truncated output only the first half is contiguous.
    complete = (
        done.stdout
        if done.stdout_bytes <= MAX_LISTING_BYTES
        else done.stdout[: MAX_LISTING_BYTES // 2]
    )
    pieces = split_nul(complete)
    commits = [pieces[i : i + 7] for i in range(0, len(pieces) - 6, 7)]
    entries = [_commit_text(fields) for fields in commits]
    fitting = _fitting(entries, MAX_SHOWN_BYTES)
    lines = entries[:fitting] or ["No commit changed these files."]
    if fitting < len(entries) or complete is not done.stdout:
        lines.append(f"[There are more; continue with commit={commits[fitting - 1][1]}~1.]")
    hashes: list[JSON] = [fields[0].strip() for fields in commits[:fitting]]
    return text_output(["\n\n".join(lines)], {"commits": hashes})


def _commit_text(pieces: Sequence[str]) -> str:
    _, short, names, author, email, date, message = pieces
    where = f" ({names})" if names else ""
    text = message.strip()
    if len(text) > MAX_MESSAGE_CHARS:
        text = f"{text[:MAX_MESSAGE_CHARS]} [… {len(text) - MAX_MESSAGE_CHARS:,} more]"
    body = "\n".join(f"    {line}".rstrip() for line in text.split("\n"))
    return f"commit {short}{where}\nAuthor: {author} <{email}>\nDate:   {date}\n{body}"


def _fitting(entries: Sequence[str], room: int) -> int:
    """How many of the entries fit, at least one."""
    used = 0
    for number, entry in enumerate(entries):
        used += len(entry)
        if used > room and number:
            return number
    return len(entries)


def text_output(lines: Sequence[str], details: dict[str, JSON]) -> ToolOutput:
    """An output of lines of text."""
    return ToolOutput((TextBlock("\n".join(lines)),), details)
