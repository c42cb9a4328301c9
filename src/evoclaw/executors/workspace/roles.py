"""The role of each folder in a workspace, and which names in it programs run or obey."""

from __future__ import annotations

import os
from collections.abc import Iterable

from evoclaw.executors.git_layout import (
    GIT_CHECKED_FILES,
    GIT_EMPTY_FOLDERS,
    GIT_INERT_FOLDERS,
    GIT_INFO_NAMES,
    GIT_NESTED_FOLDERS,
    REBASE_STEPS_FILE,
    SAMPLE_HOOK_SUFFIX,
    is_inert_git_file,
)
from evoclaw.executors.protected_paths import (
    PROTECTED_FILES,
    PROTECTED_FOLDERS,
    PROTECTED_INNER_NAMES,
)

TREE, BARE, GIT, NESTED, INERT, OBJECTS, HOOKS, INFO, WHOLE = (
    *("tree", "bare", "git", "nested", "inert", "objects", "hooks", "info", "whole"),
)
"""The roles of a folder: of the project; of a repository that is not below a `.git`; `.git` itself;
between a repository and those of its submodules; without anything that git obeys; the same, but not
looked into; with programs; with settings; protected with everything in it."""


def kind_of(entry: os.DirEntry[str]) -> str:
    """`link`, `folder`, `file` or `special`."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "special"


def is_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these names for a repository."""
    present = set(names)
    return "HEAD" in present and ("commondir" in present or {"objects", "refs"} <= present)


def roles_of(folder: str, role: str, repository: bool, name: str, kind: str) -> tuple[str, str]:
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
