"""The settings file of the orchestrator: what it sets, and changing one value of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from evoclaw.config import default_data_folder, read_evoclaw_toml
from evoclaw.config.evoclaw_toml import parse_evoclaw_toml
from evoclaw.config.paths import read_text
from evoclaw.config.toml_document import KeyPath, describe_unknown
from evoclaw.config.toml_edit import (
    IDENTIFIERS,
    dump,
    find_entry,
    parse_value,
    remove_value,
    set_value,
)
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.agents.definition_file import AgentDefinitionFile
from evoclaw.transport.private_files import edited_file
from evoclaw.wiring.settings import SETTINGS_FILE, orchestrator_settings, settings_template

__all__ = ["SettingsFile", "agent_definition_file", "dump"]


class SettingsFile:
    """The file in the data folder."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.path = default_data_folder(env) / SETTINGS_FILE

    def values(self, *, every: bool) -> dict[str, JSON]:
        """The settings in use, of the file and the environment; with `every`, the defaults too."""
        found = _plain(orchestrator_settings(self._env))
        if every:
            return found
        home = {name: self._env[name] for name in ("EVOCLAW_HOME", "HOME") if name in self._env}
        return _difference(found, _plain(read_evoclaw_toml(None, home)))

    def get(self, key: str) -> JSON:
        """The value of a setting; `ConfigError` with a similar one if it does not exist."""
        value: Any = self.values(every=True)
        for part in _key_path(key):
            if isinstance(value, dict):
                table = cast("dict[str, Any]", value)
                if part not in table:
                    raise ConfigError(describe_unknown("setting", part, table, f" in {key!r}"))
                value = table[part]
                continue
            found = find_entry(value, part)
            if found is None:
                named = [entry[name] for entry in value for name in IDENTIFIERS if name in entry]
                raise ConfigError(describe_unknown("entry", part, named, f" in {key!r}"))
            value = found
        return value

    def set(self, key: str, text: str) -> None:
        """Set a value, which is text or as TOML writes it; `ConfigError` if it is not valid."""
        keys, parsed = _key_path(key), parse_value(text)
        with edited_file(self.path) as file:
            before = self._text()
            try:
                changed = self._checked(set_value(before, keys, parsed))
            except ConfigError as problem:
                if isinstance(parsed, str):
                    raise
                try:  # a text that looks like a number
                    changed = self._checked(set_value(before, keys, text))
                except ConfigError:
                    raise problem from None
            file.replace(changed.encode())

    def unset(self, key: str) -> bool:
        """Remove a value; False if the file does not set it."""
        with edited_file(self.path) as file:
            text = self._text()
            changed = remove_value(text, _key_path(key))
            if changed == text:
                return False
            file.replace(self._checked(changed).encode())
        return True

    def overriding_variable(self, key: str) -> str:
        """The variable of the environment that overrides a setting; empty if none does."""
        variable = "_".join(("EVOCLAW", *_key_path(key))).upper()
        return variable if self._env.get(variable) else ""

    def reference(self, table: str = "") -> str:
        """Every setting with its default, explained; or those of one table."""
        text = settings_template(self._env)
        return (_table_text(text, table) if table else text).rstrip("\n")

    def _text(self) -> str:
        return read_text(self.path) if self.path.exists() else ""

    def _checked(self, text: str) -> str:
        """The text, if its settings are valid."""
        parse_evoclaw_toml(text, self.path, self._env)
        return text


def agent_definition_file(env: Mapping[str, str]) -> AgentDefinitionFile:
    """The agents of the file, as text."""
    path = default_data_folder(env) / SETTINGS_FILE
    return AgentDefinitionFile(path, lambda text: parse_evoclaw_toml(text, path, env))


def _key_path(key: str) -> KeyPath:
    keys = tuple(key.split("."))
    if not all(keys):
        raise ConfigError(f"{key!r} is not a setting; write it as in `server.port`")
    return keys


def _table_text(text: str, table: str) -> str:
    """The part of a template about one table and those below it."""
    blocks = text.split("\n\n")
    names = {_block_table(block): block for block in blocks}
    found = [
        block for name, block in names.items() if name == table or name.startswith(f"{table}.")
    ]
    if not found:
        tops = {name.partition(".")[0] for name in names} - {""}
        raise ConfigError(describe_unknown("table", table, tops))
    return "\n\n".join(found).rstrip("\n")


def _block_table(block: str) -> str:
    """The table that a block of a template is about; empty for the first."""
    lines = [line.removeprefix("#") for line in block.splitlines()]
    head = next((line for line in lines if line.startswith("[")), "")
    return head.strip("[]").removesuffix(".example")


def _plain(settings: msgspec.Struct) -> dict[str, JSON]:
    return msgspec.to_builtins(settings, enc_hook=str, order="deterministic")


def _difference(values: Mapping[str, JSON], defaults: Mapping[str, JSON]) -> dict[str, JSON]:
    """The values that differ from the defaults."""
    found: dict[str, JSON] = {}
    for key, value in values.items():
        default = defaults.get(key)
        if is_object(value) and is_object(default):
            if inner := _difference(value, default):
                found[key] = inner
        elif value != default:
            found[key] = value
    return found
