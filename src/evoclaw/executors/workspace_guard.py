"""`WorkspaceGuard`: no command leaves a file that the owner's own programs run by themselves.

Before a command, the sandbox mounts what it must not change read-only. But git must create files
in its folder, and a file that does not exist cannot be mounted: so after a command the whole
workspace is scanned, and what is new or changed and not known to be harmless is renamed.

A folder whose change time (ctime, which no command can set) is the same has the same names in it:
only changed folders are read again.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from evoclaw.executors.beneath import open_beneath
from evoclaw.executors.git_layout import (
    GIT_CHECKED_FILES,
    GIT_EMPTY_FOLDERS,
    GIT_INERT_FOLDERS,
    GIT_INFO_NAMES,
    GIT_NESTED_FOLDERS,
    MAX_GIT_TEXT_BYTES,
    REBASE_STEPS_FILE,
    SAMPLE_HOOK_SUFFIX,
    adds_harmful_setting,
    git_settings,
    harmful_setting,
    is_inert_git_file,
    link_in_git_file,
    runs_commands_in_rebase,
)
from evoclaw.executors.protected_paths import (
    PROTECTED_FILES,
    PROTECTED_FOLDERS,
    PROTECTED_INNER_NAMES,
)

# Paths are texts here: `Path` objects would make a scan several times slower.
# ruff: noqa: PTH101, PTH111, PTH114, PTH118, PTH119, PTH120, PTH123

MAX_MOUNT_DEPTH = 4
"""Protected paths in deeper folders are checked after a command, not mounted read-only."""
MAX_PROTECTED_PATHS = 400
SKIPPED_FOLDERS = frozenset(
    {"node_modules", "__pycache__", ".venv", "venv", ".tox", "site-packages"}
)
"""Folders of installed packages: what is in them is checked, not mounted read-only."""
RACY_NS = 2_000_000_000
"""A folder that changed this shortly before it was read may have changed again unnoticed."""
FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
REFUSED_SUFFIX = ".refused-"
MAX_INCLUDE_DEPTH = 3
"""How far settings that include others are followed."""
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".js")

Signature = tuple[int, ...]


class SensitiveEntry(NamedTuple):
    """A path that programs run or obey by themselves."""

    signature: Signature
    """What changes when it is replaced or written."""
    kind: str
    """`name`: protected by its name; `git`: decided by its content; `link`: not a plain file in a
    repository; else it is never harmless."""
    repository: str = ""
    """The folder of the repository that it belongs to."""


@dataclass(frozen=True, slots=True)
class WorkspaceSnapshot:
    """What was found in one scan."""

    entries: dict[str, SensitiveEntry] = field(default_factory=dict[str, SensitiveEntry])
    """By path."""
    repositories: dict[str, bool] = field(default_factory=dict[str, bool])
    """The folders that git takes for a repository (`.git` and others); whether each is complete."""
    folders: dict[str, Signature] = field(default_factory=dict[str, Signature])
    unreadable: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])
    """Folders that could not be listed."""
    settings: dict[str, str] = field(default_factory=dict[str, str])
    """The texts of git's configuration files."""
    named: dict[str, Signature] = field(default_factory=dict[str, Signature])
    """Existing files that the owner's git settings make git run or read."""

    def identity(self, path: str) -> Signature | None:
        """Device and inode of a path; None if it was not found."""
        if (entry := self.entries.get(path)) is not None:
            return entry.signature[:2]
        known = self.folders.get(path) or self.named.get(path)
        return None if known is None else known[:2]


class _Listing(NamedTuple):
    """What is of interest in a folder."""

    signature: Signature
    read_ns: int
    folders: tuple[tuple[str, str], ...]
    """Name and role."""
    entries: tuple[tuple[str, str], ...]
    """Name and kind."""
    repository: bool


TREE, BARE, GIT, NESTED, INERT, OBJECTS, HOOKS, INFO, WHOLE = (
    *("tree", "bare", "git", "nested", "inert", "objects", "hooks", "info", "whole"),
)
"""The roles of a folder: of the project; of a repository that is not below a `.git`; `.git` itself;
between a repository and those of its submodules; without anything that git obeys; the same, but not
looked into; with programs; with settings; protected with everything in it."""


class WorkspaceGuard:
    """Scans the folders that sandboxed commands may change."""

    def __init__(self, roots: Iterable[str], hidden: Iterable[str] = ()) -> None:
        """Set the folders, real and absolute, and those in them that commands cannot see."""
        self._roots = tuple(dict.fromkeys(roots))
        self._hidden = frozenset(hidden)
        self._listings: dict[tuple[str, str], _Listing] = {}
        self._created: set[str] = set()
        """Repositories and `.git` files that commands created: commands may change them, and what
        they are changed to is checked."""
        self._lock = threading.Lock()

    def scan(self, before: WorkspaceSnapshot | None = None) -> WorkspaceSnapshot:
        """What is in the folders now.

        Args:
            before: A scan before a command. A folder that the command made unreadable for us is
                made readable again.
        """
        with self._lock:
            return self._scan(before)

    def _scan(self, before: WorkspaceSnapshot | None) -> WorkspaceSnapshot:
        found = WorkspaceSnapshot()
        listings: dict[tuple[str, str], _Listing] = {}
        todo = [(root, TREE, "") for root in self._roots]
        while todo:
            folder, role, repository = todo.pop()
            try:
                listing = self._readable_listing(folder, role, before)
                repository = folder if listing.repository else repository
                found.entries.update(_sensitive(folder, listing, repository))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                found.unreadable[folder] = _signature_if_seen(folder)
                continue
            listings[folder, role] = listing
            found.folders[folder] = listing.signature
            if listing.repository:
                found.repositories[folder] = True
            for name, inner in listing.folders:
                path = f"{folder}/{name}"
                if path not in self._hidden and path not in self._roots:
                    todo.append((path, inner, repository))
        self._listings = listings
        self._read_settings(found)
        return found

    def _read_settings(self, found: WorkspaceSnapshot) -> None:
        for path, entry in found.entries.items():
            if entry.kind == "git" and os.path.basename(path) in ("config", "config.worktree"):
                found.settings[path] = self._text(path) or ""
        for repository in found.repositories.keys() - self._created:
            work_tree = repository.removesuffix("/.git")
            for path in self._named_by(repository, work_tree):
                if (signature := _signature(path)) is not None:
                    found.named[path] = signature

    def _readable_listing(
        self, folder: str, role: str, before: WorkspaceSnapshot | None
    ) -> _Listing:
        try:
            listing = self._listing(folder, role)
            # Listed, but nothing in it can be looked at.
            for name, _ in listing.entries[:1]:
                _signature(f"{folder}/{name}")
        except PermissionError:
            if before is None or before.unreadable.get(folder, ()) == _signature_if_seen(folder):
                raise
            self._make_readable(folder)
            return self._listing(folder, role)
        return listing

    def _make_readable(self, folder: str) -> None:
        """Allow our user to read a folder and those above it; no link is followed."""
        root = max((root for root in self._roots if _is_below(folder, root)), key=len)
        held = os.open(root, FOLDER_FLAGS)
        try:
            for name in folder[len(root) + 1 :].split("/"):
                held, above = os.open(name, FOLDER_FLAGS, dir_fd=held), held
                os.close(above)
                mode = os.fstat(held).st_mode
                if mode & 0o700 != 0o700:
                    # Through /proc: this kind of descriptor cannot be used itself.
                    os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(mode) | 0o700)
        finally:
            os.close(held)

    def _listing(self, folder: str, role: str) -> _Listing:
        seen = os.lstat(folder)
        if not stat.S_ISDIR(seen.st_mode):
            raise FileNotFoundError(folder)
        signature = (seen.st_dev, seen.st_ino, seen.st_ctime_ns)
        known = self._listings.get((folder, role))
        if (
            known is not None
            and known.signature == signature
            and known.read_ns - seen.st_ctime_ns > RACY_NS
        ):
            return known
        now = time.time_ns()
        with os.scandir(folder) as scanned:
            kinds = {entry.name: _kind(entry) for entry in scanned}
        repository = role == GIT or (role in (TREE, BARE, NESTED) and _is_repository(kinds))
        folders: list[tuple[str, str]] = []
        entries: list[tuple[str, str]] = []
        for name, kind in kinds.items():
            inner, sensitive = _roles(os.path.basename(folder), role, repository, name, kind)
            if sensitive:
                entries.append((name, sensitive))
            if inner and kind == "folder":
                folders.append((name, inner))
        return _Listing(signature, now, tuple(folders), tuple(entries), repository)

    def protected(self, snapshot: WorkspaceSnapshot) -> tuple[str, ...]:
        """The paths that the next command may not change: what its sandbox mounts read-only."""
        with self._lock:
            return self._protected(snapshot)

    def _protected(self, snapshot: WorkspaceSnapshot) -> tuple[str, ...]:
        # What the owner has changed since, or replaced, is the owner's.
        self._created = {
            path
            for path in self._created
            if path in snapshot.repositories or path in snapshot.entries
            if not harmful_setting(self._text(f"{path}/config") or "")
        }
        found: dict[str, None] = {}
        for path, entry in snapshot.entries.items():
            if not self._is_mountable(path, entry):
                continue
            parent = os.path.dirname(path)
            in_hooks = os.path.basename(parent) in ("hooks", *GIT_EMPTY_FOLDERS)
            found[parent if entry.repository and in_hooks else path] = None
        for repository in snapshot.repositories:
            if repository not in self._created and self._is_near(repository):
                found |= dict.fromkeys(_held_places(repository))
        found |= dict.fromkeys(path for path in snapshot.named if self._is_near(path))
        outermost = [
            path
            for path in sorted(found)
            if not any(above in found for above in _above(path, self._roots))
        ]
        return tuple(sorted(outermost, key=lambda path: path.count("/"))[:MAX_PROTECTED_PATHS])

    def _is_mountable(self, path: str, entry: SensitiveEntry) -> bool:
        if entry.kind == "link" or os.path.islink(path) or not self._is_near(path):
            return False
        if path in self._created or entry.repository in self._created:
            return False
        if any(f"{above}/.git" in self._created for above in _above(path, self._roots)):
            return False
        # `git worktree remove` and `move` must be able to change these.
        return os.path.basename(path) not in ("commondir", "gitdir", REBASE_STEPS_FILE)

    def _is_near(self, path: str) -> bool:
        """Whether it is mounted: not in a very deep folder, nor in an installed package."""
        root = max((root for root in self._roots if _is_below(path, root)), key=len)
        parts = path[len(root) :].strip("/").split("/")[:-1]
        if ".git" in parts:
            parts = parts[: parts.index(".git")]
        return len(parts) <= MAX_MOUNT_DEPTH and not SKIPPED_FOLDERS.intersection(parts)

    def _named_by(self, repository: str, work_tree: str) -> Iterator[str]:
        """Files of a project that the owner's settings make git run or read there."""
        files = [f"{repository}/config", f"{repository}/config.worktree"]
        texts = {path: self._text(path) for path in files}
        for path, text in (texts | _owners_settings()).items():
            yield from self._named_in(text, work_tree, os.path.dirname(path))

    def _named_in(
        self, text: str | None, work_tree: str, folder: str, depth: int = 0
    ) -> Iterator[str]:
        for word, is_path in _words_in_settings(text):
            for base in (work_tree, folder):
                path = os.path.normpath(os.path.join(base, os.path.expanduser(word)))
                if self._is_run_by_git(path, word, is_path) and not _is_below(work_tree, path):
                    yield path
                    if is_path and depth < MAX_INCLUDE_DEPTH:
                        inner = self._text(path)
                        yield from self._named_in(
                            inner, work_tree, os.path.dirname(path), depth + 1
                        )

    def _is_run_by_git(self, path: str, word: str, is_path: bool) -> bool:
        if path in self._roots or not any(_is_below(path, root) for root in self._roots):
            return False
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return False
        if is_path and stat.S_ISDIR(mode):
            return True
        # A program without a slash is not looked for in the work tree; a script may be.
        return stat.S_ISREG(mode) and (is_path or "/" in word or word.endswith(SCRIPT_SUFFIXES))

    def planted(
        self, before: WorkspaceSnapshot, after: WorkspaceSnapshot, mounted: Iterable[str]
    ) -> list[str]:
        """What is new or changed since a command started and not known to be harmless."""
        with self._lock:
            return self._planted(before, after, mounted)

    def _planted(
        self, before: WorkspaceSnapshot, after: WorkspaceSnapshot, mounted: Iterable[str]
    ) -> list[str]:
        # A file that the owner replaced meanwhile is no longer mounted: the kernel drops the mount.
        read_only = {
            path
            for path in mounted
            if (known := before.identity(path)) is not None and known == after.identity(path)
        }
        suspects = {
            path: entry
            for path, entry in sorted(after.entries.items())
            if (known := before.entries.get(path)) is None or known.signature != entry.signature
            if path not in read_only and not any(above in read_only for above in _parents(path))
        }
        found: dict[str, None] = {}
        for path, entry in suspects.items():
            if entry.kind != "name" and not self._is_harmless(path, entry, before, after):
                found[self._to_refuse(path, entry, before)] = None
        for path, entry in suspects.items():
            if entry.kind == "name" and not self._is_cloned(path, before, after, found):
                found[path] = None
            elif os.path.basename(path) == ".git" and path not in found:
                found |= dict.fromkeys(self._run_in_new_work_tree(path, before))
        found |= {
            path: None
            for path, signature in after.named.items()
            if before.named.get(path) != signature and path not in read_only
        }
        outermost = [path for path in found if not any(above in found for above in _parents(path))]
        new = {*after.repositories, *(path for path in suspects if path.endswith("/.git"))}
        new -= {*before.repositories, *before.entries}
        self._created |= {
            path
            for path in new
            if path not in found and f"{path}/HEAD" not in found
            if not any(above in found for above in _parents(path))
        }
        return outermost

    def _run_in_new_work_tree(self, path: str, before: WorkspaceSnapshot) -> Iterator[str]:
        """Files that the settings of an older repository make git run in a new work tree of it."""
        folder = os.path.dirname(path)
        target = os.path.normpath(
            os.path.join(folder, link_in_git_file(self._text(path) or "") or "/")
        )
        common = os.path.dirname(os.path.dirname(target))
        if (
            common in before.repositories
            and os.path.basename(os.path.dirname(target)) == "worktrees"
        ):
            for named in self._named_by(common, folder):
                if _is_below(named, folder):
                    yield named

    def _to_refuse(self, path: str, entry: SensitiveEntry, before: WorkspaceSnapshot) -> str:
        """The whole repository if it is new, else only what was put into it."""
        repository = entry.repository
        if repository and repository not in before.repositories and entry.kind != "link":
            return repository if repository.endswith("/.git") else f"{repository}/HEAD"
        return path

    def _is_harmless(
        self,
        path: str,
        entry: SensitiveEntry,
        before: WorkspaceSnapshot,
        after: WorkspaceSnapshot,
    ) -> bool:
        if entry.kind != "git" or not stat.S_ISREG(entry.signature[-1]):
            return False
        text = self._text(path)
        if text is None:
            return False
        folder, name = os.path.split(path)
        if name in ("config", "config.worktree"):
            known = before.settings.get(path)
            if known is not None and text == known:
                return True
            return not adds_harmful_setting(known or "", text) and self._works_inside(folder, text)
        if name == "commondir":
            common = os.path.dirname(os.path.dirname(folder))
            return (
                text.strip() == "../.."
                and os.path.basename(os.path.dirname(folder)) == "worktrees"
                and common in after.repositories
            )
        if name == "gitdir":
            target = os.path.normpath(os.path.join(folder, text.strip()))
            return os.path.basename(target) == ".git" and self._is_inside(target)
        if name == REBASE_STEPS_FILE:
            return not runs_commands_in_rebase(text)
        if name == ".git":
            return self._is_harmless_link(path, text, before, after)
        return False

    def _works_inside(self, repository: str, text: str) -> bool:
        """Whether the files of a repository are in a folder that commands may change anyway."""
        return all(
            self._is_inside(os.path.normpath(os.path.join(repository, setting.value)))
            for setting in git_settings(text)
            if (setting.section, setting.name) == ("core", "worktree")
        )

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return any(_is_below(real, root) for root in self._roots)

    def _is_harmless_link(
        self, path: str, text: str, before: WorkspaceSnapshot, after: WorkspaceSnapshot
    ) -> bool:
        """Whether a `.git` file names a repository that was checked and is meant for its folder."""
        folder = os.path.dirname(path)
        target = os.path.normpath(os.path.join(folder, link_in_git_file(text) or "/"))
        if target not in after.repositories or os.path.realpath(target) != target:
            return False
        if target not in before.repositories:
            return True
        # An older repository may have settings that are harmless only in its own folder.
        back = self._text(f"{target}/gitdir")
        if back is not None:
            return os.path.normpath(os.path.join(target, back.strip())) == path
        try:
            settings = list(git_settings(self._text(f"{target}/config") or ""))
        except ValueError:
            return False
        return any(
            (setting.section, setting.name) == ("core", "worktree")
            and os.path.normpath(os.path.join(target, setting.value)) == folder
            for setting in settings
        )

    def _is_cloned(
        self,
        path: str,
        before: WorkspaceSnapshot,
        after: WorkspaceSnapshot,
        refused: Iterable[str],
    ) -> bool:
        """Whether it came with a repository that the command cloned or checked out elsewhere."""
        return any(
            f"{above}/.git" not in before.entries
            and f"{above}/.git" not in before.repositories
            and above not in before.folders
            and (f"{above}/.git" in after.entries or f"{above}/.git" in after.repositories)
            and f"{above}/.git" not in refused
            for above in _above(path, self._roots)
        )

    def _text(self, path: str) -> str | None:
        """What a plain file contains; None if it is none, or too long."""
        root = max((root for root in self._roots if _is_below(path, root)), key=len)
        try:
            held = os.open(root, FOLDER_FLAGS)
            try:
                file = open_beneath(
                    held,
                    path[len(root) + 1 :],
                    os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW,
                    links=False,
                    mounts=True,
                )
            finally:
                os.close(held)
        except OSError:
            return None
        try:
            data = os.read(file, MAX_GIT_TEXT_BYTES + 1)
        except OSError:
            return None
        finally:
            os.close(file)
        return None if len(data) > MAX_GIT_TEXT_BYTES else data.decode(errors="replace")

    def is_urgent(self, path: str, before: WorkspaceSnapshot, after: WorkspaceSnapshot) -> bool:
        """Whether the owner's programs may run it at once: not if its folder is new to them too."""
        entry = after.entries.get(path)
        return entry is None or entry.kind != "name" or os.path.dirname(path) in before.folders

    def refuse(self, path: str) -> str:
        """Rename what a command left, so that nothing runs it; what was done with it.

        No link in the path is followed.
        """
        suffix = f"{REFUSED_SUFFIX}{secrets.token_hex(3)}"
        with _parent_of(path, self._roots) as (parent, name):
            kind = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                os.unlink(name, dir_fd=parent)
                return "removed"
            os.rename(name, name + suffix, src_dir_fd=parent, dst_dir_fd=parent)
            if stat.S_ISDIR(kind):
                _disable_repository(parent, name + suffix, suffix)
        return f"now {os.path.basename(path)}{suffix}"

    def relative(self, path: str) -> str:
        """The path as the user knows it: from the workspace, or absolute."""
        return path.removeprefix(self._roots[0] + "/")


def _sensitive(
    folder: str, listing: _Listing, repository: str
) -> Iterator[tuple[str, SensitiveEntry]]:
    for name, kind in listing.entries:
        path = f"{folder}/{name}"
        if (signature := _signature(path)) is not None:
            yield path, SensitiveEntry(signature, kind, repository)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def _is_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these names for a repository."""
    present = set(names)
    return "HEAD" in present and ("commondir" in present or {"objects", "refs"} <= present)


def _roles(folder: str, role: str, repository: bool, name: str, kind: str) -> tuple[str, str]:
    """The role of a folder in a folder, and why an entry is sensitive; empty for neither."""
    if role == WHOLE:
        return WHOLE, "name"
    if repository:
        inner, sensitive = _roles_in_repository(name, kind)
        if role in (TREE, BARE) and kind == "folder":
            # Not below `.git`: git may find another repository anywhere in it.
            return (inner if inner in (HOOKS, INFO) else BARE if inner else TREE), sensitive
        return inner, sensitive
    if role in (INERT, OBJECTS, HOOKS, INFO):
        return _roles_below_git(folder, role, name, kind)
    if role == NESTED:
        return (NESTED, "") if kind == "folder" else ("", "link" if kind != "file" else "")
    if role == BARE and kind in ("link", "special"):
        return "", "link"
    if role == BARE and name == REBASE_STEPS_FILE:
        return "", "git"
    return _roles_in_project(folder, role, name.lower(), kind)


def _roles_in_project(folder: str, role: str, name: str, kind: str) -> tuple[str, str]:
    if name == ".git":
        return (GIT, "") if kind == "folder" else ("", "git")
    if name == ".evoclaw":
        # Our own data folder changes while commands run.
        return "", "name"
    inner = PROTECTED_INNER_NAMES.get(folder.lower(), ())
    if name in inner or name in PROTECTED_FOLDERS or name in PROTECTED_FILES:
        return WHOLE, "name"
    return role, ""


def _roles_in_repository(name: str, kind: str) -> tuple[str, str]:
    if kind == "folder":
        if name in ("objects", "lfs"):
            return OBJECTS, ""
        if name in GIT_INERT_FOLDERS:
            return INERT, ""
        if name in GIT_NESTED_FOLDERS:
            return NESTED, ""
        if name == "hooks" or name in GIT_EMPTY_FOLDERS:
            return HOOKS, ""
        return (INFO, "") if name == "info" else ("", "other")
    if kind != "file":
        return "", "link"
    if name in GIT_CHECKED_FILES:
        return "", "git"
    return "", "" if is_inert_git_file(name) else "other"


def _roles_below_git(folder: str, role: str, name: str, kind: str) -> tuple[str, str]:
    if kind in ("link", "special"):
        return "", "link"
    if role == HOOKS:
        return TREE, "" if kind == "file" and name.endswith(SAMPLE_HOOK_SUFFIX) else "other"
    if role == INFO:
        return TREE, "" if kind == "file" and name in GIT_INFO_NAMES else "other"
    if role == OBJECTS:
        return (INERT if name in ("pack", "info") else ""), ""
    if name == REBASE_STEPS_FILE and folder == "rebase-merge":
        return "", "git"
    return INERT, ""


def _signature(path: str) -> Signature | None:
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(seen.st_mode):
        # What is in a folder has signatures of its own.
        return seen.st_dev, seen.st_ino, seen.st_mode
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns, seen.st_size, seen.st_mode


def _signature_if_seen(folder: str) -> Signature | None:
    try:
        seen = os.lstat(folder)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_ctime_ns


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _parents(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) not in ("", "/"):
        yield path


def _above(path: str, roots: Iterable[str]) -> Iterator[str]:
    """The folders above a path, up to but without the root."""
    for parent in _parents(path):
        if parent in roots:
            return
        yield parent


def _held_places(repository: str) -> Iterator[str]:
    """Paths in the owner's repository that are created empty so that they can be mounted."""
    try:
        held = os.open(repository, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if repository.endswith("/.git"):
            # As git itself creates it; without it there is nothing to mount over.
            with suppress(OSError):
                os.mkdir("hooks", 0o755, dir_fd=held)
        if stat.S_ISDIR(os.stat("hooks", dir_fd=held, follow_symlinks=False).st_mode):
            yield f"{repository}/hooks"
    except OSError:
        return
    finally:
        os.close(held)


def _words_in_settings(text: str | None) -> Iterator[tuple[str, bool]]:
    """What settings that may make git run or read something name; whether it is surely a path."""
    try:
        for setting in git_settings(text or ""):
            if setting.name in ("hookspath", "path", "attributesfile", "templatedir"):
                yield setting.value, True
            elif setting.harmful:
                yield from ((word, False) for word in setting.value.lstrip("!").split())
    except ValueError:
        return


def _owners_settings() -> dict[str, str | None]:
    """The texts of the owner's own git settings, which hold in every repository."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    found: dict[str, str | None] = {}
    for path in ("/etc/gitconfig", os.path.expanduser("~/.gitconfig"), f"{folder}/git/config"):
        with suppress(OSError), open(path, "rb") as file:
            found[path] = file.read(MAX_GIT_TEXT_BYTES).decode(errors="replace")
    return found


def _disable_repository(parent: int, name: str, suffix: str) -> None:
    """Take the `HEAD` of a refused repository away, so that git does not find it there either."""
    folder = os.open(name, FOLDER_FLAGS, dir_fd=parent)
    try:
        os.rename("HEAD", "HEAD" + suffix, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)


class _parent_of:
    """The descriptor of the folder of a path, and the last name of the path."""

    def __init__(self, path: str, roots: Iterable[str]) -> None:
        root = max((root for root in roots if _is_below(path, root)), key=len)
        self._root, (self._folder, self._name) = root, os.path.split(path[len(root) + 1 :])

    def __enter__(self) -> tuple[int, str]:
        root = os.open(self._root, FOLDER_FLAGS)
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY
            self._held = open_beneath(root, self._folder or ".", flags, links=False, mounts=True)
        finally:
            os.close(root)
        return self._held, self._name

    def __exit__(self, *_: object) -> None:
        os.close(self._held)
