"""The files in a workspace that neither file tools nor commands may change.

A hook, a shell profile or our own settings are code or rules in the guise of files. File tools
refuse to change them; for commands the sandbox mounts them read-only.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

PROFILE_NAMES = frozenset(
    {
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv",
        ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".envrc",
        ".xprofile", ".xinitrc", ".xsessionrc", ".pam_environment", ".gitconfig", ".inputrc",
    }
)  # fmt: skip
PROTECTED_FOLDERS = {
    ".git": "git runs and obeys what is in it",
    ".husky": "git runs what is in it",
    ".ssh": "it says who may log in",
    ".gnupg": "it holds keys",
    ".evoclaw": "it holds our own settings and skills",
}
PROTECTED_CONFIG_NAMES = frozenset({"autostart", "fish", "systemd", "git", "environment.d"})
OWN_SETTINGS_NAMES = frozenset({"agent.toml", "evoclaw.toml"})


def check_not_protected(path: str, inside: str) -> None:
    """Refuse to change a protected file, named by its path below the root."""
    if why := _protection_reason(inside.casefold().split("/")):
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is protected: {why}. Explain to the user what should be changed in it.",
        )


def _protection_reason(parts: list[str]) -> str:
    for part in parts:
        # Some file systems treat these as the same name.
        if why := PROTECTED_FOLDERS.get(part.rstrip(". ")):
            return why
    if any(
        part == ".config" and below in PROTECTED_CONFIG_NAMES
        for part, below in zip(parts, parts[1:], strict=False)
    ):
        return "the system runs or obeys what is in it"
    if parts[-1] in PROFILE_NAMES:
        return "a program runs or obeys it by itself"
    return "it is our own settings" if parts[-1] in OWN_SETTINGS_NAMES else ""


MAX_SCAN_DEPTH = 4
MAX_SCANNED_ENTRIES = 20_000
"""Entries that are scanned: a hook deeper in a huge tree belongs to a vendored package."""
GIT_EXECUTING_PATHS = ("hooks", "config", "config.worktree", "info/attributes")
"""Paths in a repository that make git run programs. Git must be able to write the rest."""
MAX_GIT_CONFIG_BYTES = 64 << 10
EXECUTING_GIT_SETTINGS = re.compile(
    rb"hookspath|fsmonitor|command|pager|editor|program|helper|askpass|textconv|driver|external"
    rb"|attributesfile|\[\s*(alias|filter|include|diff|merge|credential|gpg|url|uploadpack)",
    re.IGNORECASE,
)
"""Settings of a repository that make git run programs, or read further settings."""
OPEN_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", ".venv", "venv", ".tox", "site-packages"}
)
PROTECTED_NAMES = tuple(
    sorted(PROFILE_NAMES | OWN_SETTINGS_NAMES | (set(PROTECTED_FOLDERS) - {".git"}))
)
"""Names that are protected wherever they are."""


def protected_paths(workspace: str) -> tuple[str, ...]:
    """The paths in a workspace that no command may change; a missing hooks folder is created."""
    found: list[str] = []
    for folder, names in _folders(workspace):
        present = set(names)
        found += [f"{folder}/{name}" for name in PROTECTED_NAMES if name in present]
        if ".git" in present:
            found += _of_git(Path(folder, ".git"))
        if ".config" in present:
            found += [f"{folder}/.config/{name}" for name in sorted(PROTECTED_CONFIG_NAMES)]
    return tuple(path for path in found if os.path.lexists(path) and not Path(path).is_symlink())


def absent_protected_names(workspace: str) -> tuple[str, ...]:
    """Protected names that do not exist at the top of a workspace.

    A sandbox cannot keep a file from being created without creating it first, which would litter
    every workspace: these names are checked afterwards.
    """
    return tuple(
        name for name in (*PROTECTED_NAMES, ".git") if not os.path.lexists(f"{workspace}/{name}")
    )


def set_aside(workspace: str, name: str) -> str:
    """Rename what appeared under a protected name; its new name, or empty if it may stay.

    A command created it: no link in it is followed.
    """
    folder = os.open(workspace, OPEN_FOLDER_FLAGS)
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        if name == ".git" and is_plain_repository(folder):
            return ""
        new_name = f"{name}.refused-{secrets.token_hex(3)}"
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return ""
    finally:
        os.close(folder)
    return new_name


def is_plain_repository(folder: int) -> bool:
    """Whether a new repository in a folder makes git run no programs."""
    with ExitStack() as stack:

        def held(name: str, within: int, flags: int) -> int:
            found = os.open(name, flags | os.O_NOFOLLOW, dir_fd=within)
            stack.callback(os.close, found)
            return found

        try:
            git = held(".git", folder, OPEN_FOLDER_FLAGS)
            names = set(os.listdir(git))  # noqa: PTH208 - of a descriptor
            if names & {"commondir", "config.worktree"}:
                return False
            if "hooks" in names:
                hooks = os.listdir(held("hooks", git, OPEN_FOLDER_FLAGS))
                if not all(hook.endswith(".sample") for hook in hooks):
                    return False
            if "config" not in names:
                return True
            text = os.read(held("config", git, os.O_RDONLY | os.O_NONBLOCK), MAX_GIT_CONFIG_BYTES)
        except OSError:
            return False
    return len(text) < MAX_GIT_CONFIG_BYTES and not EXECUTING_GIT_SETTINGS.search(text)


def _of_git(path: Path) -> list[str]:
    if not path.is_dir() or path.is_symlink():
        # The `.git` file of a worktree or a submodule names its repository.
        return [str(path)]
    with suppress(OSError):
        folder = os.open(path, OPEN_FOLDER_FLAGS)
        try:
            # As git itself creates it; without it there is nothing to mount over.
            os.mkdir("hooks", 0o755, dir_fd=folder)
        finally:
            os.close(folder)
    found = [str(path / name) for name in GIT_EXECUTING_PATHS]
    with suppress(OSError):
        found += [
            str(module / name)
            for module in (path / "modules").iterdir()
            for name in GIT_EXECUTING_PATHS
        ]
    return found


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """The folders of a workspace, outermost first, and the names in each."""
    todo, scanned = [(top, 0)], 0
    while todo and scanned < MAX_SCANNED_ENTRIES:
        folder, depth = todo.pop(0)
        try:
            with os.scandir(folder) as entries:
                inner = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        scanned += len(inner)
        yield folder, [entry.name for entry in inner]
        if depth < MAX_SCAN_DEPTH:
            todo += [
                (entry.path, depth + 1)
                for entry in inner
                if entry.is_dir(follow_symlinks=False)
                and entry.name not in SKIPPED_FOLDERS
                and entry.name not in PROTECTED_FOLDERS
            ]
