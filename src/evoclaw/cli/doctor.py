"""`evoclaw doctor`: check this machine, and say how to fix what does not work."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import open_client
from evoclaw.cli.data_folder import data_folder, privacy_problem
from evoclaw.cli.options import CliCommand, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.progress import waiting
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON, is_object
from evoclaw.transport.address import parse_url

CheckResult: TypeAlias = tuple[str, bool, str]
"""What was checked, whether it works, and a remark; a command in `…` fixes what does not work."""
MIN_FREE_DISK_BYTES = 1 << 30
"""Free bytes on disk below which the check fails."""
BROKER_LOGIN_FILE = "orchestrator.json"
"""In the data folder: `evoclaw up` writes the login of its broker here."""
CONNECT_TIMEOUT_S = 3.0
"""Seconds for a connection."""
_USABLE = "can be used"
_COMMAND = re.compile(r"`((?:evoclaw|pip|chmod|ollama) [^`]+)`")


@click.command(cls=CliCommand)
@json_option()
def doctor(*, as_json: bool) -> int:
    """Report what works on this machine, and how to fix what does not."""
    return asyncio.run(_doctor(as_json=as_json))


async def _doctor(*, as_json: bool) -> int:
    env, data = os.environ, data_folder(os.environ)
    settings = _settings(env)
    found: dict[str, list[CheckResult]] = {
        "This machine": [
            ("python", True, platform.python_version()),
            ("settings", *settings),
            ("data folder", *_folder(data)),
            ("disk", *_disk(data)),
            ("store", *_stores(data)),
            ("keys", *_keys(env)),
            ("git", *_program("git")),
            ("bash", *_program("bash")),
        ],
        "Model": [("model", *await _model())],
        "Service": [
            ("service", *await _service(env)),
            ("broker", *await _broker(data)),
            ("notifiers", *_notifiers(env)),
            ("channels", *await _channels(env)),
        ],
    }
    if settings[0]:  # without valid settings, the toolbox cannot be built
        with waiting("testing the sandboxes"):
            found |= await _tools()
    if as_json:
        print_out(
            [
                {"group": group, "name": name, "ok": ok, "says": says, "fix": _fix(ok, says)}
                for group, checks in found.items()
                for name, ok, says in checks
            ]
        )
    else:
        _print(found)
    return exits.OK


def _fix(ok: bool, says: str) -> str:
    """The command that fixes a problem; empty if none does."""
    commands = [] if ok else _COMMAND.findall(says)
    return commands[-1] if commands else ""


def _print(found: Mapping[str, Sequence[CheckResult]]) -> None:
    """Print the checks by group; those with the same result are one line."""
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def styled(text: str, **style: Any) -> str:
        return click.style(text, **style) if is_coloured else text

    for number, (group, checks) in enumerate(found.items()):
        print_out(("\n" if number else "") + styled(group, bold=True))
        by_result: dict[tuple[bool, str], list[str]] = {}
        for name, ok, says in checks:
            by_result.setdefault((ok, says), []).append(name)
        for (ok, says), names in by_result.items():
            mark = styled("✓", fg="green") if ok else styled("✗", fg="red")
            first, *more = clean(says).rstrip().splitlines() or [""]
            what = f"{names[0]:18}" if len(names) == 1 else f"{', '.join(names)}:"
            print_out(f"  {mark} {what} {first}")
            for line in more:
                print_out(f"  {line}")
            if fix := _fix(ok, says):
                print_out(f"    {'':18} {styled(f'→ {fix}', fg='yellow')}")


async def _tools() -> dict[str, list[CheckResult]]:
    from evoclaw.wiring.toolbox import open_toolbox

    async with open_toolbox(Path.cwd(), os.environ) as toolbox:
        sandboxes = [
            (f"sandbox {name}", ok, says) for name, ok, says in await toolbox.check_sandboxes()
        ]
        offered = [*(bound.tool for bound in toolbox.tools), *toolbox.extension_tools()]
        tools = [(tool.name, True, _USABLE) for tool in offered]
        tools += [(tool.name, False, tool.why) for tool in toolbox.unavailable]
        tools += [(name, False, why) for name, why in toolbox.problems().items()]
    return {"Sandboxes": sandboxes, "Tools": tools}


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


def _notifiers(env: Mapping[str, str]) -> tuple[bool, str]:
    """Check the secrets and programs of the notifiers, without sending anything."""
    from evoclaw.wiring.notifications import check_notifiers

    try:
        names = check_notifiers(env)
    except ConfigError as problem:
        return False, str(problem)
    if not names:
        return True, "none: see [[notify]] in evoclaw.toml"
    return True, f"{', '.join(names)}; try one with `evoclaw notify test {names[0]}`"


async def _channels(env: Mapping[str, str]) -> tuple[bool, str]:
    """Log in at the services of the chat channels."""
    from evoclaw.wiring.channels import check_channels

    try:
        found = await check_channels(env)
    except ConfigError as problem:
        return False, str(problem)
    if not found:
        return True, "no chat channels: see [[channels]] in evoclaw.toml"
    broken = [f"{name}: {says}" for name, (ok, says) in found.items() if not ok]
    working = [f"{name} ({says})" for name, (ok, says) in found.items() if ok]
    return not broken, "; ".join(broken or working)


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
    from evoclaw.wiring.settings import model_for_run

    try:
        return True, await model_for_run(None, os.environ)
    except ConfigError as problem:
        return False, str(problem)


def _program(name: str) -> tuple[bool, str]:
    found = shutil.which(name)
    return bool(found), found or f"not installed: install your system's package `{name}`"
