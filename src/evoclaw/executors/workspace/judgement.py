"""Judges what a command left in a workspace: what is new or changed and may run by itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from evoclaw.executors.git_layout import (
    REBASE_STEPS_FILE,
    adds_harmful_setting,
    git_settings,
    harmful_setting,
    link_in_git_file,
    runs_commands_in_rebase,
)
from evoclaw.executors.workspace.files import WorkspaceFiles
from evoclaw.executors.workspace.named_files import NamedFiles, owners_settings
from evoclaw.executors.workspace.snapshot import (
    SensitiveEntry,
    WorkspaceSnapshot,
    folders_above,
    is_below,
    parents_of,
)


class WorkspaceJudge:
    """Compares the scan after a command with the one before it."""

    def __init__(self, files: WorkspaceFiles, named: NamedFiles) -> None:
        self._files, self._named = files, named
        self.created: set[str] = set()
        """Repositories and `.git` files that commands created: commands may change them, and what
        they are changed to is checked."""

    def keep_created(self, snapshot: WorkspaceSnapshot) -> None:
        """Forget what the owner has replaced, or changed to run programs: it is the owner's."""
        self.created = {
            path
            for path in self.created
            if path in snapshot.repositories or path in snapshot.entries
            if not harmful_setting(self._files.text(f"{path}/config") or "")
        }

    def planted(
        self, before: WorkspaceSnapshot, after: WorkspaceSnapshot, mounted: Iterable[str]
    ) -> list[str]:
        """What is new or changed since a command started and not known to be harmless."""
        # A file that the owner replaced meanwhile is no longer mounted: the kernel drops the mount.
        read_only = {
            path
            for path in mounted
            if (known := before.identity(path)) is not None and known == after.identity(path)
        }
        changed = [
            (path, entry)
            for path, entry in after.entries.items()
            if (known := before.entries.get(path)) is None or known.signature != entry.signature
        ]
        suspects = {
            path: entry
            for path, entry in sorted(changed)
            if path not in read_only and not any(above in read_only for above in parents_of(path))
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
        outermost = [
            path for path in found if not any(above in found for above in parents_of(path))
        ]
        new = {*after.repositories, *(path for path in suspects if path.endswith("/.git"))}
        new -= {*before.repositories, *before.entries}
        self.created |= {
            path
            for path in new
            if path not in found and f"{path}/HEAD" not in found
            if not any(above in found for above in parents_of(path))
        }
        return outermost

    def _run_in_new_work_tree(self, path: str, before: WorkspaceSnapshot) -> Iterator[str]:
        """Files that the settings of an older repository make git run in a new work tree of it."""
        folder = os.path.dirname(path)
        target = os.path.normpath(
            os.path.join(folder, link_in_git_file(self._files.text(path) or "") or "/")
        )
        common = os.path.dirname(os.path.dirname(target))
        if (
            common in before.repositories
            and os.path.basename(os.path.dirname(target)) == "worktrees"
        ):
            for named in self._named.named_by(common, folder, owners_settings()):
                if is_below(named, folder):
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
        text = self._files.text(path)
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
            return os.path.basename(target) == ".git" and self._files.is_inside(target)
        if name == REBASE_STEPS_FILE:
            return not runs_commands_in_rebase(text)
        if name == ".git":
            return self._is_harmless_link(path, text, before, after)
        return False

    def _works_inside(self, repository: str, text: str) -> bool:
        """Whether the files of a repository are in a folder that commands may change anyway."""
        return all(
            self._files.is_inside(os.path.normpath(os.path.join(repository, setting.value)))
            for setting in git_settings(text)
            if (setting.section, setting.name) == ("core", "worktree")
        )

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
        back = self._files.text(f"{target}/gitdir")
        if back is not None:
            return os.path.normpath(os.path.join(target, back.strip())) == path
        try:
            settings = list(git_settings(self._files.text(f"{target}/config") or ""))
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
            for above in folders_above(path, self._files.roots)
        )
