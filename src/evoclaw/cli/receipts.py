"""`evoclaw receipts`: what devices signed, shown, handed out, and checked by the verifier."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from evoclaw.cli import exits
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON
from evoclaw.store.calls.receipts import Kept, ReceiptStore


class Archive(Protocol):
    """The receipts of this machine, and what they are of."""

    store: ReceiptStore

    def bundle(self, *, agent_id: str = "", run_id: str = "") -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for the verifier."""
        ...


class Wiring(Protocol):
    """Who can open them."""

    def open_receipts(self, env: Mapping[str, str]) -> AbstractAsyncContextManager[Archive]:
        """The book of this machine."""
        ...


def receipts(options: Namespace, wiring: Wiring) -> int:
    """Do one of the actions."""
    if options.action == "verify":
        return _verify(options)
    return asyncio.run(_look(options, wiring))


def _verify(options: Namespace) -> int:
    """Have the stand-alone verifier look, as anybody else would."""
    argv = [sys.executable, "-m", "evoclaw.verify", options.file]
    for name in ("key", "head"):
        for one in getattr(options, name, None) or ():
            argv += [f"--{name}", one]
    argv += ["--partial"] if getattr(options, "partial", False) else []
    sys.stdout.flush()
    done = subprocess.run(argv, check=False)
    return exits.OK if done.returncode == 0 else exits.FAILED


async def _look(options: Namespace, wiring: Wiring) -> int:
    async with wiring.open_receipts(os.environ) as archive:
        match options.action:
            case "export":
                lines = [line async for line in archive.bundle(agent_id=options.agent or "")]
                _write(Path(options.file), lines)
                many = sum(line["type"] == "receipt" for line in lines)
                show(f"{many} receipts; check them with: python -m evoclaw.verify {options.file}")
            case "show":
                await _show(options, archive.store)
            case _:
                await _list(options, archive.store)
    return exits.OK


def _write(path: Path, lines: list[dict[str, JSON]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        # Arguments and results of tools: for the owner's eyes, who decides whom to show them to.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}; choose another name") from None


async def _show(options: Namespace, store: ReceiptStore) -> None:
    found = await store.find(options.id)
    if not found:
        raise ConfigError(f"no receipt {options.id!r}; see `evoclaw receipts list`")
    for kept in found:
        body: dict[str, JSON] = json.loads(kept.body)
        if options.json:
            show({"receipt": body, "signature": kept.signature, **_row(kept)})
            continue
        show(f"{_row(kept)['id']}  {clean(kept.flaw) or 'holds'}")
        for name, value in body.items():
            show(f"  {name}: {clean(str(value))}")


async def _list(options: Namespace, store: ReceiptStore) -> None:
    agent_id = getattr(options, "agent", None) or ""
    rows = [_row(kept) for kept in await store.listed(agent_id=agent_id, limit=1000)]
    holes = [
        (agent, first, last)
        for agent, chain, _ in await store.chains()
        if agent_id in ("", agent)
        for first, last in await store.holes(agent, chain)
    ]
    if options.json:
        missing = [{"agent": agent, "from": one, "to": to} for agent, one, to in holes]
        show({"receipts": rows, "missing": missing})
        return
    for row in rows:
        state = "" if not row["flaw"] else f"  {row['flaw'].upper()}"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"]))
        show(clean(f"{when}  {row['agent']:20} {row['id']:16} {row['request']}{state}"))
    for agent, first, last in holes:
        show(clean(f"{agent}: receipts {first} to {last} have not come"))
    if not rows:
        show("there is no receipt; devices with a key send one with every result")


def _row(kept: Kept) -> dict[str, JSON]:
    return {
        "id": f"r{kept.counter}-{kept.hash[:8]}",
        "agent": kept.agent_id,
        "request": kept.request_id,
        "run": kept.run_id,
        "at": kept.at,
        "hash": kept.hash,
        "flaw": kept.flaw,
    }
