"""The files in a workspace that neither file tools nor commands may change."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind

PROFILES = frozenset(
    {
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv",
        ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".envrc",
        ".xprofile", ".xinitrc", ".xsessionrc", ".pam_environment", ".gitconfig", ".inputrc",
    }
)  # fmt: skip
FOLDERS = {
    ".git": "git runs and obeys what is in it",
    ".husky": "git runs what is in it",
    ".ssh": "it says who may log in",
    ".gnupg": "it holds keys",
    ".evoclaw": "it holds our own settings and skills",
}
BELOW_CONFIG = frozenset({"autostart", "fish", "systemd", "git", "environment.d"})
OURS = frozenset({"agent.toml", "evoclaw.toml"})


def check_change(path: str, inside: str) -> None:
    """Refuse to change a protected file, named by its path below the root."""
    if why := _why(inside.casefold().split("/")):
        raise ToolFailure(
            ErrorKind.PERMISSION_DENIED,
            f"'{path}' is protected: {why}. Explain to the user what should be changed in it.",
        )


def _why(parts: list[str]) -> str:
    for part in parts:
        # Some file systems take these for the same name.
        if why := FOLDERS.get(part.rstrip(". ")):
            return why
    if any(
        one == ".config" and two in BELOW_CONFIG for one, two in zip(parts, parts[1:], strict=False)
    ):
        return "the system runs or obeys what is in it"
    if parts[-1] in PROFILES:
        return "a program runs or obeys it by itself"
    return "it is our own settings" if parts[-1] in OURS else ""


DEEPEST = 4
MOST = 20_000
"""Entries looked at: a hook deeper in a huge tree than this belongs to something vendored."""
GIT = ("hooks", "config", "config.worktree", "info/attributes")
"""Of a repository: what makes git run programs. The rest git must be able to write."""
LARGEST = 64 << 10
OBEYED = re.compile(
    rb"hookspath|fsmonitor|command|pager|editor|program|helper|askpass|textconv|driver|external"
    rb"|attributesfile|\[\s*(alias|filter|include|diff|merge|credential|gpg|url|uploadpack)",
    re.IGNORECASE,
)
"""In the configuration of a repository: what makes git run programs, or read more of it."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SKIPPED = frozenset({"node_modules", "__pycache__", ".venv", "venv", ".tox", "site-packages"})
ALONE = tuple(sorted(PROFILES | OURS | (set(FOLDERS) - {".git"})))
"""Names that are protected as they are."""


def guarded(workspace: str) -> tuple[str, ...]:
    """What in a workspace no command may change; a missing folder of hooks is made, empty."""
    found: list[str] = []
    for folder, names in _folders(workspace):
        present = set(names)
        found += [f"{folder}/{name}" for name in ALONE if name in present]
        if ".git" in present:
            found += _of_git(Path(folder, ".git"))
        if ".config" in present:
            found += [f"{folder}/.config/{name}" for name in sorted(BELOW_CONFIG)]
    return tuple(path for path in found if os.path.lexists(path) and not Path(path).is_symlink())


def absent(workspace: str) -> tuple[str, ...]:
    """The names that would be protected at the top of a workspace, were they there.

    A cage cannot keep a file from being made without making it first, which would litter every
    workspace: these are looked for afterwards.
    """
    return tuple(name for name in (*ALONE, ".git") if not os.path.lexists(f"{workspace}/{name}"))


def set_aside(workspace: str, name: str) -> str:
    """Rename what appeared under a protected name; its new one, or nothing if it may stay.

    It was made by a command: no link in it is followed.
    """
    folder = os.open(workspace, FOLDER)
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        if name == ".git" and is_plain(folder):
            return ""
        aside = f"{name}.refused-{secrets.token_hex(3)}"
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return ""
    finally:
        os.close(folder)
    return aside


def is_plain(folder: int) -> bool:
    """Whether the repository that appeared in a folder makes git run nothing."""
    with ExitStack() as stack:

        def held(name: str, within: int, flags: int) -> int:
            found = os.open(name, flags | os.O_NOFOLLOW, dir_fd=within)
            stack.callback(os.close, found)
            return found

        try:
            git = held(".git", folder, FOLDER)
            names = set(os.listdir(git))  # noqa: PTH208 - of a descriptor
            if names & {"commondir", "config.worktree"}:
                return False
            if "hooks" in names:
                hooks = os.listdir(held("hooks", git, FOLDER))
                if not all(one.endswith(".sample") for one in hooks):
                    return False
            if "config" not in names:
                return True
            text = os.read(held("config", git, os.O_RDONLY | os.O_NONBLOCK), LARGEST)
        except OSError:
            return False
    return len(text) < LARGEST and not OBEYED.search(text)


def _of_git(path: Path) -> list[str]:
    if not path.is_dir() or path.is_symlink():
        # The file of a worktree or a submodule says where its repository is.
        return [str(path)]
    with suppress(OSError):
        folder = os.open(path, FOLDER)
        try:
            # As git itself makes it; without it there is nothing to mount over.
            os.mkdir("hooks", 0o755, dir_fd=folder)
        finally:
            os.close(folder)
    found = [str(path / name) for name in GIT]
    with suppress(OSError):
        found += [str(module / name) for module in (path / "modules").iterdir() for name in GIT]
    return found


def _folders(top: str) -> Iterator[tuple[str, list[str]]]:
    """The folders of a workspace, outermost first, and what is in each."""
    todo, looked = [(top, 0)], 0
    while todo and looked < MOST:
        folder, depth = todo.pop(0)
        try:
            with os.scandir(folder) as entries:
                inner = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        looked += len(inner)
        yield folder, [entry.name for entry in inner]
        if depth < DEEPEST:
            todo += [
                (entry.path, depth + 1)
                for entry in inner
                if entry.is_dir(follow_symlinks=False)
                and entry.name not in SKIPPED
                and entry.name not in FOLDERS
            ]
