"""`evoclaw init`: write a short settings file, in a private folder."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.data_folder import data_folder, make_private
from evoclaw.cli.model_offer import offer_model
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal import is_interactive
from evoclaw.core.errors import ConfigError

SETTINGS_FILE = "evoclaw.toml"
"""The settings file, in the data folder."""
_TEMPLATE = """\
# The settings of EvoClaw. What is not here has its default.
# All settings: evoclaw config reference. Change one: evoclaw config set server.port 8434

# The default agent.
[[agents]]
id = "evoclaw"
{model}
capabilities = ["*"]  # what it may use: all tools; calls that change something ask you first

"""
SHORT_KEYS = (
    "approvals.nobody",
    "budget.dollars",
    "budget.minutes",
    "budget.user.dollars",
    "budget.user.per",
    "broker.host",
    "network.allow",
    "server.port",
)
"""The settings that most people look for."""


@click.command(cls=CliCommand)
@click.option(
    "--model",
    default="",
    metavar="PROVIDER/MODEL",
    show_default=False,
    help="Let the default agent use this model",
)
@click.option("--force", is_flag=True, help="Overwrite the file; the old one is backed up")
@json_option()
def init(model: str, *, force: bool, as_json: bool) -> int:
    """Write the file; an existing one is kept, or backed up with `--force`."""
    env = dict(os.environ)
    folder = data_folder(env)
    if is_interactive() and not as_json:
        folder = Path(_ask("Data folder", str(folder))).expanduser().absolute()
        model = model or _ask("Model, as provider/model", _found_model(env))
    env["EVOCLAW_HOME"] = str(folder)
    path = folder / SETTINGS_FILE
    if path.exists() and not force:
        raise ConfigError(f"{path} already exists; --force overwrites it and keeps a backup")
    make_private(folder)
    backup = _back_up(path) if path.exists() else None
    write_settings(env, model)
    if as_json:
        print_out({"file": str(path), "backup": None if backup is None else str(backup)})
        return exits.OK
    print_out(f"wrote {path}")
    if backup is not None:
        print_out(f"the previous file is {backup}")
    if folder != data_folder(os.environ):
        print_out(f"to use this folder: export EVOCLAW_HOME={folder}")
    print_out("check this machine with `evoclaw doctor`, then start with `evoclaw up`")
    return exits.OK


def write_settings(env: Mapping[str, str], model: str) -> Path:
    """Write the settings file, which must not exist, for a model; empty for the first one found."""
    from evoclaw.providers.registry import DEFAULT_MODELS
    from evoclaw.wiring.settings import settings_template

    name = msgspec.json.encode(model or next(iter(DEFAULT_MODELS.values()))).decode()
    line = f"model = {name}" if model else f"#model = {name}  # otherwise the first one found"
    path = data_folder(env) / SETTINGS_FILE
    make_private(path.parent)
    _write(path, _TEMPLATE.format(model=line) + settings_template(env, SHORT_KEYS))
    return path


def _found_model(env: Mapping[str, str]) -> str:
    from evoclaw.providers.registry import find_model

    name, how = asyncio.run(find_model(env))
    if not name and not (name := offer_model(env)):
        print_err(how)
    return name


def _ask(question: str, default: str) -> str:
    sys.stderr.write(f"{question}{f' [{default}]' if default else ''}: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() or default


def _back_up(path: Path) -> Path:
    """Rename the existing file to the next free backup name."""
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
        # O_EXCL fails on a file that was created meanwhile, so no file is overwritten.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}") from None
