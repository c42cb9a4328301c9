"""Exports stored receipts, with the keys that verify them and the calls that they are for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
from msgspec import Struct

from evoclaw.core.commands import CommandRow
from evoclaw.core.labels import LOCAL_PRINCIPAL
from evoclaw.core.messages import JSON
from evoclaw.store.calls.commands import CommandStore
from evoclaw.store.calls.receipts import Pin, ReceiptStore, StoredReceipt, TenantReceipts
from evoclaw.transport.wire import Outcome, WireError, arguments_of, read_command
from evoclaw.trust.receipts import ReceiptRefused, read_receipt


class CheckedReceipt(Struct, frozen=True):
    """A receipt, and whether it is valid today."""

    request_id: str
    agent_id: str
    chain: str
    counter: int
    hash: str
    at: float
    """When it arrived, by the orchestrator's clock."""
    valid: bool | None
    """None if no key of the device is known."""
    receipt: dict[str, JSON]
    """The signed body."""


class ReceiptArchive:
    """The stored receipts and the commands that they are for, of all tenants.

    It is for the operator of the machine; a tenant gets its own part with `of`.
    """

    def __init__(self, store: ReceiptStore, outbox: CommandStore | None = None) -> None:
        self.store, self._outbox = store, outbox

    def of(self, tenant: str) -> TenantArchive:
        """The part that one tenant may see."""
        return TenantArchive(self.store, self._outbox, tenant)

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for `evoclaw verify`: keys, then receipts with their calls.

        Args:
            agent_id: Only receipts of this device.
            run_id: Only receipts of this run: then the chains have gaps.
        """
        pins = [pin for pin in await self.store.pins() if agent_id in ("", pin.agent_id)]
        receipts = await self.store.list_receipts(agent_id=agent_id, run_id=run_id)
        async for line in _bundle(pins, receipts, self._outbox):
            yield line


class TenantArchive:
    """The receipts and commands of one tenant."""

    def __init__(self, store: ReceiptStore, outbox: CommandStore | None, tenant: str) -> None:
        self.receipts: TenantReceipts = store.of(tenant)
        self._store, self._outbox = store, outbox

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for `evoclaw verify`; chains have gaps for other tenants' calls."""
        receipts = await self.receipts.list_receipts(agent_id=agent_id, run_id=run_id)
        signers = {receipt.agent_id for receipt in receipts}
        pins = [pin for pin in await self._store.pins() if pin.agent_id in signers]
        async for line in _bundle(pins, receipts, self._outbox):
            yield line

    async def of_run(self, run_id: str) -> list[CheckedReceipt]:
        """The receipts of one run, each verified again with the known key of its device."""
        receipts = await self.receipts.list_receipts(run_id=run_id)
        keys = {pin.agent_id: pin.key for pin in await self._store.pins()}
        # Verifying takes a tenth of a millisecond: many would block the event loop.
        return await asyncio.to_thread(
            lambda: [_check(receipt, run_id, keys.get(receipt.agent_id)) for receipt in receipts]
        )


def _check(receipt: StoredReceipt, run_id: str, key: str | None) -> CheckedReceipt:
    return CheckedReceipt(
        receipt.request_id,
        receipt.agent_id,
        receipt.chain,
        receipt.counter,
        receipt.hash,
        receipt.at,
        _is_valid(receipt, run_id, key),
        msgspec.json.decode(receipt.body),
    )


def _is_valid(receipt: StoredReceipt, run_id: str, key: str | None) -> bool | None:
    """Whether it is signed with this key, and for a call of this run."""
    if receipt.flaw or receipt.request_id.partition(".")[0] != run_id:
        return False
    if key is None:
        return None
    try:
        read_receipt({"body": receipt.body, "signature": receipt.signature}, key=key)
    except ReceiptRefused:
        return False
    return True


async def _bundle(
    pins: Iterable[Pin], receipts: Sequence[StoredReceipt], outbox: CommandStore | None
) -> AsyncGenerator[dict[str, JSON]]:
    for pin in pins:
        yield {"type": "key", "agent_id": pin.agent_id, "key": pin.key, "trust": pin.trust}
    for receipt in receipts:
        if receipt.flaw:
            continue
        line: dict[str, JSON] = {
            "type": "receipt",
            "body": receipt.body,
            "signature": receipt.signature,
        }
        row = None if outbox is None else await outbox.get(receipt.request_id)
        if row is not None and row.agent_id == receipt.agent_id:
            line |= _call_of(row, receipt.tenant)
        yield line


def _call_of(row: CommandRow, tenant: str) -> dict[str, JSON]:
    """The arguments and the result that a receipt is for; empty for another tenant's call."""
    try:
        command = read_command(row.payload)
        found: dict[str, JSON] = {"arguments": arguments_of(command)}
    except WireError:
        return {}
    if (command.tenant or LOCAL_PRINCIPAL.tenant) != tenant:
        return {}
    outcome = None if row.outcome is None else msgspec.json.decode(row.outcome, type=Outcome)
    if outcome is not None and outcome.receipt is not None:
        fields: dict[str, JSON] = msgspec.to_builtins(outcome)
        omitted = ("receipt", "checked")
        found["result"] = {name: fields[name] for name in fields if name not in omitted}
    return found
