"""`evoclaw config`: look at the settings, and change one."""

from __future__ import annotations

import asyncio
import json
import os

import click

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceNotRunning, open_client
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.core.messages import is_object

KEY_HELP = "The setting, such as `server.port` or `agents.evoclaw.model`"


@click.group(cls=CommandGroup, default="show")
def config() -> None:
    """Show the settings, and change one."""


@config.command("show", help="Show the settings that are not the defaults (the default)")
@click.option("--all", "every", is_flag=True, help="Show the defaults too")
@json_option()
def _show(*, every: bool, as_json: bool) -> int:
    from evoclaw.wiring.settings_file import SettingsFile, dump

    found = SettingsFile(os.environ).values(every=every)
    if as_json:
        print_out(found)
    elif found:
        print_out(dump(found))
    else:
        print_err("all settings have their defaults; `evoclaw config --all` shows them")
    return exits.OK


@config.command("get", help="Print the value of one setting, or of a table")
@click.argument("key", help=KEY_HELP)
@json_option()
def _get(key: str, *, as_json: bool) -> int:
    from evoclaw.wiring.settings_file import SettingsFile, dump

    value = SettingsFile(os.environ).get(key)
    if as_json or not (is_object(value) or isinstance(value, str)):
        print_out(json.dumps(value))
    else:
        print_out(dump(value) if is_object(value) else value)
    return exits.OK


@config.command("set", help="Change one setting in the file, which keeps its comments")
@click.argument("key", help=KEY_HELP)
@click.argument("value", help="The value: text, or as TOML writes it, such as `[80, 443]`")
def _set(key: str, value: str) -> int:
    from evoclaw.wiring.settings_file import SettingsFile

    file = SettingsFile(os.environ)
    file.set(key, value)
    variable = file.overriding_variable(key)
    print_err(f"{key} is set in {file.path}{f'; {variable} overrides it' if variable else ''}")
    _reload()
    return exits.OK


@config.command("unset", help="Remove one setting from the file: its default applies")
@click.argument("key", help=KEY_HELP)
def _unset(key: str) -> int:
    from evoclaw.wiring.settings_file import SettingsFile

    file = SettingsFile(os.environ)
    if file.unset(key):
        print_err(f"{key} has its default")
        _reload()
    else:
        print_err(f"{file.path} does not set {key}")
    return exits.OK


@config.command("path", help="Print the path of the settings file")
@json_option()
def _path(*, as_json: bool) -> int:
    from evoclaw.wiring.settings_file import SettingsFile

    path = SettingsFile(os.environ).path
    print_out({"path": str(path)} if as_json else str(path))
    if not path.exists():
        print_err("it does not exist: all settings have their defaults; `evoclaw init` writes it")
    return exits.OK


@config.command("reference", help="Print every setting with its default, explained")
@click.argument("table", default="", help="Only this table, such as `server`")
def _reference(table: str) -> int:
    from evoclaw.wiring.settings_file import SettingsFile

    print_out(SettingsFile(os.environ).reference(table))
    return exits.OK


def _reload() -> None:
    """Let the service of this machine, if it runs, read the file again; say what that does."""
    if "EVOCLAW_URL" in os.environ:
        return  # the service that this names does not read this file
    try:
        found = asyncio.run(_request_reload())
    except ServiceNotRunning:
        return
    if found.changed:
        print_err("the running service uses it from the next run on")
    if found.kept_by_edge:
        print_err("the edge of `evoclaw up` uses it when you restart `evoclaw up`")
    elif found.needs_restart:
        print_err("it takes effect when you restart `evoclaw up`")


async def _request_reload() -> service_api.ReloadedTables:
    async with open_client(os.environ) as client:
        return await service_api.reload_settings(client)
