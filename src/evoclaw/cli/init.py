"""`evoclaw init`: a settings file that says everything there is to set, and a private folder."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.fleet import show
from evoclaw.cli.places import data_folder, make_private
from evoclaw.cli.render import tell
from evoclaw.cli.terminal import has_keyboard
from evoclaw.core.errors import ConfigError

FILE = "evoclaw.toml"
"""In the data folder."""
_AGENT = """\

# Who answers when nobody else is named.
[[agents]]
id = "evoclaw"
model = {model}
capabilities = ["*"]
"""


class Needs(Protocol):
    """What this command needs of the composition root."""

    def settings_text(self, env: Mapping[str, str]) -> str:
        """Every setting with its default, explained and commented out."""
        ...

    async def model_at_hand(self, env: Mapping[str, str]) -> tuple[str, str]:
        """The model that a run would get, or how to get one."""
        ...


def init(options: Namespace, wiring: Needs) -> int:
    """Write the file; one that is there is left alone, or kept as a backup."""
    env = dict(os.environ)
    folder, model = data_folder(env), options.model or ""
    if has_keyboard() and not options.json:
        folder = Path(_asked("Where to keep everything", str(folder))).expanduser().absolute()
        model = model or _asked("Which model, as provider/model", _at_hand(wiring, env))
    env["EVOCLAW_HOME"] = str(folder)
    path = folder / FILE
    if path.exists() and not options.force:
        raise ConfigError(f"{path} is there already; --force writes a new one and keeps a backup")
    agent = _AGENT.format(model=msgspec.json.encode(model).decode()) if model else ""
    text = wiring.settings_text(env) + agent
    make_private(folder)
    backup = _keep(path) if path.exists() else None
    _write(path, text)
    if options.json:
        show({"file": str(path), "backup": None if backup is None else str(backup)})
        return exits.OK
    show(f"wrote {path}")
    if backup is not None:
        show(f"what was there is in {backup}")
    if folder != data_folder(os.environ):
        show(f"have it used: export EVOCLAW_HOME={folder}")
    show("see what works with `evoclaw doctor`, then start with `evoclaw up`")
    return exits.OK


def _at_hand(wiring: Needs, env: Mapping[str, str]) -> str:
    name, how = asyncio.run(wiring.model_at_hand(env))
    if not name:
        tell(how)
    return name


def _asked(question: str, usual: str) -> str:
    sys.stderr.write(f"{question}{f' [{usual}]' if usual else ''}: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or usual


def _keep(path: Path) -> Path:
    """Put what is there aside, under a name that nothing has."""
    number = 1
    while (backup := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    try:
        path.rename(backup)
    except OSError as problem:
        raise ConfigError(f"cannot keep a backup of {path}: {problem.strerror}") from None
    return backup


def _write(path: Path, text: str) -> None:
    try:
        # Fails on a file that somebody made meanwhile: nothing is ever written over.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from None
