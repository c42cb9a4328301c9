"""`evoclaw audit`: who did what, found again, and proven to be as it was written."""

from __future__ import annotations

import asyncio
import os
import time
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.audit_lines import audit_line
from evoclaw.cli.clean import clean
from evoclaw.cli.fleet import show
from evoclaw.cli.render import tell
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

FOLLOW = 0.5
"""Seconds between two looks for what is new."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Needs(Protocol):
    """What this command needs of the composition root."""

    def audit_place(self, env: Mapping[str, str]) -> tuple[Path, AuditSettings]:
        """The data folder, and what was chosen about the audit."""
        ...


def audit(options: Namespace, wiring: Needs) -> int:
    """Do one of the actions."""
    data, settings = wiring.audit_place(os.environ)
    match options.action:
        case "verify":
            return _verify(options, data, settings)
        case "export":
            return asyncio.run(_export(options, data, settings))
        case "ship":
            return asyncio.run(_ship(options, data, settings))
        case "key":
            show(KEY_PREFIX + _key(data).public)
        case "tail":
            asyncio.run(_tail(options, data))
        case _:
            asyncio.run(_search(options, data, settings))
    return exits.OK


def when(text: str | None, now: float) -> float | None:
    """A moment as people write it: a day, a time, or how long ago."""
    if not text:
        return None
    if text[-1] in _UNITS and text[:-1].isdecimal():
        return now - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]]).total_seconds()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no time; say 2026-01-31, 2026-01-31T12:00 or 2h") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@asynccontextmanager
async def _cold(data: Path, settings: AuditSettings) -> AsyncGenerator[ColdTier | None]:
    cold = open_cold(data, settings, os.environ)
    try:
        yield cold
    finally:
        if cold is not None:
            await cold.close()


async def _search(options: Namespace, data: Path, settings: AuditSettings) -> None:
    now = time.time()
    query = AuditQuery(
        kind=options.kind,
        tenant=options.tenant,
        user=options.user,
        agent_id=options.agent,
        run_id=options.run,
        tool=options.tool,
        verdict=options.verdict,
        since=when(options.since, now),
        until=when(options.until, now),
        text=options.text,
        limit=options.limit,
    )
    async with _cold(data, settings) as cold:
        found = await search(data / "audit", query, cold)
    if not found:
        tell("no record fits")
    for fields in found:
        _show(fields, options)


async def _tail(options: Namespace, data: Path) -> None:
    last = 0
    count = options.n
    while True:
        found = await search(data / "audit", AuditQuery(limit=count))
        for fields in found:
            if fields["seq"] > last:
                _show(fields, options)
                last = fields["seq"]
        if not options.follow:
            return
        await asyncio.sleep(FOLLOW)
        head = read_head(data / "audit")
        count = max(1, (head.seq if head else 0) - last)


def _verify(options: Namespace, data: Path, settings: AuditSettings) -> int:
    keys = [check_key(key) for key in options.key]
    pin = _pin(options.at_least)
    if options.files:
        if not keys and not (data / "audit.key").exists():
            raise ConfigError("say whose signature counts: --key PUB, from `evoclaw audit key`")
        material = exported_files([Path(file) for file in options.files])
        report = verify(material, keys or [_key(data).public], at_least=pin)
    else:
        report = _verify_here(keys, pin, data, None if options.no_cold else settings)
    _tell_report(report, options)
    return exits.OK if report.ok else exits.FAILED


def _verify_here(
    keys: list[str], pin: Checkpoint | None, data: Path, settings: AuditSettings | None
) -> VerifyReport:
    folder = data / "audit"
    if not folder.is_dir():
        raise ConfigError(f"there is no audit in {folder}")
    key = _key(data)
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
    """What the cold tier has, a page at a time: it may be more than fits into memory."""
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
    found = [one for line in data.splitlines() if (one := decode(line)) is not None]
    if not found:
        raise ConfigError("--at-least wants a checkpoint: a line of checkpoints.jsonl, or its file")
    return found[-1]


def _tell_report(report: VerifyReport, options: Namespace) -> None:
    if options.json:
        show({**msgspec.to_builtins(report), "ok": report.ok})
        return
    for finding in report.findings:
        show(clean(str(finding)))
    span = f"{report.records} records, {report.first} to {report.last}"
    signed = f"{report.checkpoints} checkpoints, signed up to {report.signed}"
    for one in report.dropped:
        show(f"dropped by policy: {one}")
    show(f"{'as written' if report.ok else 'NOT as written'}: {span}; {signed}")


async def _export(options: Namespace, data: Path, settings: AuditSettings) -> int:
    now = time.time()
    query = AuditQuery(since=when(options.since, now), until=when(options.until, now))
    folder = data / "audit"
    if not folder.is_dir():
        raise ConfigError(f"there is no audit in {folder}")
    checkpoint = WarmTier(folder, _key(data)).checkpoint(now)
    async with _cold(data, settings) as cold:
        first, last = await export(folder, Path(options.file), query, cold)
    if options.json:
        show({"file": options.file, "first": first, "last": last})
        return exits.OK
    show(f"{options.file}: records {first} to {last}; check with `evoclaw audit verify`")
    if checkpoint is not None:
        show(f"keep this elsewhere, for --at-least: {encode(checkpoint).decode()}")
    return exits.OK


async def _ship(options: Namespace, data: Path, settings: AuditSettings) -> int:
    warm = WarmTier(data / "audit", _key(data), checkpoint_every=settings.checkpoint_every)
    async with _cold(data, settings) as cold:
        if cold is None:
            raise ConfigError("there is no cold tier: cold is `none` in [audit]")
        done = await Shipper(warm, cold, settings).ship()
        name = cold.name
    if options.json:
        show(msgspec.to_builtins(done))
    elif done.busy:
        show("another process is delivering")
    else:
        show(f"{name}: {done.shipped} records delivered, it has them up to {done.upto}")
        for file in done.retired:
            show(f"{file}: deleted here")
        if done.broken:
            show(f"{done.broken} lines are no records any more: see `evoclaw audit verify`")
    return exits.FAILED if done.broken else exits.OK


def _key(data: Path) -> AuditKey:
    return AuditKey.load_or_create(data / "audit.key")


def _show(fields: Fields, options: Namespace) -> None:
    if options.json:
        show(fields)
        return
    show(audit_line(fields))
