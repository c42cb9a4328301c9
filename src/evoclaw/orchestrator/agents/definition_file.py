"""The agents in the settings file, as text: read, checked, saved and removed one at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from evoclaw.core.definition_text import (
    DefinitionNotFound,
    DefinitionText,
    InvalidDefinition,
    check_digest,
    check_new_text,
    shown_text,
)
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.toml import parse_toml
from evoclaw.core.toml_entries import TomlEntry, append_entry, array_entries, replace_entry
from evoclaw.transport.private_files import EditedFile, edited_file

T = TypeVar("T")
TABLE = "agents"


class AgentDefinitionFile:
    """The `[[agents]]` of the settings file. Comments and all other settings stay as they are."""

    def __init__(self, path: Path, check: Callable[[str], object]) -> None:
        """Choose the file.

        Args:
            path: The settings file; it need not exist.
            check: Raises `ConfigError` if a text is no valid settings file.
        """
        self._path, self._check = path, check

    def read(self, name: str) -> DefinitionText:
        """The text of an agent; `DefinitionNotFound` if the file has none."""
        entry = self._find(self._text(), name)
        if entry is None:
            raise DefinitionNotFound(
                f"{self._path.name} has no [[agents]] table with the id {name!r}. Add one to "
                "change this agent."
            )
        return shown_text(name, entry.text)

    def check(self, name: str, text: str, sha256: str) -> None:
        """Check a text as `save` does, and save nothing."""
        self._changed(name, text, sha256)

    def save(self, name: str, text: str, sha256: str, apply: Callable[[], T]) -> T:
        """Replace the text of an agent, or add one; returns what `apply` returns.

        Args:
            name: The agent's id.
            text: One `[[agents]]` table; `InvalidDefinition` if it is not valid.
            sha256: The digest of the current text; `DefinitionConflict` if it is another. Empty
                adds an agent.
            apply: Puts the file to use; if it raises `ConfigError`, the file is restored.
        """
        with edited_file(self._path) as file:
            return self._write(file, self._changed(name, text, sha256), apply)

    def remove(self, name: str, sha256: str, apply: Callable[[], T]) -> T:
        """Remove an agent; the arguments are those of `save`."""
        with edited_file(self._path) as file:
            text = self._text()
            entry = self._find(text, name)
            check_digest(name, None if entry is None else entry.text, sha256)
            if entry is None:
                raise DefinitionNotFound(f"{self._path.name} defines no agent {name!r}.")
            changed = replace_entry(text, entry, "")
            self._check(changed)
            return self._write(file, changed, apply)

    def _changed(self, name: str, text: str, sha256: str) -> str:
        """The file with another text of an agent, after every check."""
        whole = self._text()
        entry = self._find(whole, name)
        check_digest(name, None if entry is None else entry.text, sha256)
        check_new_text(text)
        self._check_entry(name, text, {} if entry is None else entry.values)
        changed = append_entry(whole, text) if entry is None else replace_entry(whole, entry, text)
        try:
            self._check(changed)
        except ConfigError as problem:
            raise self._located(name, changed, problem) from None
        return changed

    def _check_entry(self, name: str, text: str, old: dict[str, JSON]) -> None:
        try:
            values = parse_toml(text, "the definition")
        except ConfigError as problem:
            raise InvalidDefinition(problem.problem, line=problem.line) from None
        entries = values.get(TABLE)
        entry = entries[0] if is_array(entries) and len(entries) == 1 else None
        if len(values) != 1 or not is_object(entry):
            raise InvalidDefinition("The text must be one [[agents]] table, and nothing else.")
        if entry.get("id") != name:
            raise InvalidDefinition(
                f"id must stay {name!r}: sessions and workflows use it. Create another agent to "
                "have another id.",
                setting="id",
            )
        if entry.get("prompt_file") != old.get("prompt_file") and "prompt_file" in entry:
            # The model would get any file that the service can read.
            raise InvalidDefinition(
                "prompt_file can only be set in the file itself; use prompt here.",
                setting="prompt_file",
            )

    def _located(self, name: str, changed: str, problem: ConfigError) -> ConfigError:
        """An error with its line in the agent's text, if it is in there."""
        entry = self._find(changed, name)
        if entry is None or not entry.start < problem.line <= entry.end:
            return problem
        table, number, *setting = (*problem.setting.split("."), "", "")
        inside = table == TABLE and number.isdigit()
        return InvalidDefinition(
            problem.problem,
            line=problem.line - entry.start,
            setting=".".join(filter(None, setting)) if inside else "",
        )

    def _find(self, text: str, name: str) -> TomlEntry | None:
        return next(
            (entry for entry in self._entries(text) if entry.values.get("id") == name), None
        )

    def _entries(self, text: str) -> list[TomlEntry]:
        try:
            return array_entries(text, TABLE)
        except ValueError as problem:
            raise ConfigError(f"{self._path} is not TOML: {problem}") from None

    def _text(self) -> str:
        try:
            return self._path.read_bytes().decode()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as problem:
            raise ConfigError(f"cannot read {self._path}: {problem}") from None

    def _write(self, file: EditedFile, changed: str, apply: Callable[[], T]) -> T:
        """Replace the file and put it to use; if that fails, restore it."""
        before = file.content
        file.replace(changed.encode())
        try:
            return apply()
        except ConfigError:
            file.replace(before)
            raise
