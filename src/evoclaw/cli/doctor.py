"""`evoclaw doctor`: check this machine, and say how to fix what does not work."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import open_client
from evoclaw.cli.data_folder import data_folder, privacy_problem
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON, is_object
from evoclaw.transport.address import parse_url

CheckResult: TypeAlias = tuple[str, bool, str]
"""What was checked, whether it works, and a remark."""
MIN_FREE_DISK_BYTES = 1 << 30
"""Free bytes on disk below which the check fails."""
BROKER_LOGIN_FILE = "orchestrator.json"
"""In the data folder: `evoclaw up` writes the login of its broker here."""
CONNECT_TIMEOUT_S = 3.0
"""Seconds for a connection."""


@click.command(cls=CliCommand)
@json_option()
def doctor(*, as_json: bool) -> int:
    """Report what works on this machine, and how to fix what does not."""
    return asyncio.run(_doctor(as_json=as_json))


async def _doctor(*, as_json: bool) -> int:
    env, data = os.environ, data_folder(os.environ)
    found: list[CheckResult] = [
        ("python", True, platform.python_version()),
        ("settings", *_settings(env)),
        ("data folder", *_folder(data)),
        ("disk", *_disk(data)),
        ("store", *_stores(data)),
        ("keys", *_keys(env)),
        ("service", *await _service(env)),
        ("broker", *await _broker(data)),
        ("model", *await _model()),
        ("git", *_program("git")),
        ("bash", *_program("bash")),
    ]
    if found[1][1]:  # without valid settings, the toolbox cannot be built
        found += await _tools()
    if as_json:
        print_out([{"name": name, "ok": ok, "says": says} for name, ok, says in found])
        return exits.OK
    for name, ok, says in found:
        print_out(f"{'ok ' if ok else '-- '} {name:18} {clean(says)}")
    return exits.OK


async def _tools() -> list[CheckResult]:
    from evoclaw.wiring.toolbox import open_toolbox

    async with open_toolbox(Path.cwd(), os.environ) as toolbox:
        found = [
            (f"sandbox {name}", ok, says) for name, ok, says in await toolbox.check_sandboxes()
        ]
        offered = [*(bound.tool for bound in toolbox.tools), *toolbox.extension_tools()]
        found += [(tool.name, True, "can be used") for tool in offered]
        found += [(tool.name, False, tool.why) for tool in toolbox.unavailable]
        found += [(name, False, why) for name, why in toolbox.problems().items()]
    return found


def _settings(env: Mapping[str, str]) -> tuple[bool, str]:
    from evoclaw.wiring.settings import audit_location

    path = data_folder(env) / "evoclaw.toml"
    try:
        audit_location(env)
    except ConfigError as problem:
        return False, f"{problem}; fix it, or start again with `evoclaw init --force`"
    return True, str(path) if path.exists() else "none, so the defaults; see `evoclaw init`"


def _folder(data: Path) -> tuple[bool, str]:
    if not data.exists():
        return True, f"{data} (created when first needed)"
    if not os.access(data, os.W_OK):
        return False, f"{data} is not writable; check its permissions, or set EVOCLAW_HOME"
    problem = privacy_problem(data)
    return not problem, problem or f"{data}, private to you"


def _disk(data: Path) -> tuple[bool, str]:
    existing = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    text = f"{free / (1 << 30):.1f} GiB free"
    return (
        free >= MIN_FREE_DISK_BYTES,
        text if free >= MIN_FREE_DISK_BYTES else f"only {text} at {existing}: free some space",
    )


def _stores(data: Path) -> tuple[bool, str]:
    """Check the SQLite files, without changing them."""
    files = sorted(data.glob("*.db"))
    for file in files:
        try:
            with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
                (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as problem:
            result = str(problem)
        if result != "ok":
            return False, f"{file}: {result}; restore a backup, or `evoclaw import` an export"
    return True, f"{len(files)} files, no errors" if files else "nothing is stored yet"


def _keys(env: Mapping[str, str]) -> tuple[bool, str]:
    """Check the keys that encrypt stored runs and journals, without creating any."""
    from evoclaw.wiring.record_key import describe_keys

    try:
        return describe_keys(env)
    except ConfigError as problem:
        return False, str(problem)


async def _service(env: Mapping[str, str]) -> tuple[bool, str]:
    try:
        async with open_client(env) as client:
            ready = service_api.as_object(
                await client.request("GET", "/health/ready", accepted_statuses=(503,))
            )
            parts: JSON = ready.get("parts")
            states: dict[str, JSON] = parts if is_object(parts) else {}
            failed = [name for name, state in states.items() if state != "ok"]
            if failed:
                return False, f"{client.url}: {', '.join(failed)} failed; see the service log"
            return True, client.url
    except EvoClawError as problem:
        return False, str(problem)


async def _broker(data: Path) -> tuple[bool, str]:
    try:
        login = msgspec.json.decode((data / BROKER_LOGIN_FILE).read_bytes(), type=dict[str, JSON])
        address = parse_url(str(login.get("url")))
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()
        await writer.wait_closed()
    except FileNotFoundError:
        return False, "no broker runs on this machine: start one with `evoclaw up`"
    except (OSError, TimeoutError, msgspec.DecodeError, EvoClawError) as problem:
        why = str(problem) or "it does not answer"
        return False, f"the broker cannot be reached ({why}); restart `evoclaw up`"
    return True, f"{address.host}:{address.port}"


async def _model() -> tuple[bool, str]:
    from evoclaw.providers.registry import find_model

    name, how = await find_model(os.environ)
    return bool(name), name or how


def _program(name: str) -> tuple[bool, str]:
    found = shutil.which(name)
    return bool(found), found or f"not installed: install your system's package `{name}`"
