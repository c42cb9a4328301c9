"""The files of workflow definitions, as text: read, checked, saved and removed one at a time."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Lock

from evoclaw.core.definition_text import (
    DefinitionNotFound,
    DefinitionText,
    InvalidDefinition,
    check_digest,
    check_new_text,
    shown_text,
)
from evoclaw.core.errors import ConfigError
from evoclaw.transport.private_files import write_private
from evoclaw.workflows.catalogue import Catalogue

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class WorkflowFiles:
    """The definitions in the folder of a catalogue, which reads a file again when it changes."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._one_change_at_a_time = Lock()

    def read(self, name: str) -> DefinitionText:
        """The text of a workflow; `DefinitionNotFound` if it has no file."""
        path = self._path(name)
        if path is None:
            raise DefinitionNotFound(f"There is no file of a workflow {name!r}.")
        return shown_text(name, _read(path))

    def check(self, name: str, text: str, sha256: str) -> None:
        """Check a text as `save` does, and save nothing."""
        self._checked_path(name, text, sha256)

    def save(self, name: str, text: str, sha256: str) -> DefinitionText:
        """Replace the text of a workflow, or add one.

        Args:
            name: Its name, which a new one's file has too.
            text: TOML; `InvalidDefinition` if it is not a valid workflow of that name.
            sha256: The digest of the current text; `DefinitionConflict` if it is another. Empty
                adds a workflow.
        """
        with self._one_change_at_a_time:
            path = self._checked_path(name, text, sha256)
            write_private(path.resolve(), text.encode())
        return shown_text(name, text)

    def remove(self, name: str, sha256: str) -> None:
        """Remove a workflow; `InvalidDefinition` if another one runs it as a step."""
        with self._one_change_at_a_time:
            self._remove(name, sha256)

    def _remove(self, name: str, sha256: str) -> None:
        path = self._path(name)
        check_digest(name, None if path is None else _read(path), sha256)
        if path is None:
            raise DefinitionNotFound(f"There is no file of a workflow {name!r}.")
        if users := self._catalogue.users_of(name):
            raise InvalidDefinition(
                f"The workflow {name!r} is a step of {', '.join(users)}. Change that first."
            )
        path.unlink()

    def _checked_path(self, name: str, text: str, sha256: str) -> Path:
        path = self._path(name)
        check_digest(name, None if path is None else _read(path), sha256)
        if path is None:
            path = self._new_path(name)
        check_new_text(text)
        try:
            self._catalogue.check(name, path, text)
        except ConfigError as problem:
            place = _setting(problem.setting)
            raise InvalidDefinition(problem.problem, line=problem.line, setting=place) from None
        return path

    def _path(self, name: str) -> Path | None:
        """The file of a workflow, valid or not; one without a problem first."""
        entries = [entry for entry in self._catalogue.all() if entry.name == name and entry.path]
        entries.sort(key=lambda entry: bool(entry.problem))
        return Path(entries[0].path) if entries else None

    def _new_path(self, name: str) -> Path:
        folder = self._catalogue.folder
        if folder is None:
            raise ConfigError("This process has no folder of workflows.")
        if not _FILE_NAME.fullmatch(name):
            raise InvalidDefinition(
                f"{name!r} cannot be the name of a workflow: use letters, digits, - and _.",
                setting="name",
            )
        path = folder / f"{name}.toml"
        if path.exists() or self._catalogue.get(name) is not None:
            check_digest(name, "", "")
        return path


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"cannot read {path}: {problem}") from None


def _setting(path: str) -> str:
    """A path without the numbers of steps: their lines say which."""
    return ".".join(part for part in path.split(".") if not part.isdigit())
