"""`evoclaw receipts`: list, export and verify what edges signed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean, format_time, on_machine, print_table
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object
from evoclaw.orchestrator.receipts.archive import ReceiptArchive
from evoclaw.store.calls.receipts import ReceiptStore, StoredReceipt


@click.group(cls=CommandGroup, default="list")
def receipts() -> None:
    """List, export and verify receipts signed by edges."""


_AGENT = click.option(
    "--agent",
    default="",
    metavar="AGENT",
    show_default="all",
    help="Use only receipts of this edge",
)


@receipts.command("list", help="List the newest 1000 receipts and the missing ones (the default)")
@_AGENT
@json_option()
def _list(agent: str, *, as_json: bool) -> int:
    return _with_archive(lambda archive: _print_all(archive.store, agent, as_json=as_json))


@receipts.command("show", help="Show a receipt")
@click.argument("id_", metavar="ID", help="Id such as r3-9f2c41d0, hash, or request id")
@json_option()
def _show(id_: str, *, as_json: bool) -> int:
    return _with_archive(lambda archive: _print_one(archive.store, id_, as_json=as_json))


@receipts.command("export", help="Export receipts to a file that anyone can verify")
@click.argument("file", type=FILE, help="The file to write: JSON lines")
@_AGENT
def _export(file: Path, agent: str) -> int:
    async def export(archive: ReceiptArchive) -> None:
        lines = [line async for line in archive.bundle(agent_id=agent)]
        write_lines(file, lines)
        count = sum(line["type"] == "receipt" for line in lines)
        print_out(f"{count} receipts; check them with: python -m evoclaw.verify {file}")

    return _with_archive(export)


@receipts.command("verify", help="Verify such a file, as `python -m evoclaw.verify` does")
@click.argument("file", type=FILE, help="The file to verify: JSON lines")
@click.option("--key", multiple=True, metavar="AGENT=KEY", help="Trust this key; repeatable")
@click.option(
    "--head", multiple=True, metavar="AGENT=NUMBER|HASH", help="Require this end; repeatable"
)
@click.option("--partial", is_flag=True, help="Accept parts of chains")
def _verify(file: Path, key: tuple[str, ...], head: tuple[str, ...], *, partial: bool) -> int:
    argv = [sys.executable, "-m", "evoclaw.verify", str(file)]
    argv += [word for value in key for word in ("--key", value)]
    argv += [word for value in head for word in ("--head", value)]
    argv += ["--partial"] if partial else []
    sys.stdout.flush()
    done = subprocess.run(argv, check=False)
    return exits.OK if done.returncode == 0 else exits.FAILED


def _with_archive(work: Callable[[ReceiptArchive], Awaitable[None]]) -> int:
    async def run() -> None:
        from evoclaw.wiring.receipts import open_receipts

        async with open_receipts(os.environ) as archive:
            await work(archive)

    asyncio.run(run())
    return exits.OK


def write_lines(path: Path, lines: list[dict[str, JSON]]) -> None:
    """Write a new file of JSON lines."""
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    try:
        # The file contains arguments and results of tools, so only its owner may read it.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as problem:
        raise ConfigError(f"cannot write {path}: {problem.strerror}; choose another name") from None


async def _print_one(store: ReceiptStore, id_: str, *, as_json: bool) -> None:
    found = await store.find(id_)
    if not found:
        raise ConfigError(f"no receipt {id_!r}; see `evoclaw receipts list`")
    for receipt in found:
        body: dict[str, JSON] = json.loads(receipt.body)
        if as_json:
            print_out({"receipt": body, "signature": receipt.signature, **_row(receipt)})
            continue
        print_out(f"{_row(receipt)['id']}  {clean(receipt.flaw) or 'valid'}")
        for name, value in body.items():
            print_out(f"  {name}: {clean(str(value))}")


async def _print_all(store: ReceiptStore, agent_id: str, *, as_json: bool) -> None:
    rows = [_row(receipt) for receipt in await store.list_receipts(agent_id=agent_id, limit=1000)]
    holes = [
        (agent, first, last)
        for agent, chain, _ in await store.chains()
        if agent_id in ("", agent)
        for first, last in await store.gaps(agent, chain)
    ]
    if as_json:
        missing = [{"agent": agent, "from": first, "to": last} for agent, first, last in holes]
        print_out({"receipts": rows, "missing": missing})
        return
    table = [
        (
            format_time(row["at"]),
            f"{row['tool']}{on_machine(row['agent'])}",
            row["id"],
            row["flaw"].upper() or "valid",
            row["request"],
        )
        for row in rows
    ]
    print_table(
        table, "no receipts yet; an edge with a device key sends a receipt with every result"
    )
    for agent, first, last in holes:
        print_out(clean(f"{agent}: receipts {first} to {last} are missing"))


def _row(receipt: StoredReceipt) -> dict[str, JSON]:
    return {
        "id": f"r{receipt.counter}-{receipt.hash[:8]}",
        "agent": receipt.agent_id,
        "tool": _tool_of(receipt),
        "request": receipt.request_id,
        "run": receipt.run_id,
        "at": receipt.at,
        "hash": receipt.hash,
        "flaw": receipt.flaw,
    }


def _tool_of(receipt: StoredReceipt) -> str:
    """The tool that a receipt names; empty if it cannot be read."""
    try:
        body: JSON = json.loads(receipt.body)
    except ValueError:
        return ""
    return str(body.get("tool", "")) if is_object(body) else ""
