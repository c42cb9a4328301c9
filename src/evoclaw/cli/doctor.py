"""`evoclaw doctor`: what works here, and how to get what does not."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sqlite3
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import msgspec

from evoclaw.cli import exits, routes
from evoclaw.cli.clean import clean
from evoclaw.cli.client import open_client
from evoclaw.cli.fleet import show
from evoclaw.cli.needs import Wiring
from evoclaw.cli.places import data_folder, why_not_private
from evoclaw.core.errors import ConfigError, EvoClawError
from evoclaw.core.messages import JSON, is_object
from evoclaw.transport.address import parse_url

Finding: TypeAlias = tuple[str, bool, str]
"""What was looked at, whether it works, and what there is to say."""
ROOM = 1 << 30
"""Bytes of disk below which it is said."""
DOOR = "orchestrator.json"
"""Where `evoclaw up` says how its broker is reached."""
PATIENCE = 3.0
"""Seconds for a connection."""


def doctor(options: Namespace, wiring: Wiring) -> int:
    """Say what works here, and how to get what does not."""
    return asyncio.run(_doctor(options, wiring))


async def _doctor(options: Namespace, wiring: Wiring) -> int:
    env, data = os.environ, data_folder(os.environ)
    found: list[Finding] = [
        ("python", True, platform.python_version()),
        ("settings", *_settings(wiring, env)),
        ("data folder", *_folder(data)),
        ("disk", *_disk(data)),
        ("store", *_stores(data)),
        ("service", *await _up(env)),
        ("broker", *await _broker(data)),
        ("model", *await _model(wiring)),
        ("git", *_program("git")),
        ("bash", *_program("bash")),
    ]
    if found[1][1]:  # with settings that cannot be read, nothing more can be built
        found += await _tools(wiring)
    if options.json:
        show([{"name": name, "ok": ok, "says": says} for name, ok, says in found])
        return exits.OK
    for name, ok, says in found:
        show(f"{'ok ' if ok else '-- '} {name:18} {clean(says)}")
    return exits.OK


async def _tools(wiring: Wiring) -> list[Finding]:
    async with wiring.open_toolbox(Path.cwd(), os.environ) as box:
        found = [(f"sandbox {name}", ok, says) for name, ok, says in await box.sandbox()]
        offered = [*(bound.tool for bound in box.tools), *box.others()]
        found += [(tool.name, True, "can be used") for tool in offered]
        found += [(one.name, False, one.why) for one in box.absent]
        found += [(name, False, why) for name, why in box.problems().items()]
    return found


def _settings(wiring: Wiring, env: Mapping[str, str]) -> tuple[bool, str]:
    path = data_folder(env) / "evoclaw.toml"
    try:
        wiring.audit_place(env)
    except ConfigError as problem:
        return False, f"{problem}; mend it, or begin anew with `evoclaw init --force`"
    return True, str(path) if path.exists() else "none, so the defaults; see `evoclaw init`"


def _folder(data: Path) -> tuple[bool, str]:
    if not data.exists():
        return True, f"{data} (made when first needed)"
    if not os.access(data, os.W_OK):
        return False, f"{data} cannot be written; check its rights, or set EVOCLAW_HOME"
    problem = why_not_private(data)
    return not problem, problem or f"{data}, nobody else can look into it"


def _disk(data: Path) -> tuple[bool, str]:
    there = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    free = shutil.disk_usage(there).free
    said = f"{free / (1 << 30):.1f} GiB free"
    return free >= ROOM, said if free >= ROOM else f"{said} at {there}: make room"


def _stores(data: Path) -> tuple[bool, str]:
    """Look through what is kept, without changing anything."""
    files = sorted(data.glob("*.db"))
    for file in files:
        try:
            with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
                (said,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as problem:
            said = str(problem)
        if said != "ok":
            return False, f"{file}: {said}; bring it back from a backup, or `evoclaw import` one"
    return True, f"{len(files)} files, all sound" if files else "nothing is kept yet"


async def _up(env: Mapping[str, str]) -> tuple[bool, str]:
    try:
        async with open_client(env) as client:
            ready = routes.one(await client.ask("GET", "/health/ready", also=(503,)))
            parts: JSON = ready.get("parts")
            wrong = [name for name, how in parts.items() if how != "ok"] if is_object(parts) else []
            if wrong:
                return False, f"{client.url}: {', '.join(wrong)} failed; its log says why"
            return True, client.url
    except EvoClawError as problem:
        return False, str(problem)


async def _broker(data: Path) -> tuple[bool, str]:
    try:
        door = msgspec.json.decode((data / DOOR).read_bytes(), type=dict[str, JSON])
        address = parse_url(str(door.get("url")))
        async with asyncio.timeout(PATIENCE):
            _, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()
        await writer.wait_closed()
    except FileNotFoundError:
        return False, "none is up here: `evoclaw up` starts one"
    except (OSError, TimeoutError, msgspec.DecodeError, EvoClawError) as problem:
        why = str(problem) or "it does not answer"
        return False, f"it cannot be reached ({why}); restart `evoclaw up`"
    return True, f"{address.host}:{address.port}"


async def _model(wiring: Wiring) -> tuple[bool, str]:
    name, how = await wiring.model_at_hand(os.environ)
    return bool(name), name or how


def _program(name: str) -> tuple[bool, str]:
    found = shutil.which(name)
    return bool(found), found or f"not installed: install your system's package `{name}`"
