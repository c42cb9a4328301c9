"""`evoclaw keys`: show the key that encrypts stored runs, and replace a lost one."""

from __future__ import annotations

import asyncio
import os

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean


@click.group(cls=CommandGroup, default="show")
def keys() -> None:
    """Show the key that encrypts stored runs, and replace a lost one."""


@keys.command("show", help="Show the key file, and whether stored runs can be read with it")
@json_option()
def _show(*, as_json: bool) -> int:
    from evoclaw.wiring.record_key import describe_keys

    ok, text = describe_keys(os.environ)
    print_out({"ok": ok, "says": text} if as_json else clean(text))
    return exits.OK if ok else exits.FAILED


@keys.command("renew", help="Delete what a lost key encrypted, and continue with a new key")
@click.option("--yes", is_flag=True, help="Do it; a copy of a SQLite store is kept")
@json_option()
def _renew(*, yes: bool, as_json: bool) -> int:
    return asyncio.run(_run_renewal(yes=yes, as_json=as_json))


async def _run_renewal(*, yes: bool, as_json: bool) -> int:
    from evoclaw.wiring.key_renewal import find_lost_data, renew_key

    lost = await find_lost_data(os.environ)
    if lost is None:
        print_out({"lost": None} if as_json else "no key is lost; nothing to do")
        return exits.OK
    rows = ", ".join(f"{count} {table}" for table, count in sorted(lost.rows.items()))
    if not as_json:
        print_out(clean(lost.problem))
        print_out(f"lost without the key: {rows or 'nothing in the store'}")
        if lost.recordings:
            print_out(f"{lost.recordings} recordings in runs/ stay, and need the key to be read")
    if not yes:
        if as_json:
            print_out({"lost": msgspec.to_builtins(lost)})
        print_err(
            "evoclaw: this deletes these rows permanently from the store; a copy of a SQLite store "
            "is kept; back up a PostgreSQL database yourself. Repeat with --yes to confirm"
        )
        return exits.MISUSED
    key_id, copy = await renew_key(os.environ)
    if as_json:
        lost_data = msgspec.to_builtins(lost)
        print_out({"lost": lost_data, "key": key_id, "copy": str(copy) if copy else None})
        return exits.OK
    print_out(f"new key: {key_id}" if key_id else "new runs are not encrypted")
    if copy is not None:
        print_out(f"the old store is kept as {copy}")
    return exits.OK
