"""`evoclaw export` and `evoclaw import`: all that is kept, as one file, to take elsewhere."""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.fleet import show
from evoclaw.cli.needs import Moving
from evoclaw.core.errors import ConfigError
from evoclaw.store.databases.moving import Manifest


class Needs(Protocol):
    """What these commands need of the composition root."""

    def open_moving(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Moving]:
        """The store of this machine, to be moved."""
        ...


def export(options: Namespace, wiring: Needs) -> int:
    """Write everything into a file; one that is there is left alone."""
    if Path(options.file).exists():
        raise ConfigError(f"{options.file} is there already; choose another name")
    moved = asyncio.run(_write(options, wiring))
    _tell(options, moved, "it holds all that was said and seen: keep it where only you can read it")
    return exits.OK


def import_(options: Namespace, wiring: Needs) -> int:
    """Read everything from a file."""
    moved = asyncio.run(_read(options, wiring))
    _tell(options, moved, "all of it is here now; start with `evoclaw up`")
    return exits.OK


async def _write(options: Namespace, wiring: Needs) -> Manifest:
    async with wiring.open_moving(os.environ) as moving:
        return await moving.write(Path(options.file), tenant=options.tenant)


async def _read(options: Namespace, wiring: Needs) -> Manifest:
    async with wiring.open_moving(os.environ) as moving:
        existing = "keep" if options.keep else "refuse"
        return await moving.read(Path(options.file), existing=existing)


def _tell(options: Namespace, moved: Manifest, said: str) -> None:
    if options.json:
        show({"file": options.file, "rows": moved.rows, **msgspec.to_builtins(moved)})
        return
    show(f"{options.file}: {moved.rows} rows of {len(moved.parts)} stores")
    show(said)
