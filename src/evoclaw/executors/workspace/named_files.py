"""Files of a workspace that git's settings make git run or read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress

from evoclaw.executors.git_layout import MAX_GIT_TEXT_BYTES, git_settings
from evoclaw.executors.workspace.files import WorkspaceFiles
from evoclaw.executors.workspace.snapshot import is_below

MAX_INCLUDE_DEPTH = 3
"""How far settings that include others are followed."""
SCRIPT_SUFFIXES = (".sh", ".bash", ".py", ".pl", ".rb", ".js")


class NamedFiles:
    """Finds the files that the settings of a repository, and the owner's own, name."""

    def __init__(self, files: WorkspaceFiles) -> None:
        self._files = files

    def named_by(
        self, repository: str, work_tree: str, owners: Mapping[str, str | None]
    ) -> Iterator[str]:
        """Files of a project that the owner's settings make git run or read there."""
        files = [f"{repository}/config", f"{repository}/config.worktree"]
        texts = {path: self._files.text(path) for path in files}
        for path, text in {**texts, **owners}.items():
            yield from self._named_in(text, work_tree, os.path.dirname(path))

    def _named_in(
        self, text: str | None, work_tree: str, folder: str, depth: int = 0
    ) -> Iterator[str]:
        for word, is_path in _words_in_settings(text):
            for base in (work_tree, folder):
                path = os.path.normpath(os.path.join(base, os.path.expanduser(word)))
                if self._is_run_by_git(path, word, is_path) and not is_below(work_tree, path):
                    yield path
                    if is_path and depth < MAX_INCLUDE_DEPTH:
                        inner = self._files.text(path)
                        yield from self._named_in(
                            inner, work_tree, os.path.dirname(path), depth + 1
                        )

    def _is_run_by_git(self, path: str, word: str, is_path: bool) -> bool:
        if path in self._files.roots or not any(is_below(path, root) for root in self._files.roots):
            return False
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            return False
        if is_path and stat.S_ISDIR(mode):
            return True
        # A program without a slash is not looked for in the work tree; a script may be.
        return stat.S_ISREG(mode) and (is_path or "/" in word or word.endswith(SCRIPT_SUFFIXES))


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


def owners_settings() -> dict[str, str | None]:
    """The texts of the owner's own git settings, which hold in every repository."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    found: dict[str, str | None] = {}
    for path in ("/etc/gitconfig", os.path.expanduser("~/.gitconfig"), f"{folder}/git/config"):
        with suppress(OSError), open(path, "rb") as file:
            found[path] = file.read(MAX_GIT_TEXT_BYTES).decode(errors="replace")
    return found
