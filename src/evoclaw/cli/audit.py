"""`evoclaw audit`: search, verify and export the audit log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup, F, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import audit_line, clean
from evoclaw.core.errors import ConfigError
from evoclaw.observe.audit.checkpoints import (
    KEY_PREFIX,
    AuditKey,
    Checkpoint,
    check_key,
    decode,
    encode,
)
from evoclaw.observe.audit.cold import AuditQuery, ColdTier, open_cold
from evoclaw.observe.audit.reader import (
    MAX_SEQ,
    ColdLines,
    audit_files,
    export,
    exported_files,
    search,
)
from evoclaw.observe.audit.records import Fields
from evoclaw.observe.audit.settings import AuditSettings
from evoclaw.observe.audit.shipper import Shipper
from evoclaw.observe.audit.verify import VerifyReport, verify
from evoclaw.observe.audit.warm import WarmTier, read_head, read_shipped

FOLLOW_INTERVAL_S = 0.5
"""Seconds between two searches for new records."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group(cls=CommandGroup)
def audit() -> None:
    """Search, verify and export the audit log."""


_SINCE = click.option(
    "--since", metavar="WHEN", help="Match records since 2026-01-31, 2026-01-31T12:00 or 2h (ago)"
)
_UNTIL = click.option(
    "--until", metavar="WHEN", help="Match records before this time, in the same format"
)


def _filter(name: str, text: str, parameter: str = "") -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        parameter or name,
        default="",
        metavar=name.upper(),
        show_default=False,
        help=text,
    )


@audit.command("search", help="Search records, here and in the cold tier")
@_filter("tool", "Match this tool")
@_filter("agent", "Match this agent", "agent_id")
@_filter("user", "Match this user")
@_filter("tenant", "Match this tenant")
@_filter("run", "Match this run", "run_id")
@_filter("verdict", "Match this verdict: allow, deny or ask")
@_filter("kind", "Match this kind, such as call, approval or run_finished")
@_filter("text", "Match this text anywhere")
@click.option("--limit", type=int, default=100, metavar="N", help="Show the newest N records")
@_SINCE
@_UNTIL
@json_option()
def _search(since: str | None, until: str | None, *, as_json: bool, **filters: Any) -> int:
    now = time.time()
    query = AuditQuery(since=parse_time(since, now), until=parse_time(until, now), **filters)
    asyncio.run(_print_found(query, *_audit_location(), as_json=as_json))
    return exits.OK


@audit.command("tail", help="Show the newest records of this machine")
@click.option("-n", "count", type=int, default=20, metavar="N", help="Show N records")
@click.option("--follow", is_flag=True, help="Keep printing new records until Ctrl-C")
@json_option()
def _tail(count: int, *, follow: bool, as_json: bool) -> int:
    asyncio.run(_print_newest(_audit_location()[0], count, follow=follow, as_json=as_json))
    return exits.OK


@audit.command("verify", help="Check that no record was edited, removed or cut off")
@click.argument("files", type=FILE, nargs=-1, metavar="FILE", help="Exports  [default: the audit]")
@click.option(
    "--key", multiple=True, metavar="PUB", show_default="our key", help="Trust this key; repeatable"
)
@click.option(
    "--at-least",
    metavar="CHECKPOINT",
    help="Require a checkpoint known from elsewhere, or its file",
)
@click.option("--no-cold", is_flag=True, help="Skip the cold tier")
@json_option()
def _verify(
    files: tuple[Path, ...],
    key: tuple[str, ...],
    at_least: str | None,
    *,
    no_cold: bool,
    as_json: bool,
) -> int:
    data, settings = _audit_location()
    keys = [check_key(text) for text in key]
    pin = _pin(at_least)
    if files:
        if not keys and not (data / "audit.key").exists():
            raise ConfigError(
                "no key to verify with: add --key PUB, as `evoclaw audit key` prints it"
            )
        report = verify(exported_files(files), keys or [_own_key(data).public], at_least=pin)
    else:
        report = _verify_here(keys, pin, data, None if no_cold else settings)
    _print_report(report, as_json=as_json)
    return exits.OK if report.ok else exits.FAILED


@audit.command("export", help="Export a span of records with its checkpoints")
@click.argument("file", type=FILE, help="The file to write")
@_SINCE
@_UNTIL
@json_option()
def _export(file: Path, since: str | None, until: str | None, *, as_json: bool) -> int:
    now = time.time()
    query = AuditQuery(since=parse_time(since, now), until=parse_time(until, now))
    return asyncio.run(_write(file, query, now, *_audit_location(), as_json=as_json))


@audit.command("ship", help="Deliver new records to the cold tier now")
@json_option()
def _ship(*, as_json: bool) -> int:
    return asyncio.run(_ship_now(*_audit_location(), as_json=as_json))


@audit.command("key", help="Print the public key that signs the checkpoints")
@json_option()
def _key(*, as_json: bool) -> int:
    key = KEY_PREFIX + _own_key(_audit_location()[0]).public
    print_out({"key": key} if as_json else key)
    return exits.OK


def _audit_location() -> tuple[Path, AuditSettings]:
    """The data folder, and the audit settings."""
    from evoclaw.wiring.settings import audit_location

    return audit_location(os.environ)


def parse_time(text: str | None, now: float) -> float | None:
    """Parse a day, a time, or a duration such as 2h (ago)."""
    if not text:
        return None
    if text[-1] in _UNITS and text[:-1].isdecimal():
        return now - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]]).total_seconds()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time; write 2026-01-31, 2026-01-31T12:00 or 2h"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@asynccontextmanager
async def _cold(data: Path, settings: AuditSettings) -> AsyncGenerator[ColdTier | None]:
    cold = open_cold(data, settings, os.environ)
    try:
        yield cold
    finally:
        if cold is not None:
            await cold.close()


async def _print_found(
    query: AuditQuery, data: Path, settings: AuditSettings, *, as_json: bool
) -> None:
    async with _cold(data, settings) as cold:
        found = await search(data / "audit", query, cold)
    if not found:
        print_err("no matching record")
    for fields in found:
        _show(fields, as_json=as_json)


async def _print_newest(data: Path, count: int, *, follow: bool, as_json: bool) -> None:
    last = 0
    while True:
        found = await search(data / "audit", AuditQuery(limit=count))
        for fields in found:
            if fields["seq"] > last:
                _show(fields, as_json=as_json)
                last = fields["seq"]
        if not follow:
            return
        await asyncio.sleep(FOLLOW_INTERVAL_S)
        head = read_head(data / "audit")
        count = max(1, (head.seq if head else 0) - last)


def _verify_here(
    keys: list[str], pin: Checkpoint | None, data: Path, settings: AuditSettings | None
) -> VerifyReport:
    folder = data / "audit"
    if not folder.is_dir():
        raise ConfigError(f"there is no audit log in {folder}")
    key = _own_key(data)
    with WarmTier(folder, key).locked():
        material = audit_files(folder)
    trusted = keys or [key.public]
    cold = None if settings is None else open_cold(data, settings, os.environ)
    if cold is None or material.head is None:
        return verify(material, trusted, at_least=pin)
    known = read_shipped(folder)
    delivered = known.seq if known is not None and known.cold == cold.name else 0
    with asyncio.Runner() as runner:
        stored = ColdLines(_rows(runner, cold, material.head.chain), cold.name, delivered)
        try:
            return verify(material, trusted, cold=stored, at_least=pin)
        finally:
            runner.run(cold.close())


def _rows(runner: asyncio.Runner, cold: ColdTier, chain: str) -> Iterator[tuple[int, bytes]]:
    """The lines of the cold tier, page by page: they may not fit into memory."""
    runner.run(cold.prepare())
    first = 1
    while page := runner.run(cold.lines(chain, first, MAX_SEQ)):
        yield from page
        first = page[-1][0] + 1


def _pin(text: str | None) -> Checkpoint | None:
    if text is None:
        return None
    data = text.encode() if text.lstrip().startswith("{") else b""
    if not data:
        try:
            data = Path(text).read_bytes()
        except OSError as problem:
            raise ConfigError(f"cannot read the checkpoint {text}: {problem.strerror}") from None
    checkpoints = [point for line in data.splitlines() if (point := decode(line)) is not None]
    if not checkpoints:
        raise ConfigError("--at-least needs a checkpoint: a line of checkpoints.jsonl, or its file")
    return checkpoints[-1]


def _print_report(report: VerifyReport, *, as_json: bool) -> None:
    if as_json:
        print_out({**msgspec.to_builtins(report), "ok": report.ok})
        return
    for finding in report.findings:
        print_out(clean(str(finding)))
    span = f"{report.records} records, {report.first} to {report.last}"
    signed = f"{report.checkpoints} checkpoints, signed up to {report.signed}"
    for dropped in report.dropped:
        print_out(f"dropped by policy: {dropped}")
    print_out(f"{'as written' if report.ok else 'NOT as written'}: {span}; {signed}")


async def _write(
    file: Path, query: AuditQuery, now: float, data: Path, settings: AuditSettings, *, as_json: bool
) -> int:
    folder = data / "audit"
    if not folder.is_dir():
        raise ConfigError(f"there is no audit log in {folder}")
    checkpoint = WarmTier(folder, _own_key(data)).checkpoint(now)
    async with _cold(data, settings) as cold:
        first, last = await export(folder, file, query, cold)
    if as_json:
        print_out({"file": str(file), "first": first, "last": last})
        return exits.OK
    print_out(f"{file}: records {first} to {last}; check with `evoclaw audit verify`")
    if checkpoint is not None:
        print_out(f"store this on another machine, for --at-least: {encode(checkpoint).decode()}")
    return exits.OK


async def _ship_now(data: Path, settings: AuditSettings, *, as_json: bool) -> int:
    warm = WarmTier(data / "audit", _own_key(data), checkpoint_every=settings.checkpoint_every)
    async with _cold(data, settings) as cold:
        if cold is None:
            raise ConfigError("no cold tier is configured: set `cold` in [audit] of evoclaw.toml")
        done = await Shipper(warm, cold, settings).ship()
        name = cold.name
    if as_json:
        print_out(msgspec.to_builtins(done))
    elif done.busy:
        print_out("another process is already shipping")
    else:
        print_out(f"{name}: {done.shipped} records shipped, up to record {done.upto}")
        for file in done.retired:
            print_out(f"{file}: deleted here")
        if done.broken:
            print_out(f"{done.broken} lines are damaged: see `evoclaw audit verify`")
    return exits.FAILED if done.broken else exits.OK


def _own_key(data: Path) -> AuditKey:
    return AuditKey.load_or_create(data / "audit.key")


def _show(fields: Fields, *, as_json: bool) -> None:
    if as_json:
        print_out(fields)
        return
    print_out(audit_line(fields))
