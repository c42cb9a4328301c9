"""Finds the keys that encrypt stored runs and the journals of edges, outside the data folders.

A data folder names the id of its key. So a lost key is noticed before a new one is created, which
could not read what is stored.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.config import EdgeConfig
    from evoclaw.core.events import Record
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.store.databases.database import Database

logger = logging.getLogger(__name__)
RECORDS_KEY_FILE, EDGE_KEY_FILE = Path("evoclaw", "records.key"), Path("evoclaw", "edge.key")
"""The default keys of an orchestrator and of an edge, in the folder of the user's settings."""
KEY_ID_FILE = "key.id"
"""In a data folder: the id of the key that encrypts what it holds."""


class KeyLost(ConfigError):
    """What is stored was encrypted with another key than the one that this process has."""


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Where the key of a data folder is."""

    folder: Path
    """The data folder."""
    path: Path | None
    """The key file; None if nothing is encrypted."""
    seals: bool
    """Whether new values are encrypted, and a missing key is created."""
    required: bool
    """Whether the settings name the key: then it is an error if it cannot be created."""
    advice: str
    """How to continue without the key, for messages."""

    @property
    def expected_id(self) -> str:
        """The id of the key that encrypted what the folder holds; empty if nothing is encrypted."""
        try:
            return (self.folder / KEY_ID_FILE).read_text().strip()
        except FileNotFoundError:
            return ""

    def problem(self) -> str:
        """Why what the folder holds cannot be read; empty if it can."""
        expected, present = self.expected_id, self.path is not None and self.path.exists()
        if not expected or (present and self.load_or_create().key_id == expected):
            return ""
        name = self.path or "its key file"
        now = f"{name} holds another key" if present else f"{name} is missing"
        return (
            f"what {self.folder} holds is encrypted with the key {expected}, and {now}: restore "
            f"that file from a backup. If the key is lost, {self.advice}"
        )

    def cipher(self) -> BlobCipher:
        """The cipher; the key is created if nothing was encrypted with another one."""
        from evoclaw.store.databases.blob_cipher import BlobCipher

        if problem := self.problem():
            raise KeyLost(problem)
        if self.path is None or not (self.seals or self.path.exists()):
            return BlobCipher()
        try:
            cipher = self.load_or_create()
        except ConfigError as problem:
            if self.required or self.path.exists():
                raise
            logger.warning("stored without encryption: %s", problem)
            return BlobCipher()
        if self.seals and not self.expected_id:
            self.remember(cipher)
        return cipher

    def remember(self, cipher: BlobCipher) -> None:
        """Store the id of the key with the data."""
        from evoclaw.transport.private_files import write_private

        if not cipher.key_id:
            (self.folder / KEY_ID_FILE).unlink(missing_ok=True)
            return
        write_private(self.folder / KEY_ID_FILE, f"{cipher.key_id}\n".encode())

    def load_or_create(self) -> BlobCipher:
        """The cipher, whatever key the data was encrypted with."""
        from evoclaw.store.databases.blob_cipher import BlobCipher
        from evoclaw.trust.keys import load_or_create_seed

        assert self.path is not None
        seed = load_or_create_seed(self.path, "; what it encrypted is lost then")
        return BlobCipher(seed, str(self.path), seals=self.seals)


def record_key(env: Mapping[str, str]) -> KeyLocation:
    """The key for what runs hold.

    It is `key_file` under `[store]`. Without, it is a file among the user's settings, which is
    created for the default data folder `~/.evoclaw` only: in a container, for example, it would be
    lost while the data is kept. A store that several machines share needs `key_file`, too.
    """
    from evoclaw.config.paths import default_data_folder, expand
    from evoclaw.wiring.settings import orchestrator_settings

    store, home = orchestrator_settings(env).store, default_data_folder(env)
    advice = "`evoclaw keys renew` shows what that loses, and continues with a new key"
    if store.key_file:
        return KeyLocation(home, expand(store.key_file, home, env), True, True, advice)
    path, is_default = _default_key(env, RECORDS_KEY_FILE, home)
    return KeyLocation(home, path, is_default and not store.url, False, advice)


def edge_key(config: EdgeConfig, env: Mapping[str, str]) -> KeyLocation:
    """The key for the journal of an edge: `key_file` in `agent.toml`, or as for an orchestrator."""
    own = config.data / "agent.toml"  # the edge of `evoclaw up`
    option = f" --config {own}" if own.exists() else ""
    advice = (
        f"start the edge once with `evoclaw edge{option} --new-key`: it sets its journal aside, "
        "and what it did before is unknown"
    )
    if config.key_file is not None:
        return KeyLocation(config.data, config.key_file, True, True, advice)
    path, is_default = _default_key(env, EDGE_KEY_FILE, config.data)
    return KeyLocation(config.data, path, is_default, False, advice)


def describe_keys(env: Mapping[str, str]) -> tuple[bool, str]:
    """Whether all keys of this machine are there, and a line about them; creates nothing."""
    key = record_key(env)
    problems = [key.problem(), *_edge_problems(key.folder, env)]
    if found := [problem for problem in problems if problem]:
        return False, "; ".join(found)
    if key.path is None or not (key.seals or key.path.exists()):
        return True, "none: stored runs are not encrypted; set key_file under [store]"
    if not key.path.exists():
        return True, f"{key.path} (created when first needed)"
    used = f", key {key.expected_id}" if key.expected_id else ""
    return True, f"{key.path}{used}; keep a backup of it elsewhere"


def _edge_problems(folder: Path, env: Mapping[str, str]) -> list[str]:
    """The lost keys of the edges of this machine: of `evoclaw up`, and of the working folder."""
    from evoclaw.config import read_agent_toml

    files = [*sorted(folder.glob("edge/*/agent.toml")), Path("agent.toml")]
    own = {name: value for name, value in env.items() if not name.startswith("EVOCLAW_EDGE_")}
    return [edge_key(read_agent_toml(path, own), env).problem() for path in files if path.exists()]


def record_cipher(env: Mapping[str, str]) -> BlobCipher:
    """The cipher for what runs hold; raises `KeyLost`."""
    return record_key(env).cipher()


def open_recording(path: Path, env: Mapping[str, str] = os.environ) -> list[Record]:
    """Read a recording, encrypted or not."""
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.store.sessions.recordings import read_recording

    try:
        cipher = record_cipher(env)
    except KeyLost:
        cipher = BlobCipher()  # enough for a recording that is not encrypted
    return read_recording(path, cipher=cipher)


async def check_shared_key(database: Database) -> None:
    """Raise `KeyLost` if other orchestrators use another key for the same database."""
    from evoclaw.store.databases.blob_cipher import SealedValue
    from evoclaw.store.databases.database import open_blob

    newest = "SELECT asked FROM runs ORDER BY seq DESC LIMIT 1"
    row = await database.read(lambda c: c.execute(newest).fetchone())
    try:
        if row is not None:
            open_blob(database, row[0])
    except SealedValue as problem:
        raise KeyLost(
            f"{problem}. Orchestrators that share a database need the same key. If the key is "
            "lost, `evoclaw keys renew` shows what that loses, and continues with a new key"
        ) from None


def _default_key(env: Mapping[str, str], name: Path, data: Path) -> tuple[Path | None, bool]:
    """The default key file, and whether the data folder is a default one, too."""
    from evoclaw.config.paths import expand

    try:
        path = expand(env.get("XDG_CONFIG_HOME") or "~/.config", Path.cwd(), env) / name
        return path, data.is_relative_to(expand("~/.evoclaw", data, env))
    except (ConfigError, ValueError):
        return None, False  # there is no home folder
