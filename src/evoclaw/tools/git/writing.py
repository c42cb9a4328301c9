"""The tools `git_commit` and `git_branch`, which change a repository.

Neither runs a program that the repository configures; see `repository`. A filter, such as Git LFS,
is such a program: changes that need one are refused before anything is changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from evoclaw.core.bound_tools import ToolOutput
from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.ops import ExecOps, FileOps
from evoclaw.core.truncate import to_text
from evoclaw.tools.define import replace_surrogates, tool
from evoclaw.tools.git.changes import (
    MAX_LISTED_ENTRIES,
    Changes,
    find_changes,
    name_some,
    name_some_filtered,
    refuse_evoclaw_files,
)
from evoclaw.tools.git.reading import (
    DEFAULT_TIMEOUT_MS,
    DEFAULT_TIMEOUT_S,
    MAX_PATHS,
    MAX_TIMEOUT_S,
    Milliseconds,
    Paths,
    text_output,
)
from evoclaw.tools.git.repository import (
    DIFF_OPTIONS,
    IGNORE_SUBMODULES,
    MAX_LISTING_BYTES,
    Repository,
    git_failure,
    join_nul,
    open_repository,
    split_nul,
)


@tool(
    "git",
    "file_write",
    timeout=DEFAULT_TIMEOUT_S,
    max_timeout=MAX_TIMEOUT_S,
    effect="write",
    acts=False,
)
async def git_commit(
    exec: ExecOps,
    files: FileOps,
    message: str,
    paths: Paths = (),
    workdir: str = ".",
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    """Stage changes and commit them. Hooks are not run and the commit is not signed.

    Args:
        exec: The machine's processes.
        files: The machine's files.
        message: The commit message: a short first line, then more if needed.
        paths: Only these files or folders, new ones too. If omitted: what is staged, and every
            change of tracked files.
        workdir: A folder of the repository, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    if not message.strip():
        raise ToolFailure(ErrorKind.INVALID_PARAMS, "The message is empty: describe what changed.")
    repository = await open_repository(exec, files, workdir)
    named = repository.paths(paths)
    untracked = "--untracked-files=all" if named else "--untracked-files=no"
    found = await find_changes(repository, untracked, "--no-renames", paths=named)
    _check_commit(found, named)
    refuse_evoclaw_files(change.path for change in found.files)
    unstaged = [change.path for change in found.files if change.unstaged != "."]
    # With named paths git stages these files again, even if they are staged already.
    taken = [change.path for change in found.files] if named else unstaged
    _refuse_filtered(await repository.filtered(taken), "Committing")
    stdin = join_nul(unstaged)
    await repository.git(
        "update-index", "-z", "--add", "--remove", "--stdin", stdin=stdin, writes=True
    )
    identity, note = _identity(repository.settings)
    how = ("--quiet", "--no-verify", "--no-gpg-sign", "--no-status", "--cleanup=whitespace")
    # A merge cannot be committed in parts.
    merging = any(change.conflicted for change in found.files)
    only = ("--only", "--", *taken) if named and not merging else ()
    text = message.encode(errors="replace")
    await repository.git("commit", *how, "--file=-", *only, stdin=text, writes=True, env=identity)
    return await _committed(repository, note)


def _identity(settings: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The environment with the author and committer, and a note if they are defaults."""
    name, email = settings.get("user.name", ""), settings.get("user.email", "")
    note: list[str] = []
    if not name or not email:
        name, email = name or "EvoClaw", email or "evoclaw@localhost"
        note = [f"[git has no user.name or user.email here; committed as {name} <{email}>.]"]
    roles = ("AUTHOR", "COMMITTER")
    identity = {f"GIT_{role}_NAME": name for role in roles}
    return identity | {f"GIT_{role}_EMAIL": email for role in roles}, note


def _check_commit(found: Changes, named: Sequence[str]) -> None:
    if found.truncated:
        raise ToolFailure(ErrorKind.TOO_LARGE, "Too many changes for one call. Name `paths`.")
    if not found.files and not named:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            "Nothing to commit: no tracked file is changed. Name new files in `paths`.",
        )
    unchanged = [name for name in named if not any(change.is_below(name) for change in found.files)]
    if unchanged:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"Nothing to commit in {name_some(unchanged)}: unchanged, ignored, or missing.",
        )
    nested = [change.path for change in found.files if change.path.endswith("/")]
    if nested:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS,
            f"{name_some(nested)}: a repository of its own. Commit there, with another `workdir`.",
        )
    if len(found.files) > MAX_PATHS and named:
        raise ToolFailure(
            ErrorKind.TOO_LARGE, f"More than {MAX_PATHS} files are changed there. Name fewer."
        )
    conflicted = [change.path for change in found.files if change.conflicted]
    if conflicted and not named:
        raise ToolFailure(
            ErrorKind.CONFLICT,
            f"In conflict: {name_some(conflicted)}. "
            "Resolve the conflicts, then name these files in `paths`.",
        )


def _refuse_filtered(filtered: Mapping[str, str], doing: str) -> None:
    if filtered:
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"{doing} needs a filter program for {name_some_filtered(filtered)}, and these tools "
            "run no program that a repository names. Nothing was changed. Leave these files out, "
            "use git itself if you may run it, or ask the user.",
        )


async def _committed(repository: Repository, note: list[str]) -> ToolOutput:
    options = ("--shortstat", "--format=%H%x00%h%x00%s%x00", "--no-show-signature")
    done = await repository.git("show", *DIFF_OPTIONS, IGNORE_SUBMODULES, *options, "HEAD")
    full, short, subject, counts = (to_text(part)[0] for part in done.stdout.split(b"\0", 3))
    text = f"Committed {short}: {subject}\n{counts.strip()}".rstrip()
    return text_output(
        [text, *note], {"commit": full, "subject": subject, "summary": counts.strip()}
    )


@tool("git", timeout=DEFAULT_TIMEOUT_S, max_timeout=MAX_TIMEOUT_S, effect="write", acts=False)
async def git_branch(
    exec: ExecOps,
    files: FileOps,
    action: Literal["list", "create", "switch", "delete"] = "list",
    name: str = "",
    start: str = "HEAD",
    workdir: str = ".",
    timeout_ms: Milliseconds = DEFAULT_TIMEOUT_MS,
) -> ToolOutput:
    """List the branches, or create, switch to or delete one.

    Switching keeps changes that are not committed, or is refused. Only a branch that is merged
    can be deleted.

    Args:
        exec: The machine's processes.
        files: The machine's files.
        action: What to do.
        name: The branch to create, switch to or delete.
        start: The commit, branch or tag at which a new branch starts.
        workdir: A folder of the repository, relative to the workspace.
        timeout_ms: How many milliseconds it may take, 300000 at most.
    """
    repository = await open_repository(exec, files, workdir)
    if action == "list":
        return await _branches(repository)
    await _check_name(repository, name)
    if action == "create":
        commit = await repository.commit(start)
        await repository.git("branch", "--no-track", name, commit, writes=True)
        text = f"Created branch {name} at {commit[:10]}. Use switch to work on it."
    elif action == "switch":
        text = f"Now on branch {name}." + await _switch(repository, name)
    else:
        await _delete(repository, name)
        text = f"Deleted branch {name}."
    return text_output([text], {"branch": name})


async def _check_name(repository: Repository, name: str) -> None:
    valid = bool(name) and not name.startswith("-") and "\n" not in name
    if valid:
        done = await repository.git("check-ref-format", f"refs/heads/{name}", may_fail=True)
        valid = done.exit_code == 0
    if not valid:
        raise ToolFailure(
            ErrorKind.INVALID_PARAMS, f"'{name}' is not a valid branch name. Set `name`."
        )


async def _branches(repository: Repository) -> ToolOutput:
    fields = ("HEAD", "refname", "objectname:short", "upstream:short", "upstream:track", "subject")
    shape = "%00".join(f"%({field})" for field in fields) + "%00"
    done = await repository.git(
        "for-each-ref",
        f"--format={shape}",
        "refs/heads",
        "refs/remotes",
        max_output=MAX_LISTING_BYTES,
    )
    cut = done.stdout_bytes > MAX_LISTING_BYTES
    pieces = split_nul(done.stdout[: MAX_LISTING_BYTES // 2] if cut else done.stdout)
    rows = [pieces[i : i + 6] for i in range(0, len(pieces) - 5, 6)]
    lines = [_branch_text(row) for row in rows[:MAX_LISTED_ENTRIES]] or ["There is no branch yet."]
    if len(rows) > MAX_LISTED_ENTRIES or cut:
        lines.append(f"[There are more; these are the first {MAX_LISTED_ENTRIES}.]")
    current = next((row[1] for row in rows if row[0].strip() == "*"), "")
    if rows and not current:
        lines.insert(0, "(on no branch)")
    names: list[JSON] = [replace_surrogates(_short(row[1])) for row in rows]
    details: dict[str, JSON] = {
        "branches": names,
        "current": replace_surrogates(_short(current)) or None,
    }
    return text_output(lines, details)


def _branch_text(row: Sequence[str]) -> str:
    head, ref, commit, upstream, track, subject = row
    follows = f" [{upstream}{': ' + track.strip('[]') if track else ''}]" if upstream else ""
    return f"{head.strip() or ' '} {_short(ref)} {commit}{follows} {subject[:200]}"


def _short(ref: str) -> str:
    return ref.removeprefix("refs/heads/").removeprefix("refs/")


async def _switch(repository: Repository, name: str) -> str:
    """Switch branches; returns a note on files whose filter was not run."""
    target = await repository.commit(f"refs/heads/{name}")
    head = await repository.git("rev-parse", "--verify", "--quiet", "HEAD", may_fail=True)
    if head.exit_code == 0:
        compare = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", "HEAD", target)
    else:
        compare = ("ls-tree", "-r", "-z", "--name-only", target)
    changed = await repository.names(*compare)
    refuse_evoclaw_files(changed)
    _refuse_filtered(await repository.filtered(changed), "Switching")
    rules = [path for path in changed if path.rpartition("/")[2] == ".gitattributes"]
    if rules:
        # The `.gitattributes` of the other branch is not in the working tree yet.
        search = ("grep", "--quiet", "--no-recurse-submodules", "--fixed-strings", "-e", "filter=")
        done = await repository.git(*search, target, "--", *rules, may_fail=True)
        if done.exit_code != 1:
            _refuse_filtered(dict.fromkeys(rules, "named there"), "Switching")
    how = ("--quiet", "--no-guess", "--no-recurse-submodules", "--no-progress")
    await repository.git("switch", *how, name, writes=True)
    unfiltered = await repository.filtered(changed)
    note = f"\n[Filters were not run for: {name_some_filtered(unfiltered)}.]"
    return note if unfiltered else ""


async def _delete(repository: Repository, name: str) -> None:
    done = await repository.git("branch", "--delete", "--quiet", name, writes=True, may_fail=True)
    if b"not fully merged" in done.stderr:
        raise ToolFailure(
            ErrorKind.CONFLICT,
            f"Branch {name} has commits that the current branch does not have, so it was not "
            "deleted. Switch to a branch that has them all, or ask the user.",
        )
    if done.exit_code != 0:
        raise git_failure("branch", done)
