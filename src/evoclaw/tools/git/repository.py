"""Runs git so that no setting of a repository makes it run a program or reach the network.

Three measures: the machine's own git configuration is not read, except a few harmless values;
settings that name programs are overridden, those with free names one by one after reading the
configuration; and the repository must lie inside the folders that the tools may use.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.ops import CompletedProcess, ExecOps, FileOps
from evoclaw.core.truncate import to_text

MAX_SHOWN_BYTES = 64 << 10
"""Of output that is shown; longer output keeps its beginning and its end."""
MAX_LISTING_BYTES = 8 << 20
"""Of output that is parsed."""
MAX_STDERR_BYTES = 2 << 10
MAX_OVERRIDES = 500
MAX_ALTERNATES = 20
MAX_ALTERNATE_DEPTH = 5
"""The longest chain of alternate object stores."""
SHARED_GIT_PATHS = ("config", "logs", "objects", "packed-refs", "refs", "refs/heads")

ENVIRONMENT = {
    "LC_ALL": "C",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_ASKPASS": "false",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "false",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_SSH_COMMAND": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS": "false",
}
# Only for `git config --list`, which runs no program: the machine's configuration has the user's
# name.
CONFIG_ENVIRONMENT = {
    name: value
    for name, value in ENVIRONMENT.items()
    if name not in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM")
}

FORCED_SETTINGS = (
    "color.ui=false",
    "commit.gpgSign=false",
    "core.alternateRefsCommand=false",
    "core.askPass=false",
    "core.editor=false",
    "core.fsmonitor=false",
    "core.gitProxy=",
    "core.hooksPath=/dev/null",
    "core.pager=cat",
    "core.quotePath=false",
    "core.sshCommand=false",
    "credential.helper=",
    "diff.autoRefreshIndex=false",
    "diff.external=",
    "diff.ignoreSubmodules=dirty",
    "diff.mnemonicPrefix=false",
    "diff.noprefix=false",
    "diff.submodule=short",
    "gc.auto=0",
    "gpg.program=false",
    "i18n.commitEncoding=UTF-8",
    "i18n.logOutputEncoding=UTF-8",
    "interactive.diffFilter=",
    "log.mailmap=false",
    "log.showRoot=true",
    "log.showSignature=false",
    "maintenance.auto=false",
    "protocol.allow=never",
    "rerere.enabled=false",
    "safe.bareRepository=explicit",
    "sequence.editor=false",
    "status.submoduleSummary=false",
    "submodule.recurse=false",
)

# Settings with a free name in the middle: section and last part, and the value that disables them.
HARMLESS_VALUES = {
    ("credential", "helper"): "",
    ("diff", "command"): "",
    ("diff", "textconv"): "",
    ("filter", "clean"): "",
    ("filter", "process"): "",
    ("filter", "required"): "false",
    ("filter", "smudge"): "",
    ("gpg", "defaultkeycommand"): "false",
    ("gpg", "program"): "false",
    ("hook", "command"): "true",
    ("hook", "event"): "",
    ("merge", "driver"): "false",
    ("protocol", "allow"): "never",
    ("remote", "promisor"): "false",
    ("remote", "receivepack"): "false",
    ("remote", "uploadpack"): "false",
    ("submodule", "update"): "none",
    ("trailer", "cmd"): "false",
    ("trailer", "command"): "false",
}

# Settings of the machine's owner that repositories depend on.
PASSED_SETTINGS = (
    "core.attributesfile",
    "core.autocrlf",
    "core.eol",
    "core.excludesfile",
    "core.safecrlf",
)
OWNER_SCOPES = ("system", "global")

DIFF_OPTIONS = ("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short")
"""Options of every command that compares files."""
IGNORE_SUBMODULES = "--ignore-submodules=dirty"
"""Otherwise git runs git inside each submodule, with the submodule's configuration."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that was checked; the only way to run git."""

    exec: ExecOps
    work_tree: str
    """The top folder, absolute."""
    folder: str
    """The top folder, as `FileOps` names it."""
    git_dir: str
    """The `.git` folder, absolute."""
    prefix: str
    """From the top folder to `workdir`; empty or with a slash at the end."""
    options: tuple[str, ...]
    settings: Mapping[str, str]
    """The configuration: the last value of each key."""

    async def git(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        max_output: int = MAX_LISTING_BYTES,
        writes: bool = False,
        may_fail: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> CompletedProcess:
        """Run git in the repository's folder; `ToolFailure` if it fails, unless `may_fail`."""
        # Explicit, so that git cannot find another repository than the one that was checked.
        location = {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": self.work_tree}
        locks = {} if writes else {"GIT_OPTIONAL_LOCKS": "0"}
        environment = {**(env or {}), **ENVIRONMENT, **location, **locks}
        argv = ("git", "--no-pager", *self.options, *arguments)
        done = await self.exec.run(
            argv, cwd=self.folder, env=environment, stdin=stdin, max_output=max_output
        )
        if done.exit_code != 0 and not may_fail:
            raise git_failure(arguments[0], done)
        return done

    async def names(self, *arguments: str, stdin: bytes | None = None) -> list[str]:
        """Run git and split the list that it prints with `-z`."""
        done = await self.git(*arguments, stdin=stdin)
        if done.stdout_bytes > MAX_LISTING_BYTES:
            raise ToolFailure(
                ErrorKind.TOO_LARGE, "Too many files for one call. Name fewer files or folders."
            )
        return split_nul(done.stdout)

    async def commit(self, revision: str) -> str:
        """The full hash of a revision that the model named."""
        if not revision or revision.startswith("-") or "\n" in revision:
            raise _invalid(f"'{revision}' is not a commit. Give a hash, a branch or a tag")
        spec = f"{revision}^{{commit}}"
        done = await self.git("rev-parse", "--verify", "--quiet", spec, may_fail=True)
        found = done.stdout.decode(errors="replace").strip()
        if done.exit_code != 0 or not found.isalnum():
            raise ToolFailure(
                ErrorKind.NOT_FOUND,
                f"There is no commit '{revision}' here. git_log and git_branch show what there is.",
            )
        return found

    def paths(self, files: Sequence[str]) -> list[str]:
        """Convert paths relative to `workdir` to paths relative to the top folder."""
        return [self._path(name) for name in files]

    def _path(self, name: str) -> str:
        path = posixpath.relpath(posixpath.join(self.work_tree, self.prefix, name), self.work_tree)
        if not name or "\0" in name or path.split("/")[0] == "..":
            raise _invalid(f"'{name}' is not a file of this repository")
        return path

    async def filtered(self, paths: Iterable[str]) -> dict[str, str]:
        """The files that have a filter in `.gitattributes`, with its name."""
        listed = join_nul(paths)
        if not listed:
            return {}
        found = await self.names("check-attr", "-z", "--stdin", "filter", stdin=listed)
        triples = zip(found[::3], found[1::3], found[2::3], strict=False)
        return {
            path: value
            for path, _, value in triples
            if value not in ("unspecified", "unset", "set")
        }


async def open_repository(exec: ExecOps, files: FileOps, workdir: str) -> Repository:
    """Find the repository of a folder and check that it is safe to run git in it."""
    if (await files.stat(workdir)).kind != "dir":
        raise _invalid(f"'{workdir}' is not a folder")
    settings = await _configuration(exec, workdir)
    options = _options(settings)
    queries = ("--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-prefix")
    argv = ("git", "--no-pager", *options, "rev-parse", *queries)
    done = await exec.run(argv, cwd=workdir, env=ENVIRONMENT)
    if done.exit_code != 0:
        raise _no_repository(workdir, done)
    lines = _decoded(done.stdout).split("\n")
    if len(lines) != 5:
        raise _invalid("The repository's path has a line break, which is not supported")
    top, own, shared, prefix, _ = lines
    shared = posixpath.normpath(posixpath.join(top, prefix, shared))
    await _check_inside(files, top, own, shared)
    folder = (await files.stat(top)).path
    last = {key: value for _, key, value in settings}
    return Repository(exec, top, folder, own, prefix, options, last)


async def _configuration(exec: ExecOps, workdir: str) -> list[tuple[str, str, str]]:
    argv = ("git", "--no-pager", "config", "--list", "-z", "--show-scope")
    try:
        done = await exec.run(
            argv, cwd=workdir, env=CONFIG_ENVIRONMENT, max_output=MAX_LISTING_BYTES
        )
    except ToolFailure as problem:
        if problem.kind is not ErrorKind.NOT_FOUND:
            raise
        raise _git_not_installed() from None
    if done.exit_code == 127:
        raise _git_not_installed()
    if done.exit_code == 129:
        raise ToolFailure(
            ErrorKind.EXECUTION_FAILED,
            "The git of this machine is older than 2.26 and cannot be used safely. "
            "Ask the user to install a newer one.",
        )
    if done.exit_code != 0:
        raise git_failure("config", done)
    if done.stdout_bytes > MAX_LISTING_BYTES:
        raise _refused("its configuration is too large")
    pieces = split_nul(done.stdout)
    found: list[tuple[str, str, str]] = []
    for scope, entry in zip(pieces[::2], pieces[1::2], strict=True):
        key, _, value = entry.partition("\n")
        found.append((scope, key, value))
    return found


def _options(settings: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    forced = {
        setting: None
        for scope, key, value in settings
        for setting in _overrides(scope, key, value, settings)
    }
    if len(forced) > MAX_OVERRIDES:
        raise _refused(f"its configuration names more than {MAX_OVERRIDES} programs")
    return tuple(part for setting in (*forced, *FORCED_SETTINGS) for part in ("-c", setting))


def _overrides(
    scope: str, key: str, value: str, settings: Sequence[tuple[str, str, str]]
) -> Iterable[str]:
    if key == "safe.directory" and scope in OWNER_SCOPES:
        yield f"{key}={value}"
    if key in PASSED_SETTINGS and scope in OWNER_SCOPES:
        # A value of the repository takes precedence over one of the machine.
        if not any(name == key and where not in OWNER_SCOPES for where, name, _ in settings):
            yield f"{key}={value}"
        return
    section, _, rest = key.partition(".")
    name, dot, last = rest.rpartition(".")
    harmless = HARMLESS_VALUES.get((section, last))
    if not dot or harmless is None:
        return
    if "=" in name or not name.isprintable():
        # `-c` parses such a name differently from a configuration file.
        raise _refused(f"its configuration has the unusual name {section}.{ascii(name)}")
    yield f"{section}.{name}.{last}={harmless}"
    if section == "hook":
        yield f"{section}.{name}.enabled=false"


async def _check_inside(files: FileOps, top: str, own: str, shared: str) -> None:
    """Check that no part of the repository lies outside the folders that the tools may use."""
    own_paths = [posixpath.join(own, name) for name in ("HEAD", "index")]
    shared_paths = [posixpath.join(shared, name) for name in SHARED_GIT_PATHS]
    paths = (top, own, shared, *own_paths, *shared_paths)
    await asyncio.gather(*(_check_path(files, path) for path in paths))
    stores = [posixpath.join(shared, "objects")]
    for _ in range(MAX_ALTERNATE_DEPTH):
        stores = [other for store in stores for other in await _alternates(files, store)]
        await asyncio.gather(*(_check_path(files, store) for store in stores))


async def _alternates(files: FileOps, store: str) -> list[str]:
    """The alternate object stores of an object store."""
    try:
        data = await files.read(posixpath.join(store, "info", "alternates"), limit=MAX_SHOWN_BYTES)
    except ToolFailure as problem:
        if problem.kind is ErrorKind.NOT_FOUND:
            return []
        raise
    lines = [line for line in _decoded(data).split("\n") if line and line[0] != "#"]
    if len(lines) > MAX_ALTERNATES or any(line.startswith('"') for line in lines):
        raise _refused("it borrows its objects from other repositories in an unusual way")
    return [posixpath.normpath(posixpath.join(store, line)) for line in lines]


async def _check_path(files: FileOps, path: str) -> None:
    try:
        await files.stat(path)
    except ToolFailure as problem:
        if problem.kind is ErrorKind.NOT_FOUND:
            return
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"The repository uses '{path}', which is outside the workspace. Only repositories "
            "wholly inside it may be used; explain this to the user.",
        ) from None


def split_nul(data: bytes) -> list[str]:
    """Split a list in which every entry ends with NUL."""
    return _decoded(data).split("\0")[:-1]


def _decoded(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


def join_nul(paths: Iterable[str]) -> bytes:
    """Join a list in which every entry ends with NUL."""
    return b"".join(path.encode(errors="surrogateescape") + b"\0" for path in paths)


def git_failure(what: str, done: CompletedProcess) -> ToolFailure:
    """The error of a git command that failed."""
    output = to_text(done.stderr[-MAX_STDERR_BYTES:] or done.stdout[-MAX_STDERR_BYTES:])[0].strip()
    hint = ""
    if ".lock': File exists" in output:
        hint = " Another git process may be running here: try again later, or ask the user."
    reason = output or f"exit code {done.exit_code}"
    return ToolFailure(
        ErrorKind.EXECUTION_FAILED,
        f"git {what} failed: {reason}{hint}",
        exit_code=done.exit_code,
    )


def _no_repository(workdir: str, done: CompletedProcess) -> ToolFailure:
    stderr = done.stderr.decode(errors="replace")
    if "not a git repository" in stderr:
        return ToolFailure(
            ErrorKind.NOT_FOUND,
            f"'{workdir}' is not in a git repository. Use a `workdir` that is, or "
            "continue without git.",
        )
    if "dubious ownership" in stderr:
        return _refused("it belongs to another user of this machine")
    if "must be run in a work tree" in stderr or "bare repository" in stderr:
        return _refused("it has no working files (a bare repository)")
    return git_failure("rev-parse", done)


def _refused(why: str) -> ToolFailure:
    return ToolFailure(
        ErrorKind.PERMISSION_DENIED,
        f"This repository cannot be used: {why}. Explain this to the user.",
    )


def _invalid(problem: str) -> ToolFailure:
    return ToolFailure(ErrorKind.INVALID_PARAMS, f"{problem}.")


def _git_not_installed() -> ToolFailure:
    return ToolFailure(
        ErrorKind.NOT_FOUND,
        "git is not installed on this machine. Continue without it, or ask the user to install it.",
    )
