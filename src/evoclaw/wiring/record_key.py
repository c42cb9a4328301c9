"""Finds the key that encrypts stored runs and recordings, outside the data folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from evoclaw.core.errors import ConfigError

if TYPE_CHECKING:
    from evoclaw.core.events import Record
    from evoclaw.store.databases.blob_cipher import BlobCipher

logger = logging.getLogger(__name__)
KEY_FILE = Path("evoclaw", "records.key")
"""The default key, in the folder of the user's settings."""


def record_cipher(env: Mapping[str, str]) -> BlobCipher:
    """The cipher for what runs hold.

    The key is `key_file` under `[store]`. Without, it is a file among the user's settings, which is
    created for the default data folder `~/.evoclaw` only: in a container, for example, it would be
    lost while the data is kept. A store that several machines share needs `key_file`, too.
    """
    from evoclaw.config.paths import default_data_folder, expand
    from evoclaw.store.databases.blob_cipher import BlobCipher
    from evoclaw.trust.keys import load_or_create_seed
    from evoclaw.wiring.settings import orchestrator_settings

    store, home = orchestrator_settings(env).store, default_data_folder(env)
    lost = "; the runs that it encrypted are lost then"
    if store.key_file:
        named = expand(store.key_file, home, env)
        return BlobCipher(load_or_create_seed(named, lost), str(named))
    try:
        path = _default_key_file(env)
        seals = not store.url and home == expand("~/.evoclaw", home, env)
    except (ConfigError, ValueError):
        return BlobCipher()  # there is no home folder
    if not (seals or path.exists()):
        return BlobCipher()
    try:
        return BlobCipher(load_or_create_seed(path, lost), str(path), seals=seals)
    except ConfigError as problem:
        if path.exists():
            raise
        logger.warning("runs are stored without encryption: %s", problem)
        return BlobCipher()


def open_recording(path: Path, env: Mapping[str, str] = os.environ) -> list[Record]:
    """Read a recording, encrypted or not."""
    from evoclaw.store.sessions.recordings import read_recording

    return read_recording(path, cipher=record_cipher(env))


def _default_key_file(env: Mapping[str, str]) -> Path:
    from evoclaw.config.paths import expand

    return expand(env.get("XDG_CONFIG_HOME") or "~/.config", Path.cwd(), env) / KEY_FILE
