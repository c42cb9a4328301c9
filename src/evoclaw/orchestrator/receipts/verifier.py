"""Verifies the receipts of edges as they arrive, and stores them.

What a receipt fails to prove is reported beside the result, which is delivered anyway: there may
be no other. Where receipts are required, the result is refused instead.
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

from evoclaw.core.canonical_json import canonical_hash
from evoclaw.core.commands import CommandRow
from evoclaw.core.errors import EvoClawError
from evoclaw.core.labels import CLEAN, LOCAL_PRINCIPAL, Label
from evoclaw.core.messages import JSON, ErrorKind
from evoclaw.core.wording import receipt_refused
from evoclaw.orchestrator.receipts.noted_receipts import NotedReceipts
from evoclaw.store.calls.receipts import Pin, ReceiptStore, StoredReceipt
from evoclaw.transport.wire import (
    Command,
    Outcome,
    Report,
    ReportType,
    WireError,
    arguments_of,
    convert,
    read_command,
)
from evoclaw.trust.receipts import (
    Receipt,
    ReceiptFlaw,
    ReceiptRefused,
    SignedReceipt,
    bounded_name,
    read_receipt,
    result_hash,
    short_id,
)

UNREADABLE = Command("")
"""Stands for a stored command that cannot be read."""
MAX_CHAIN_RECEIPTS = 64
"""Of one chain in memory, to compare the next ones with."""
GAP_TIMEOUT_S = 10.0
"""For a missing receipt, which another orchestrator may have received."""


class ReceiptBreach(Struct, frozen=True):
    """A problem with receipts that the operator should know."""

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
        """By counter: a receipt's hash, and the hash of the previous receipt in it."""

    def note(self, receipt: Receipt, hash: str) -> None:
        self.top = max(self.top, receipt.counter)
        self.seen[receipt.counter] = hash, receipt.prev
        while len(self.seen) > MAX_CHAIN_RECEIPTS:
            self.seen.popitem(last=False)


class ReceiptVerifier:
    """Verifies receipts and stores them; the inspector of a `ReportReceiver`."""

    def __init__(
        self,
        store: ReceiptStore,
        *,
        required: bool = False,
        on_breach: Callable[[ReceiptBreach], None] = lambda breach: None,
        gap_timeout_s: float = GAP_TIMEOUT_S,
    ) -> None:
        """Verify receipts.

        Args:
            store: Where receipts are stored.
            required: Whether a result without a valid receipt is refused.
            on_breach: Gets what the operator should know.
            gap_timeout_s: After which a receipt that has not arrived is missing.
        """
        self.store, self._required, self._on_breach = store, required, on_breach
        self._gap_timeout_s, self._closing = gap_timeout_s, asyncio.Event()
        self.counts: Counter[str] = Counter()
        """Breaches by kind."""
        self._pins: dict[str, Pin] | None = None
        self._chains: dict[str, dict[str, _Chain]] = {}
        self.noted = NotedReceipts()
        """Receipts of results that other orchestrators take."""
        self._writing: set[asyncio.Task[None]] = set()

    async def pin(self, agent_id: str, key: str) -> None:
        """Trust the key that a device joined with; it replaces any earlier key."""
        pins = await self._known_pins()
        pins[agent_id] = await self.store.pin(agent_id, key, "pairing")

    async def repair(self, since: float) -> None:
        """Store the receipts of outcomes that were stored just before a crash without them.

        An outcome contains its receipt, so no acknowledged outcome is ever without one.
        """
        lost: list[StoredReceipt] = []
        for outcome in await self.store.outcomes_without_receipt(since):
            found = msgspec.json.decode(outcome, type=Outcome)
            if found.checked.get("state") == "valid":
                with suppress(ReceiptRefused):
                    lost.append(stored_receipt(*read_receipt(found.receipt), time.time()))
        if lost:
            await self.store.add(*lost)

    async def close(self) -> None:
        """Finish storing, and report receipts that are missing by now."""
        self._closing.set()
        if self._writing:
            await asyncio.wait(self._writing)
        self._closing.clear()
        with suppress(EvoClawError):  # the outcomes contain the receipts anyway
            await self.store.database.flush()

    async def inspect(self, report: Report, asked: Command | CommandRow | None) -> Report:
        """Verify the receipt of a result, store it, and add the verdict to the result.

        Args:
            report: The result.
            asked: The command that this agent was sent, or the stored command of this id.
        """
        payload = report.payload
        if asked is None and payload.get("receipt") is None:
            return report  # not the result of a call of ours
        command = _command_of(asked, report.agent_id)
        receipt, signed, flaw, reason = None, None, "", ""
        try:
            receipt, signed = await self._read(report)
            _compare(receipt, report, command)
            await self._compare_chain(receipt, signed)
        except ReceiptRefused as refusal:
            flaw, reason = str(refusal.flaw), refusal.reason
        if receipt is not None and signed is not None:
            tenant = _tenant_of(command)
            # Not waited for: the outcome contains it, and is stored before it counts.
            self.store.add_later(stored_receipt(receipt, signed, time.time(), flaw, tenant))
            if not flaw:
                self._extend_chain(receipt, signed)
        pins = await self._known_pins()
        if flaw:
            self._breach(report.agent_id, flaw, reason, report.request_id)
        checked = await self._verdict(report.agent_id, receipt, signed, flaw, reason)
        if flaw and self._required and not payload.get("refuses"):
            return replace(report, report_type=ReportType.ERROR, payload=_refused(report, checked))
        if flaw and (flaw != ReceiptFlaw.ABSENT or report.agent_id in pins):
            payload = {**payload, "label": _doubtful_label(report)}
        return replace(report, payload={**payload, "checked": checked})

    async def _read(self, report: Report) -> tuple[Receipt, SignedReceipt]:
        agent_id, body = report.agent_id, report.payload.get("receipt")
        found, signed = read_receipt(body)
        if found.agent_id != agent_id:
            raise ReceiptRefused(ReceiptFlaw.OTHER_AGENT, "the receipt belongs to another device")
        pin = (await self._known_pins()).get(agent_id)
        if pin is not None and pin.key != found.key:
            self._pins = None  # it may have joined again, at another orchestrator
            pin = (await self._known_pins()).get(agent_id)
        pin = pin or await self._trust(agent_id, found.key)
        if pin.key != found.key:
            read_receipt(body, key=pin.key)  # raises ReceiptRefused
        return found, signed

    async def _trust(self, agent_id: str, key: str) -> Pin:
        """Trust the key of a device's first receipt, unless another key is already known."""
        pins, pin = await self._known_pins(), await self.store.pin(agent_id, key, "first use")
        if agent_id not in pins and pin.key == key:
            text = f"its key is trusted on first use: {key}"
            self._breach(agent_id, "first_use", text)
        pins[agent_id] = pin
        return pin

    async def _compare_chain(self, receipt: Receipt, signed: SignedReceipt) -> None:
        """Check that the receipt follows the previous one, and the next one follows it."""
        if not receipt.counter:
            return
        chain, counter = await self._chain(receipt), receipt.counter
        known = dict(chain.seen)
        known |= self.noted.contradicting(receipt, signed.hash, known)
        proven = self.noted.proven_by(receipt)
        for before, hash in proven:
            known.setdefault(before.counter, (hash, before.prev))
        # Between the last one known here and this one, others may have been stored elsewhere.
        last = chain.top if counter - len(proven) <= chain.top + 1 else counter
        if any(1 <= n <= last and n not in known for n in (counter - 1, counter)):
            for stored in await self.store.at(receipt.agent_id, receipt.chain, counter):
                known[stored.counter] = stored.hash, stored.prev
        if counter in known and known[counter][0] != signed.hash:
            raise ReceiptRefused(
                ReceiptFlaw.FORK, f"there is another receipt with the number {counter}"
            )
        before, after = known.get(counter - 1), known.get(counter + 1)
        first = counter == 1 and receipt.prev != ""
        if first or (before is not None and before[0] != receipt.prev):
            raise ReceiptRefused(
                ReceiptFlaw.FORK, f"receipt {counter} does not follow the previous one"
            )
        if after is not None and after[1] != signed.hash:
            raise ReceiptRefused(
                ReceiptFlaw.FORK, f"receipt {counter + 1} does not follow this one"
            )

    async def _chain(self, receipt: Receipt) -> _Chain:
        chains = self._chains.get(receipt.agent_id)
        if chains is None:
            known = await self.store.chains()
            chains = {name: _Chain(top) for agent, name, top in known if agent == receipt.agent_id}
            chains = self._chains.setdefault(receipt.agent_id, chains)
        if receipt.chain not in chains:
            if chains:
                text = "it started a new chain of receipts: its journal or its key is new"
                self._breach(receipt.agent_id, "new_chain", text, receipt.request_id)
            chains[receipt.chain] = _Chain()
        return chains[receipt.chain]

    def _extend_chain(self, receipt: Receipt, signed: SignedReceipt) -> None:
        if receipt.counter:
            chain = self._chains[receipt.agent_id][receipt.chain]
            top, first = chain.top, receipt.counter
            for before, hash in reversed(self.noted.proven_by(receipt)):
                chain.note(before, hash)
                first = min(first, before.counter)
                self.noted.forget(receipt.agent_id, hash)
            if first > top + 1:
                self._spawn(self._report_gap(receipt, top + 1, first - 1))
            chain.note(receipt, signed.hash)

    async def _report_gap(self, receipt: Receipt, first: int, last: int) -> None:
        """Report what is missing before a receipt, unless it arrives, here or elsewhere."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._gap_timeout_s):
                await self._closing.wait()
        try:
            missing = await self.store.missing(receipt.agent_id, receipt.chain, first, last)
        except EvoClawError:
            missing = first, last  # unknown whether they arrived
        if missing is not None:
            text = f"receipts {missing[0]} to {missing[1]} have not arrived; they may be lost"
            self._breach(receipt.agent_id, "gap", text, receipt.request_id)

    async def _verdict(
        self,
        agent_id: str,
        receipt: Receipt | None,
        signed: SignedReceipt | None,
        flaw: str,
        reason: str,
    ) -> dict[str, JSON]:
        if receipt is None or signed is None:
            state = "absent" if flaw == ReceiptFlaw.ABSENT else "invalid"
            return {"state": state, "problem": reason, "agent": agent_id}
        pin = (await self._known_pins()).get(agent_id)
        found = valid_receipt(receipt, signed.hash, "" if pin is None else pin.trust)
        return found | ({"state": "invalid", "problem": reason} if flaw else {})

    async def _known_pins(self) -> dict[str, Pin]:
        if self._pins is None:
            pins = {pin.agent_id: pin for pin in await self.store.pins()}
            self._pins = self._pins or pins
        return self._pins

    def _breach(self, agent_id: str, kind: str, text: str, request_id: str = "") -> None:
        self.counts[kind] += 1
        has_key = agent_id in (self._pins or {})
        if kind == ReceiptFlaw.ABSENT and not (self._required or has_key):
            return  # a device without a key, where receipts are not required
        self._on_breach(ReceiptBreach(agent_id, kind, text, request_id))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)


def _compare(receipt: Receipt, report: Report, command: Command | None) -> None:
    """Check that a receipt is for this result of this command."""
    if receipt.request_id != bounded_name(report.request_id):
        text = f"the receipt is for request {receipt.request_id!r}: it was used before"
        raise ReceiptRefused(ReceiptFlaw.OTHER_REQUEST, text)
    try:
        result = result_hash(report.payload)
    except (ValueError, RecursionError):
        result = ""
    if receipt.result_sha256 != result:
        raise ReceiptRefused(ReceiptFlaw.OTHER_RESULT, "the receipt is for another result")
    if command is None or not receipt.args_sha256:
        return
    if receipt.args_sha256 != _arguments_hash(command):
        text = "the receipt is for other arguments"
        raise ReceiptRefused(ReceiptFlaw.OTHER_ARGUMENTS, text)
    if (receipt.tenant or LOCAL_PRINCIPAL.tenant) != bounded_name(_tenant_of(command)):
        text = "the receipt is for another tenant"
        raise ReceiptRefused(ReceiptFlaw.OTHER_REQUEST, text)


def _doubtful_label(report: Report) -> JSON:
    """The label of a result that its device did not sign: anyone may have written it.

    The reported label may be forged too, so that it counts only where it adds something.
    """
    try:
        reported = convert(report.payload.get("label", {}), Label)
    except WireError:
        reported = CLEAN
    doubtful = Label(untrusted=True, private=True, sources=(report.agent_id,))
    return msgspec.to_builtins(reported | doubtful)


def _tenant_of(command: Command | None) -> str:
    """The tenant of a command; a receipt without a command belongs to the operator's tenant.

    It is never taken from the receipt: a device could add receipts to any tenant.
    """
    return LOCAL_PRINCIPAL.tenant if command is None else command.tenant or LOCAL_PRINCIPAL.tenant


def _command_of(asked: Command | CommandRow | None, agent_id: str) -> Command | None:
    if not isinstance(asked, CommandRow):
        return asked
    try:
        return read_command(asked.payload) if asked.agent_id == agent_id else None
    except WireError:
        return UNREADABLE


def _arguments_hash(command: Command) -> str:
    """The hash of a command's arguments, as its receipt contains it."""
    if command is UNREADABLE:
        return ""
    try:
        # A command that waits for its outcome was not decoded, and may have tuples.
        return canonical_hash(msgspec.json.decode(msgspec.json.encode(arguments_of(command))))
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


def valid_receipt(receipt: Receipt, hash: str, trust: str) -> dict[str, JSON]:
    """The verdict on a valid receipt, as it is added to its result."""
    return {
        "state": "valid",
        "id": short_id(receipt.counter, hash),
        "hash": hash,
        "agent": receipt.agent_id,
        "request_id": receipt.request_id,
        "status": receipt.status,
        "trust": trust,
    }


def stored_receipt(
    receipt: Receipt, signed: SignedReceipt, at: float, flaw: str = "", tenant: str = ""
) -> StoredReceipt:
    """A receipt as it is stored, for a tenant; by default the one in the receipt."""
    return StoredReceipt(
        receipt.agent_id,
        receipt.chain,
        receipt.counter,
        signed.hash,
        receipt.prev,
        receipt.request_id,
        receipt.run_id,
        tenant or receipt.tenant or LOCAL_PRINCIPAL.tenant,
        at,
        signed.body,
        signed.signature,
        flaw,
    )
