"""The orchestrator's book of receipts: each checked when it comes, kept, and handed out again.

What a receipt cannot prove is said beside the result, which is delivered all the same: it may be
all that anybody knows. Where receipts are required, it is refused instead.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import suppress

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import LOCAL
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.wording import receipt_refused
from evoclaw.store.calls.receipts import Kept, Pin, ReceiptStore
from evoclaw.transport.outbox import StoredCommand as Asked
from evoclaw.transport.wire import (
    Command,
    Outcome,
    Report,
    ReportType,
    WireError,
    arguments_of,
    read_command,
)
from evoclaw.trust.receipts import (
    Flaw,
    Receipt,
    ReceiptRefused,
    Signed,
    bounded,
    hash_of,
    read,
    result_hash,
    short_id,
)

UNREADABLE = Command("")
"""Stands for a stored command that cannot be read any more."""
RECENT = 64
"""Receipts of one chain that are held in memory, to compare the next ones with."""
PATIENCE = 10.0
"""Seconds for which a receipt is waited for that another orchestrator may have got."""


class Breach(Struct, frozen=True):
    """Something about receipts that an operator should know."""

    agent_id: str
    kind: str
    """A `Flaw`, or `gap`, `new_chain`, `first_use`."""
    text: str
    request_id: str = ""


class _Chain:
    """What is known of one chain."""

    __slots__ = ("seen", "top")

    def __init__(self, top: int = 0) -> None:
        self.top = top
        self.seen: OrderedDict[int, tuple[str, str]] = OrderedDict()
        """By place: a receipt's hash, and the hash it holds of the one before."""

    def note(self, receipt: Receipt, hash: str) -> None:
        self.top = max(self.top, receipt.counter)
        self.seen[receipt.counter] = hash, receipt.prev
        while len(self.seen) > RECENT:
            self.seen.popitem(last=False)


class ReceiptBook:
    """Checks receipts and keeps them; a `Reception`'s inspector."""

    def __init__(
        self,
        store: ReceiptStore,
        *,
        required: bool = False,
        noted: Callable[[Breach], None] = lambda breach: None,
        patience: float = PATIENCE,
    ) -> None:
        """Choose the parts.

        Args:
            store: Where receipts are kept.
            required: Whether a result whose receipt does not hold is refused.
            noted: Told what an operator should know.
            patience: Seconds after which a receipt that has not come is missing.
        """
        self.store, self._required, self._noted = store, required, noted
        self._patience, self._closing = patience, asyncio.Event()
        self.counts: Counter[str] = Counter()
        """Breaches by kind, and what could not be kept."""
        self._pins: dict[str, Pin] | None = None
        self._chains: dict[str, dict[str, _Chain]] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def pin(self, agent_id: str, key: str) -> None:
        """Know a device by the key that it joined with; whatever it had before counts no more."""
        pins = await self._known_pins()
        pins[agent_id] = await self.store.pin(agent_id, key, "pairing")

    async def repair(self, since: float) -> None:
        """Keep the receipts of outcomes that were stored just before a crash, if they are not.

        An outcome holds its receipt, so nothing that was acknowledged is ever without it.
        """
        lost: list[Kept] = []
        for outcome in await self.store.unbooked(since):
            found = msgspec.json.decode(outcome, type=Outcome)
            if found.checked.get("state") == "valid":
                with suppress(ReceiptRefused):
                    lost.append(kept_as(*read(found.receipt), time.time()))
        if lost:
            await self.store.add(*lost)

    async def close(self) -> None:
        """Finish keeping what came, and say what has not come by now."""
        self._closing.set()
        if self._writing:
            await asyncio.wait(self._writing)
        self._closing.clear()

    async def inspect(self, report: Report, asked: Asked | None) -> Report:
        """Check the receipt of a result, keep it, and say beside the result what it is worth."""
        payload = report.payload
        if asked is None and payload.get("receipt") is None:
            return report  # no call: a word that may be asked for again, or another's
        command = None if asked is None or asked.agent_id != report.agent_id else _command_of(asked)
        receipt, signed, flaw, reason = None, None, "", ""
        try:
            receipt, signed = await self._read(report)
            _compare(receipt, report, command)
            await self._compare_chain(receipt, signed)
        except ReceiptRefused as refusal:
            flaw, reason = str(refusal.flaw), refusal.reason
        if receipt is not None and signed is not None:
            self._spawn(self._keep(receipt, signed, flaw, _asker(command)))
            if not flaw:
                self._follow(receipt, signed)
        if flaw:
            self._breach(report.agent_id, flaw, reason, report.request_id)
        checked = await self._verdict(report.agent_id, receipt, signed, flaw, reason)
        if flaw and self._required and not payload.get("refuses"):
            return replace(report, report_type=ReportType.ERROR, payload=_refused(report, checked))
        return replace(report, payload={**payload, "checked": checked})

    async def _read(self, report: Report) -> tuple[Receipt, Signed]:
        agent_id, given = report.agent_id, report.payload.get("receipt")
        found, signed = read(given)
        if found.agent_id != agent_id:
            raise ReceiptRefused(Flaw.OTHER_AGENT, "the receipt is another device's")
        pin = (await self._known_pins()).get(agent_id)
        if pin is not None and pin.key != found.key:
            self._pins = None  # it may have joined anew, at another orchestrator
            pin = (await self._known_pins()).get(agent_id)
        pin = pin or await self._trust(agent_id, found.key)
        if pin.key != found.key:
            read(given, key=pin.key)  # says so
        return found, signed

    async def _trust(self, agent_id: str, key: str) -> Pin:
        """Know a device by the key it came with, unless somebody knows it by one already."""
        pins, pin = await self._known_pins(), await self.store.pin(agent_id, key, "first use")
        if agent_id not in pins and pin.key == key:
            text = f"its key is taken on trust from its first receipt: {key}"
            self._breach(agent_id, "first_use", text)
        pins[agent_id] = pin
        return pin

    async def _compare_chain(self, receipt: Receipt, signed: Signed) -> None:
        """See that the receipt follows the one before it, and the next one follows it."""
        if not receipt.counter:
            return
        chain, place = await self._chain(receipt), receipt.counter
        known = dict(chain.seen)
        if any(1 <= one <= chain.top and one not in known for one in (place - 1, place)):
            for one in await self.store.at(receipt.agent_id, receipt.chain, place):
                known[one.counter] = one.hash, one.prev
        if place in known and known[place][0] != signed.hash:
            raise ReceiptRefused(Flaw.FORK, f"there is another receipt with the number {place}")
        before, after = known.get(place - 1), known.get(place + 1)
        first = place == 1 and receipt.prev != ""
        if first or (before is not None and before[0] != receipt.prev):
            raise ReceiptRefused(Flaw.FORK, f"receipt {place} does not follow the one before it")
        if after is not None and after[1] != signed.hash:
            raise ReceiptRefused(Flaw.FORK, f"receipt {place + 1} does not follow this one")

    async def _chain(self, receipt: Receipt) -> _Chain:
        mine = self._chains.get(receipt.agent_id)
        if mine is None:
            known = await self.store.chains()
            mine = {name: _Chain(top) for agent, name, top in known if agent == receipt.agent_id}
            mine = self._chains.setdefault(receipt.agent_id, mine)
        if receipt.chain not in mine:
            if mine:
                text = "it has begun a new chain of receipts: its journal or its key is new"
                self._breach(receipt.agent_id, "new_chain", text, receipt.request_id)
            mine[receipt.chain] = _Chain()
        return mine[receipt.chain]

    def _follow(self, receipt: Receipt, signed: Signed) -> None:
        if receipt.counter:
            chain = self._chains[receipt.agent_id][receipt.chain]
            if receipt.counter > chain.top + 1:
                self._spawn(self._look_for(receipt, chain.top + 1))
            chain.note(receipt, signed.hash)

    async def _look_for(self, receipt: Receipt, first: int) -> None:
        """Say what is missing before a receipt, unless it comes, here or elsewhere."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._closing.wait()
        try:
            missing = await self.store.missing(
                receipt.agent_id, receipt.chain, first, receipt.counter - 1
            )
        except EvoClawError:
            missing = first, receipt.counter - 1  # nobody can say that they came
        if missing is not None:
            text = f"receipts {missing[0]} to {missing[1]} have not come; they may be lost"
            self._breach(receipt.agent_id, "gap", text, receipt.request_id)

    async def _verdict(
        self,
        agent_id: str,
        receipt: Receipt | None,
        signed: Signed | None,
        flaw: str,
        reason: str,
    ) -> dict[str, JSON]:
        if receipt is None or signed is None:
            state = "absent" if flaw == Flaw.ABSENT else "invalid"
            return {"state": state, "problem": reason, "agent": agent_id}
        pin = (await self._known_pins()).get(agent_id)
        found = seen(receipt, signed.hash, "" if pin is None else pin.trust)
        return found | ({"state": "invalid", "problem": reason} if flaw else {})

    async def _known_pins(self) -> dict[str, Pin]:
        if self._pins is None:
            pins = {pin.agent_id: pin for pin in await self.store.pins()}
            self._pins = self._pins or pins
        return self._pins

    async def _keep(self, receipt: Receipt, signed: Signed, flaw: str, tenant: str) -> None:
        try:
            await self.store.add(kept_as(receipt, signed, time.time(), flaw, tenant))
        except EvoClawError:
            self.counts["not kept"] += 1  # it is in the command's outcome all the same

    def _breach(self, agent_id: str, kind: str, text: str, request_id: str = "") -> None:
        self.counts[kind] += 1
        if kind == Flaw.ABSENT and not self._required:
            return  # a device without a key, which nobody said it must have
        self._noted(Breach(agent_id, kind, text, request_id))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        # Not waited for: the outcome, which holds the receipt, is on the disk before it counts.
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _compare(receipt: Receipt, report: Report, command: Command | None) -> None:
    """See that a receipt is about this very result of this very command."""
    if receipt.request_id != bounded(report.request_id):
        text = f"the receipt is for the request {receipt.request_id!r}: it was used before"
        raise ReceiptRefused(Flaw.OTHER_REQUEST, text)
    try:
        result = result_hash(report.payload)
    except (ValueError, RecursionError):
        result = ""
    if receipt.result_sha256 != result:
        raise ReceiptRefused(Flaw.OTHER_RESULT, "the receipt is for another result than this one")
    if command is None or not receipt.args_sha256:
        return
    if receipt.args_sha256 != _arguments_hash(command):
        text = "the receipt is for other arguments than those that were asked for"
        raise ReceiptRefused(Flaw.OTHER_ARGUMENTS, text)
    if (receipt.tenant or LOCAL.tenant) != bounded(_asker(command)):
        text = "the receipt is for another tenant than the one that asked"
        raise ReceiptRefused(Flaw.OTHER_REQUEST, text)


def _asker(command: Command | None) -> str:
    """The tenant that asked; what nobody asked for is for whoever has this machine to look at.

    It is never taken from the receipt: a device could write into anybody's book.
    """
    return LOCAL.tenant if command is None else command.tenant or LOCAL.tenant


def _command_of(asked: Asked) -> Command:
    try:
        return read_command(asked.payload)
    except WireError:
        return UNREADABLE


def _arguments_hash(command: Command) -> str:
    """The hash of what a command asked with, as its receipt has it."""
    try:
        return "" if command is UNREADABLE else hash_of(arguments_of(command))
    except (WireError, ValueError, RecursionError):
        return ""


def _refused(report: Report, checked: dict[str, JSON]) -> dict[str, JSON]:
    tool = report.payload.get("tool")
    name = tool if isinstance(tool, str) else ""
    return {
        "status": "error",
        "tool": name,
        "request_id": report.request_id,
        "error": receipt_refused(name, str(checked.get("problem", ""))),
        "error_type": str(ErrorKind.UNKNOWN),
        "checked": checked,
    }


def seen(receipt: Receipt, hash: str, trust: str) -> dict[str, JSON]:
    """What is said of a sound receipt beside its result."""
    return {
        "state": "valid",
        "id": short_id(receipt.counter, hash),
        "hash": hash,
        "agent": receipt.agent_id,
        "request_id": receipt.request_id,
        "status": receipt.status,
        "trust": trust,
    }


def kept_as(receipt: Receipt, signed: Signed, at: float, flaw: str = "", tenant: str = "") -> Kept:
    """A receipt as the book keeps it, for the tenant that asked: it says so itself if not given."""
    return Kept(
        receipt.agent_id,
        receipt.chain,
        receipt.counter,
        signed.hash,
        receipt.prev,
        receipt.request_id,
        receipt.run_id,
        tenant or receipt.tenant or LOCAL.tenant,
        at,
        signed.body,
        signed.signature,
        flaw,
    )
