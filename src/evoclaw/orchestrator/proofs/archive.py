"""Receipts handed out: with the keys they are checked by, and what they are of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence

import msgspec
from msgspec import Struct

from evoclaw.core.labels import LOCAL
from evoclaw.core.messages import JSON
from evoclaw.store.calls.receipts import Kept, Pin, ReceiptStore, TenantReceipts
from evoclaw.transport.outbox import Outbox
from evoclaw.transport.outbox import StoredCommand as Asked
from evoclaw.transport.wire import Outcome, WireError, arguments_of, read_command
from evoclaw.trust.receipts import ReceiptRefused, read


class Proof(Struct, frozen=True):
    """A receipt, and whether it holds today."""

    request_id: str
    agent_id: str
    chain: str
    counter: int
    hash: str
    at: float
    """When it came, by our own clock."""
    valid: bool | None
    """None if no key is known that the device could be told by."""
    receipt: dict[str, JSON]
    """As it was signed."""


class ReceiptArchive:
    """A book and the commands that its receipts are of, as long as those are kept.

    It holds those of all tenants, for whoever has the machine; a tenant is given `of` its own.
    """

    def __init__(self, store: ReceiptStore, outbox: Outbox | None = None) -> None:
        self.store, self._outbox = store, outbox

    def of(self, tenant: str) -> TenantArchive:
        """What one tenant may see of it."""
        return TenantArchive(self.store, self._outbox, tenant)

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for the verifier: keys, then receipts, with what they are of.

        Args:
            agent_id: Only this device's.
            run_id: Only those of this run: then the chains have gaps.
        """
        pins = [pin for pin in await self.store.pins() if agent_id in ("", pin.agent_id)]
        kept = await self.store.listed(agent_id=agent_id, run_id=run_id)
        async for line in _bundle(pins, kept, self._outbox):
            yield line


class TenantArchive:
    """The receipts of what one tenant asked for, and its commands."""

    def __init__(self, store: ReceiptStore, outbox: Outbox | None, tenant: str) -> None:
        self.receipts: TenantReceipts = store.of(tenant)
        self._store, self._outbox = store, outbox

    async def bundle(
        self, *, agent_id: str = "", run_id: str = ""
    ) -> AsyncGenerator[dict[str, JSON]]:
        """The lines of a file for the verifier; chains have gaps where other tenants asked."""
        kept = await self.receipts.listed(agent_id=agent_id, run_id=run_id)
        signers = {one.agent_id for one in kept}
        pins = [pin for pin in await self._store.pins() if pin.agent_id in signers]
        async for line in _bundle(pins, kept, self._outbox):
            yield line

    async def of_run(self, run_id: str) -> list[Proof]:
        """The receipts of one run, each checked anew with the key that its device is known by."""
        kept = await self.receipts.listed(run_id=run_id)
        keys = {pin.agent_id: pin.key for pin in await self._store.pins()}
        # A signature takes a tenth of a millisecond to check: many of them would hold up others.
        return await asyncio.to_thread(
            lambda: [_proof(one, run_id, keys.get(one.agent_id)) for one in kept]
        )


def _proof(kept: Kept, run_id: str, key: str | None) -> Proof:
    return Proof(
        kept.request_id,
        kept.agent_id,
        kept.chain,
        kept.counter,
        kept.hash,
        kept.at,
        _holds(kept, run_id, key),
        msgspec.json.decode(kept.body),
    )


def _holds(kept: Kept, run_id: str, key: str | None) -> bool | None:
    """Whether it is signed by that key, and of a call that this run made."""
    if kept.flaw or kept.request_id.partition(".")[0] != run_id:
        return False
    if key is None:
        return None
    try:
        read({"body": kept.body, "signature": kept.signature}, key=key)
    except ReceiptRefused:
        return False
    return True


async def _bundle(
    pins: Iterable[Pin], receipts: Sequence[Kept], outbox: Outbox | None
) -> AsyncGenerator[dict[str, JSON]]:
    for pin in pins:
        yield {"type": "key", "agent_id": pin.agent_id, "key": pin.key, "trust": pin.trust}
    for kept in receipts:
        if kept.flaw:
            continue
        line: dict[str, JSON] = {
            "type": "receipt",
            "body": kept.body,
            "signature": kept.signature,
        }
        row = None if outbox is None else await outbox.get(kept.request_id)
        if row is not None and row.agent_id == kept.agent_id:
            line |= _proved(row, kept.tenant)
        yield line


def _proved(row: Asked, tenant: str) -> dict[str, JSON]:
    """The arguments and the result that a receipt is of; nothing if another tenant asked."""
    try:
        command = read_command(row.payload)
        found: dict[str, JSON] = {"arguments": arguments_of(command)}
    except WireError:
        return {}
    if (command.tenant or LOCAL.tenant) != tenant:
        return {}
    outcome = None if row.outcome is None else msgspec.json.decode(row.outcome, type=Outcome)
    if outcome is not None and outcome.receipt is not None:
        told: dict[str, JSON] = msgspec.to_builtins(outcome)
        found["result"] = {name: told[name] for name in told if name not in ("receipt", "checked")}
    return found
